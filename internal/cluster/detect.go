package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Detected is a profile as this machine shows it.
type Detected struct {
	Profile
	Notes []string // where what is known is from, and what was asked in vain: a sentence each
}

// machine is what detection looks at.
type machine struct {
	root   string // in front of /sys, for tests
	getenv func(string) string
	fs     func(path string) host.FileSystem
	arch   string // Go's name
}

// Detect asks the programs and file systems of a cluster's login or compute node what the cluster is.
func Detect(ctx context.Context) Detected {
	m := machine{getenv: os.Getenv, fs: host.FileSystemOf, arch: runtime.GOARCH}
	return m.detect(ctx)
}

func (m machine) detect(ctx context.Context) Detected {
	var d Detected
	d.askSlurm(ctx)
	d.askConfig(ctx)
	d.askPlugins(ctx)
	d.askGPU(ctx)
	d.askGlibc(ctx)
	d.lookAtNetwork(m.root)
	d.lookAtPaths(m)
	if platform := "linux/" + m.arch; slices.Contains(Platforms, platform) {
		d.Platform = platform
		d.note("platform", "that of this machine; nodes may have another")
	}
	if len(d.Starts) > 0 {
		d.Runtime = judgedAs(d.Starts[0])
	}
	d.dropUnfit()
	return d
}

// dropUnfit drops what a program said that no profile may say.
func (d *Detected) dropUnfit() {
	for _, k := range keys {
		err := k.check(&d.Profile)
		if err == nil {
			continue
		}
		d.note(k.Name, "left out: "+err.Error())
		switch v := k.field(&d.Profile).(type) {
		case *string:
			*v = ""
		case *int:
			*v = 0
		case *[]string:
			*v = nil
		}
	}
}

func (d *Detected) note(key, from string) { d.Notes = append(d.Notes, key+": "+from) }

// askTime bounds how long one program may take: a controller that is down is asked again for a minute.
const askTime = 30 * time.Second

// ask runs a program and returns what it prints; "" when there is none or it fails, which is noted.
func (d *Detected) ask(ctx context.Context, name string, args ...string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		d.note(name, "not found")
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	out, err := child.Output(exec.CommandContext(ctx, path, args...))
	if err != nil {
		d.note(name, fmt.Sprintf("asked in vain: %v", err))
		return ""
	}
	return string(out)
}

// askSlurm reads the default partition, and of what most of its nodes are.
func (d *Detected) askSlurm(ctx context.Context) {
	const format = "%R|%P|%l|%c|%D|%G" // the name, the name with a star at the default, time limit, CPUs, nodes, resources
	var best []string
	most := -1
	for line := range strings.Lines(d.ask(ctx, "sinfo", "--noheader", "--format="+format)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 6 {
			continue
		}
		nodes, _ := strconv.Atoi(f[4])
		if strings.HasSuffix(f[1], "*") {
			nodes += 1 << 20 // the default goes before all others, however small
		}
		if nodes > most {
			best, most = f, nodes
		}
	}
	if best == nil {
		return
	}
	d.Slurm.Partition, d.Slurm.MaxTime = best[0], slurmTime(best[2])
	d.Slurm.CPUsPerNode = leadingNumber(best[3])
	d.Slurm.GPUsPerNode = gpusOf(best[5])
	if d.Slurm.GPUsPerNode > 0 {
		d.Slurm.GPURequest = GPURequests[0]
	}
	d.note("[slurm]", "of the nodes of partition "+best[0]+", as sinfo lists them")
}

// gpuResource is a generic resource as sinfo writes it: "gpu:4", "gpu:h100:8(S:0-1)".
var gpuResource = lazyregexp.New(`(?:^|,)gpu(?::[^:,()]+)??:([0-9]+)`)

func gpusOf(resources string) int {
	n := 0
	for _, m := range gpuResource.FindAllStringSubmatch(resources, -1) {
		n += leadingNumber(m[1])
	}
	if n > KeyOf("slurm.gpus-per-node").Max {
		return 0
	}
	return n
}

var digits = lazyregexp.New(`^[0-9]{1,4}`)

// leadingNumber reads "288" and "288+", which sinfo writes where nodes differ.
func leadingNumber(text string) int {
	n, _ := strconv.Atoi(digits.FindString(text))
	return n
}

// slurmLimit is a time limit as sinfo writes it: days-hours:minutes:seconds, without what is none at the front.
var slurmLimit = lazyregexp.New(`^(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):[0-9]+$`)

// slurmTime writes a time limit as a profile has it; "" for none.
func slurmTime(limit string) string {
	m := slurmLimit.FindStringSubmatch(limit)
	if m == nil {
		return ""
	}
	days, _ := strconv.Atoi(m[1])
	hours, _ := strconv.Atoi(m[2])
	minutes, _ := strconv.Atoi(m[3])
	if hours += days * 24; minutes == 0 {
		return strconv.Itoa(hours) + "h"
	}
	return strconv.Itoa(hours*60+minutes) + "m"
}

// configLine is a line of `scontrol show config`.
var configLine = lazyregexp.New(`(?m)^(ClusterName|SLURM_VERSION|MpiDefault)[ \t]*=[ \t]*(\S+)`)

// pmiOf is what srun speaks by the name of a plugin of Slurm's.
var pmiOf = map[string]string{"pmix": "pmix", "pmi2": "pmi2", "cray_shasta": "cray"}

func (d *Detected) askConfig(ctx context.Context) {
	for _, m := range configLine.FindAllStringSubmatch(d.ask(ctx, "scontrol", "show", "config"), -1) {
		switch m[1] {
		case "ClusterName":
			d.Name = m[2]
			d.note("name", "ClusterName of scontrol show config")
		case "SLURM_VERSION":
			d.Slurm.Version = formVersionIn.FindString(m[2])
			d.note("slurm.version", "scontrol show config")
		case "MpiDefault":
			name, _, _ := strings.Cut(m[2], "_v")
			if d.PMI = pmiOf[name]; d.PMI != "" {
				d.note("pmi", "MpiDefault of scontrol show config")
			}
		}
	}
}

var formVersionIn = lazyregexp.New(`^[0-9]{2}\.[0-9]{2}(\.[0-9]+)?`)

// plugins are the options by which srun tells what starts containers.
var plugins = []struct{ option, starter string }{
	{"--environment", string(ContainerEngine)}, {"--edf", Sarus}, {"--container-image", string(Pyxis)}, {"--uenv", string(Uenv)},
}

// programs start containers without srun's help.
var programs = []struct{ name, starter string }{
	{"apptainer", string(Apptainer)}, {"singularity", string(Apptainer)}, {"podman-hpc", PodmanHPC},
}

func (d *Detected) askPlugins(ctx context.Context) {
	help := d.ask(ctx, "srun", "--help")
	for _, p := range plugins {
		if regexp.MustCompile(`(?m)(^|[\s,])` + p.option + `(=|\s|\[|$)`).MatchString(help) {
			d.starts(p.starter, "srun has "+p.option)
		}
	}
	for _, p := range programs {
		if path, err := exec.LookPath(p.name); err == nil {
			d.starts(p.starter, path)
		}
	}
	switch {
	case slices.Contains(d.Starts, string(ContainerEngine)):
		d.Container.SqshMount = "edf"
	case slices.Contains(d.Starts, string(Apptainer)):
		d.Container.SqshMount = "bind"
	case slices.Contains(d.Starts, string(Uenv)):
		d.Container.SqshMount = "uenv"
	}
}

func (d *Detected) starts(starter, why string) {
	if !slices.Contains(d.Starts, starter) {
		d.Starts = append(d.Starts, starter)
		d.note("runtimes", starter+", as "+why)
	}
}

func (d *Detected) askGPU(ctx context.Context) {
	var gpus, drivers []string
	for line := range strings.Lines(d.ask(ctx, "nvidia-smi", "--query-gpu=compute_cap,driver_version", "--format=csv,noheader")) {
		gpu, driver, ok := strings.Cut(strings.TrimSpace(line), ", ")
		if ok {
			gpus, drivers = append(gpus, gpu), append(drivers, driver)
		}
	}
	parsed, err := fatbin.ParseGPUs(gpus)
	if err != nil || len(parsed) == 0 {
		return
	}
	for _, sm := range parsed {
		if gpu := fatbin.Capability(sm); !slices.Contains(d.GPU, gpu) {
			d.GPU = append(d.GPU, gpu)
		}
	}
	if formDriver.MatchString(drivers[0]) {
		d.Driver = drivers[0]
	}
	d.note("gpu, driver", "nvidia-smi, of this machine")
}

func (d *Detected) askGlibc(ctx context.Context) {
	version := strings.TrimPrefix(strings.TrimSpace(d.ask(ctx, "getconf", "GNU_LIBC_VERSION")), "glibc ")
	if formGlibc.MatchString(version) {
		d.Glibc = version
		d.note("glibc", "getconf, of this machine")
	}
}

// lookAtNetwork tells the network by the devices that the kernel has (Linux, Documentation/ABI: sysfs-class-infiniband).
func (d *Detected) lookAtNetwork(root string) {
	found := func(pattern string) []string {
		files, _ := filepath.Glob(globEscape(root) + pattern)
		return files
	}
	if len(found("/sys/class/cxi/*")) > 0 || len(found("/sys/class/net/hsn[0-9]*")) > 0 {
		d.Fabric = Slingshot
		d.note("fabric", "this machine has a device of Slingshot")
		return
	}
	for _, dir := range found("/sys/class/infiniband/*") {
		if strings.HasPrefix(filepath.Base(dir), "efa_") {
			d.Fabric = EFA
			break
		}
		for _, file := range found("/sys/class/infiniband/" + filepath.Base(dir) + "/ports/*/link_layer") {
			layer, _ := os.ReadFile(file)
			switch strings.TrimSpace(string(layer)) {
			case "InfiniBand":
				d.Fabric = InfiniBand
			case "Ethernet":
				d.Fabric = cmp.Or(d.Fabric, RoCE)
			}
		}
	}
	if d.Fabric != "" {
		d.note("fabric", "/sys/class/infiniband, of this machine")
	}
}

// lookAtPaths tells directories by the variables that sites set, and by their file systems.
func (d *Detected) lookAtPaths(m machine) {
	if scratch := m.getenv("SCRATCH"); filepath.IsAbs(scratch) {
		d.Paths.Scratch, d.Paths.Images = "${SCRATCH}", "${SCRATCH}/images"
		d.Container.Mounts = []string{"${SCRATCH}"}
		d.note("paths.scratch", "the variable SCRATCH, "+scratch)
		if m.fs(scratch).Type == "lustre" {
			d.Paths.Stripe = "-E 4M -c 1 -E 64M -c 4 -E -1 -c -1 -S 4M"
			d.note("paths.stripe", "the usual one for large files on Lustre, which "+scratch+" is on")
		}
	} else {
		d.note("paths.scratch", "there is no variable SCRATCH")
	}
	if m.fs("/dev/shm").Type == "tmpfs" {
		d.Paths.Local = "/dev/shm"
		d.note("paths.local", "in memory")
	}
	if home := m.getenv("HOME"); filepath.IsAbs(home) {
		fs := m.fs(home)
		if fs.Type == "unknown" || strings.HasPrefix(fs.Type, "0x") {
			return
		}
		d.Paths.HomeShared = &fs.Shared
		d.note("paths.home-shared", "the file system of "+home+" is "+fs.Type)
	}
}
