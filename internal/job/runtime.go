package job

import (
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
)

const (
	containerEngine = string(cluster.ContainerEngine)
	pyxis           = string(cluster.Pyxis)
	apptainer       = string(cluster.Apptainer)
	uenv            = string(cluster.Uenv)
)

// runtimeTitle is what a runtime is called in a sentence.
var runtimeTitle = map[string]string{
	containerEngine: "the Container Engine", cluster.Sarus: "the Sarus Suite", pyxis: "pyxis", apptainer: "Apptainer",
	cluster.PodmanHPC: "podman-hpc", uenv: "uenv", cluster.Sconce: "sconce run",
}

// start is how a command is started in the image: options of srun, and a program that takes the command. Words have variables in them
// and are not quoted yet.
type start struct {
	options []string
	program []string
}

// start puts together how the runtime is called. image is where the image is, and env names the variables of the job that the image's own
// must not replace.
func (s *settled) start(image string, env []string) start {
	switch s.runtime {
	case containerEngine:
		return start{options: []string{"--environment=" + s.edfName()}}
	case cluster.Sarus:
		return start{options: []string{"--edf=" + s.edfName()}}
	case pyxis:
		return s.startPyxis(image, env)
	case apptainer:
		return s.startApptainer(image)
	case cluster.PodmanHPC:
		return s.startPodman(env)
	case uenv:
		if s.uenvInStep() {
			return start{options: s.uenvOptions()}
		}
		return start{}
	}
	return s.startSconce(image, env)
}

func (s *settled) edfName() string {
	if s.EDF != "" {
		return s.EDF
	}
	return s.EDFName()
}

// usesEDF reports whether mounts, variables and the image itself are in an environment definition file.
func (s *settled) usesEDF() bool { return s.runtime == containerEngine || s.runtime == cluster.Sarus }

func (s *settled) startPyxis(image string, env []string) start {
	var mounts []string
	for _, m := range s.mounts {
		mounts = append(mounts, m.spec())
	}
	options := []string{"--container-image=" + image, "--container-mounts=" + strings.Join(mounts, ",")}
	if s.workdir != "" {
		options = append(options, "--container-workdir="+s.workdir)
	}
	options = append(options, "--no-container-mount-home")
	if len(env) > 0 {
		options = append(options, "--container-env="+strings.Join(env, ","))
	}
	return start{options: options}
}

func (s *settled) startApptainer(image string) start {
	program := []string{"apptainer", "exec"}
	if s.gpus > 0 {
		program = append(program, "--nv")
	}
	for _, m := range s.mounts {
		if m.Squashfs {
			program = append(program, "--bind="+m.Source+":"+m.Target+":image-src=/")
			continue
		}
		program = append(program, "--bind="+m.spec())
	}
	if dir := s.workdir; dir != "" {
		program = append(program, "--pwd="+dir)
	} else {
		program = append(program, "--pwd="+s.Image.Workdir) // exec alone would take the host's
	}
	if s.Sees != nil {
		program = append(program, "--home="+s.workdir) // exec alone would mount the user's, and all that is in it could be written
	}
	return start{program: append(program, image)}
}

func (s *settled) startPodman(env []string) start {
	program := []string{"podman-hpc", "run", "--rm", "--network=host", "--ipc=host"}
	if s.gpus > 0 {
		program = append(program, "--gpu")
		if s.Cluster.Fabric == cluster.Slingshot {
			program = append(program, "--nccl")
		}
	}
	for _, m := range s.mounts {
		program = append(program, "--volume="+m.spec())
	}
	if s.workdir != "" {
		program = append(program, "--workdir="+s.workdir)
	}
	for _, name := range append([]string{"SLURM_*"}, env...) {
		program = append(program, "--env="+name)
	}
	return start{program: append(program, s.Image.Reference)}
}

// passedOn begins the names of variables that every task of sconce run gets from its job.
var passedOn = []string{"MASTER_", "OMP_", "TORCH_NCCL_", "TORCH_FR_", "NCCL_", "FI_", "SLURM_"}

func (s *settled) startSconce(image string, env []string) start {
	program := []string{"sconce", "run"}
	if s.gpus > 0 {
		program = append(program, "--gpu")
	}
	for _, m := range s.mounts {
		if m.Squashfs {
			program = append(program, "--venv="+m.spec())
			continue
		}
		program = append(program, "--bind="+m.spec())
	}
	if s.workdir != "" {
		program = append(program, "--workdir="+s.workdir)
	}
	for _, name := range env {
		if !slices.ContainsFunc(passedOn, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			program = append(program, "--env="+name)
		}
	}
	return start{program: append(program, image, "--")}
}

// spec writes a mount as SRC:DST, and :ro behind it when nothing may be written there: all runtimes read that.
func (m Mount) spec() string {
	text := m.Source + ":" + m.Target
	if m.ReadOnly {
		text += ":ro"
	}
	return text
}
