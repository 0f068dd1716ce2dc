// Package cluster knows the machines that images run on: profiles, which are the one place that says what a cluster is.
package cluster

import (
	"strconv"
	"strings"
)

// Profile says what a cluster is, as far as an image has to fit it. An empty field is not known, and nothing is judged by it. What each
// field may hold is said by the table of keys: see [Keys].
type Profile struct {
	Name        string `toml:"name" json:"name,omitempty"`
	Description string `toml:"description" json:"description,omitempty"`

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
