// Package cluster knows the machines that images run on: profiles, which are the one place that says what a cluster is.
package cluster

import (
	"strconv"
	"strings"
)

// Profile says what a cluster is: as far as an image has to fit it, and how jobs are run there. An empty field is not known, and nothing
// is judged by it. What each field may hold is said by the table of keys: see [Keys].
type Profile struct {
	Name        string `toml:"name" json:"name,omitempty"`
	Description string `toml:"description" json:"description,omitempty"`
	Base        string `toml:"base" json:"base,omitempty"` // the profile that this one starts from; "" once it is put in, see [Find]

	Platform string   `toml:"platform" json:"platform,omitempty"`  // "linux/arm64"
	CPULevel int      `toml:"cpu-level" json:"cpuLevel,omitempty"` // x86-64 level of the oldest node's processor, 1 to 4
	GPU      []string `toml:"gpu" json:"gpu,omitempty"`            // CUDA compute capabilities: "9.0"
	Driver   string   `toml:"driver" json:"driver,omitempty"`      // NVIDIA's, the oldest on any node: "550.54.15"
	Glibc    string   `toml:"glibc" json:"glibc,omitempty"`        // the host's, for which the libraries it injects were built: "2.31"
	Runtime  Runtime  `toml:"runtime" json:"runtime,omitempty"`    // what starts containers
	Fabric   Fabric   `toml:"fabric" json:"fabric,omitempty"`      // the network between nodes
	MPI      string   `toml:"mpi" json:"mpi,omitempty"`            // family of the host's MPI: "mpich" (its ABI, Cray MPICH too), "openmpi"
	PMI      string   `toml:"pmi" json:"pmi,omitempty"`            // what Slurm's srun speaks: "pmix", "pmi2", "cray"
	Injects  []string `toml:"injects" json:"injects,omitempty"`    // names of host libraries that the runtime mounts into containers: "libcuda.so.1"
	Hides    []string `toml:"hides" json:"hides,omitempty"`        // directories of the image that the runtime covers, besides those that it always does
	NCCLNet  string   `toml:"nccl-net" json:"ncclNet,omitempty"`   // name of the NCCL network plugin that the runtime injects: "ofi"

	Starts      []string          `toml:"runtimes" json:"runtimes,omitempty"` // what jobs can be started with, the usual one first: see [Starters]
	Slurm       Slurm             `toml:"slurm" json:"slurm,omitzero"`
	Paths       Paths             `toml:"paths" json:"paths,omitzero"`
	Container   Container         `toml:"container" json:"container,omitzero"`
	Env         map[string]string `toml:"env" json:"env,omitempty"`   // of every job: what no hook of the cluster sets
	EnvUenv     map[string]string `toml:"-" json:"envUenv,omitempty"` // besides, of jobs in a uenv; a file has it as [env.uenv]
	Reliability Reliability       `toml:"reliability" json:"reliability,omitzero"`
	Reference   map[string]string `toml:"reference" json:"reference,omitempty"` // what tests measure on a good node: "all-reduce@2.busbw" is "150 GB/s"
}

// Slurm is what jobs ask of the workload manager, and what its nodes have.
type Slurm struct {
	Version     string   `toml:"version" json:"version,omitempty"` // "24.05"
	Account     string   `toml:"account" json:"account,omitempty"`
	Partition   string   `toml:"partition" json:"partition,omitempty"`
	QOS         string   `toml:"qos" json:"qos,omitempty"`
	Constraint  string   `toml:"constraint" json:"constraint,omitempty"` // of features, as sbatch takes it: "gpu&hbm80g"
	GPUsPerNode int      `toml:"gpus-per-node" json:"gpusPerNode,omitempty"`
	CPUsPerNode int      `toml:"cpus-per-node" json:"cpusPerNode,omitempty"` // as Slurm counts them, hardware threads where it does
	GPURequest  string   `toml:"gpu-request" json:"gpuRequest,omitempty"`    // how a job asks for GPUs: see [GPURequests]
	MaxTime     string   `toml:"max-time" json:"maxTime,omitempty"`          // of a job: "24h"
	Options     []string `toml:"options" json:"options,omitempty"`           // further options of sbatch: "--exclusive"
}

// Paths are directories of the cluster. They may have variables in them: "${SCRATCH}/images".
type Paths struct {
	Scratch    string `toml:"scratch" json:"scratch,omitempty"`        // that all nodes see
	Images     string `toml:"images" json:"images,omitempty"`          // for images that all nodes read
	Local      string `toml:"local" json:"local,omitempty"`            // of each node
	Cache      string `toml:"cache" json:"cache,omitempty"`            // for what jobs download, that all nodes and containers see
	HomeShared *bool  `toml:"home-shared" json:"homeShared,omitempty"` // whether all nodes see the homes; nil: not known
	Stripe     string `toml:"stripe" json:"stripe,omitempty"`          // options of `lfs setstripe` for Images
}

// Container is what the runtime does with containers here.
type Container struct {
	Mounts      []string          `toml:"mounts" json:"mounts,omitempty"`            // directories of the host that every job sees
	SqshMount   string            `toml:"sqsh-mount" json:"sqshMount,omitempty"`     // how a squashfs file is mounted besides the image: see [SqshMounts]
	SlurmInside *bool             `toml:"slurm-inside" json:"slurmInside,omitempty"` // whether srun and scontrol work in a container; nil: not known
	Annotations map[string]string `toml:"annotations" json:"annotations,omitempty"`  // of environment definition files: what turns hooks on
}

// Reliability is how often the cluster breaks.
type Reliability struct {
	MTBFNode string `toml:"mtbf-node" json:"mtbfNode,omitempty"` // mean time between failures of one node: "5y"
}

// Runtime is a program that starts containers.
type Runtime string

// The runtimes.
const (
	ContainerEngine Runtime = "container-engine" // of CSCS, with EDF files
	Pyxis           Runtime = "pyxis"            // Slurm's plugin for enroot
	Enroot          Runtime = "enroot"
	Apptainer       Runtime = "apptainer" // and Singularity
	Podman          Runtime = "podman"    // podman-hpc and Docker too
	Uenv            Runtime = "uenv"
)

// What jobs are started with. Besides the runtimes there are two dialects, and sconce itself.
const (
	Sarus     = "sarus"      // the Sarus Suite, with EDF files of its own dialect
	PodmanHPC = "podman-hpc" // NERSC's podman
	Sconce    = "sconce"     // sconce run
)

// starterOf is what starts a job where a profile only says what runs containers.
var starterOf = map[Runtime]string{
	ContainerEngine: string(ContainerEngine), Pyxis: string(Pyxis), Apptainer: string(Apptainer), Podman: PodmanHPC, Uenv: string(Uenv),
}

// Starter is what jobs are started with unless they say otherwise. Where nothing is known it is sconce, which needs nothing of the cluster.
func (p Profile) Starter() string {
	if len(p.Starts) > 0 {
		return p.Starts[0]
	}
	if s := starterOf[p.Runtime]; s != "" {
		return s
	}
	return Sconce
}

// judgedAs is by which runtime images are judged that are started so.
func judgedAs(starter string) Runtime {
	switch starter {
	case Sarus, PodmanHPC:
		return Podman
	case Sconce:
		return ""
	}
	return Runtime(starter)
}

// Fabric is a kind of network.
type Fabric string

// The fabrics.
const (
	Slingshot  Fabric = "slingshot"  // HPE's, by libfabric's provider cxi
	InfiniBand Fabric = "infiniband" // by verbs
	RoCE       Fabric = "roce"       // the same over Ethernet
	EFA        Fabric = "efa"        // of AWS, by libfabric's provider efa
	Ethernet   Fabric = "ethernet"   // TCP only
)

// Words says what the machine is, in a line: "clariden: linux/arm64, GPU 9.0, container-engine".
func (p Profile) Words() string {
	var parts []string
	add := func(title, value string) {
		if value != "" {
			parts = append(parts, title+value)
		}
	}
	add("", p.Platform)
	if p.CPULevel > 0 {
		add("x86-64-v", strconv.Itoa(p.CPULevel))
	}
	add("GPU ", strings.Join(p.GPU, " "))
	add("driver ", p.Driver)
	add("glibc ", p.Glibc)
	add("", string(p.Runtime))
	add("", string(p.Fabric))
	add("MPI ", p.MPI)
	add("PMI ", p.PMI)
	line := strings.Join(parts, ", ")
	if p.Name != "" && line != "" {
		return p.Name + ": " + line
	}
	return p.Name + line
}
