package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tomltext"
)

// The annotations that depend on the image (docs.cscs.ch, "Container Engine", "Resources and hooks").
const (
	hookNCCL    = "com.hooks.aws_ofi_nccl.enabled"
	hookVariant = "com.hooks.aws_ofi_nccl.variant"
	hookCXI     = "com.hooks.cxi.enabled"
	hookSlurm   = "com.hooks.slurm.enabled" // of the Sarus Suite, where it is off unless it is named
)

// EDF writes the environment definition file of a job. Errors are of exit code 2.
func EDF(r Request) (string, error) {
	s, err := r.settle()
	if err != nil {
		return "", err
	}
	if !s.usesEDF() {
		return "", fault.Usage(fault.Hint(fmt.Errorf("%s reads no environment definition file", runtimeTitle[s.runtime]), "--runtime container-engine or --runtime sarus names one that does"))
	}
	var b script
	b.line("%s", comment(fmt.Sprintf("%s on %s, for %s. It is found by its name as %s.", s.Image.Name, s.clusterName(), runtimeTitle[s.runtime], s.edfFile())))
	b.line("#   srun %s COMMAND", optionWord(s.start("", nil).options[0]))
	if s.From != "" {
		b.note("Written again by:", s.From)
	}
	s.imageNote(&b)
	s.edfImage(&b)
	s.edfMounts(&b)
	s.edfDevices(&b)
	s.edfAnnotations(&b)
	s.edfEnv(&b)
	return Seal(b.String()), nil
}

func (s *settled) edfImage(b *script) {
	if s.runtime == cluster.Sarus {
		b.because("The Sarus Suite takes images from a registry, and expands no variables here.")
		b.line("image = %s", tomltext.String(s.Image.Reference))
	} else {
		b.line("\nimage = %s", tomltext.String(s.Image.File))
	}
	if s.workdir != "" {
		b.line("workdir = %s", tomltext.String(s.workdir))
	}
	b.line("entrypoint = false # said, since not all readers of this file have the same default")
	b.line("writable = true")
}

// edfMounts writes every mount as SRC:DST: one without a target is read by the Container Engine alone.
func (s *settled) edfMounts(b *script) {
	b.because("Only what the job needs: a whole home would bring its start-up files, packages and caches along.")
	b.line("mounts = [")
	for _, m := range s.mounts {
		spec := m.spec()
		if m.Squashfs {
			spec += ":sqsh"
		}
		b.line("    %s,", tomltext.String(spec))
	}
	b.line("]")
}

// edfDevices names the devices that the Sarus Suite gives to nobody who does not ask.
func (s *settled) edfDevices(b *script) {
	if s.runtime != cluster.Sarus {
		return
	}
	var devices []string
	if s.gpus > 0 {
		devices = append(devices, tomltext.String("nvidia.com/gpu=all"))
	}
	if s.Cluster.Fabric == cluster.Slingshot {
		devices = append(devices, tomltext.String("hpe.com/cxi=all"))
	}
	if len(devices) > 0 {
		b.line("devices = [%s]", strings.Join(devices, ", "))
	}
}

// annotations are the cluster's, as far as they fit the image.
func (s *settled) annotations() (all map[string]string, reasons map[string]string) {
	all, reasons = maps.Clone(s.Cluster.Container.Annotations), map[string]string{}
	if all == nil {
		all = map[string]string{}
	}
	if s.Image.Musl {
		delete(all, hookNCCL)
		delete(all, hookVariant)
		all[hookCXI] = "false"
		reasons[hookCXI] = "the hook needs glibc, and the image has musl"
		return all, reasons
	}
	if s.runtime == cluster.Sarus && s.Cluster.Fabric == cluster.Slingshot && all[hookCXI] == "" {
		all[hookCXI] = "true"
		reasons[hookCXI] = "the hook for NCCL does not turn it on here"
	}
	if inside := s.Cluster.Container.SlurmInside; s.runtime == cluster.Sarus && s.Cluster.Starter() == cluster.Sarus && inside != nil && *inside && all[hookSlurm] == "" {
		all[hookSlurm] = "true"
		reasons[hookSlurm] = "the cluster's profile has Slurm's commands in containers"
	}
	if s.runtime == cluster.Sarus {
		delete(all, hookVariant) // which it does not look at
		return all, reasons
	}
	variant := all[hookVariant]
	own := fmt.Sprintf("cuda%d", s.Image.CUDA)
	switch {
	case s.Image.CUDA == 0:
	case variant == "cuda-dl" && s.Image.Cudart == Nope:
		all[hookVariant] = own
		reasons[hookVariant] = "the image has no libcudart.so without a version, which cuda-dl would look for"
	case strings.HasPrefix(variant, "cuda1") && variant != own:
		all[hookVariant] = own
		reasons[hookVariant] = fmt.Sprintf("the image has the libraries of CUDA %d", s.Image.CUDA)
	}
	return all, reasons
}

func (s *settled) edfAnnotations(b *script) {
	all, reasons := s.annotations()
	if len(all) == 0 {
		return
	}
	b.line("\n[annotations]")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		line := name + " = " + tomltext.String(all[name])
		if why := reasons[name]; why != "" {
			line += " # " + why
		}
		b.line("%s", line)
	}
}

// edfEnv writes the variables, which go before those of the image and of the host here.
func (s *settled) edfEnv(b *script) {
	env := slices.Clone(s.env)
	if s.Image.Musl && s.runtime == containerEngine && !s.ownsVariable("ENROOT_SLURM_HOOK") {
		env = append(env, setting{"ENROOT_SLURM_HOOK", "0"}) // which needs glibc
	}
	if len(env) == 0 {
		return
	}
	b.line("\n[env]")
	for _, v := range env {
		b.line("%s = %s", v.name, tomltext.String(v.value))
	}
}
