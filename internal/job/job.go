// Package job writes the files by which an image runs as a job on a cluster: environment definition files, scripts for sbatch and
// arguments for srun.
//
// It is text from plain data: what is known of the image, the cluster's profile and the job. Nothing is looked up and nothing runs, so
// that the same data gives the same text. The text is based on its own: it says why each line is there, needs no sconce where it is used,
// and is sealed, so that a file that somebody has edited is told from one that may be written again (see [Seal]).
//
// A script has the same parts for every runtime, see sbatch.go; how a runtime is started is in runtime.go. What was found out about
// Slurm, PyTorch and the runtimes is said where it is used.
package job

import (
	"cmp"
	"strings"

	"sconce.dev/sconce/internal/cluster"
)

// Job is a job as a recipe describes it. What is empty is the cluster's, or Slurm's own. What each field may hold is said by the recipe's
// table of keys.
type Job struct {
	Nodes      int               `toml:"nodes"`
	Time       string            `toml:"time"`     // "4h", or as Slurm writes it
	Launcher   string            `toml:"launcher"` // "srun" or "torchrun"
	Command    string            `toml:"command"`  // of the shell
	Workdir    string            `toml:"workdir"`
	Mounts     []string          `toml:"mounts"` // SRC[:DST[:ro]]
	Env        map[string]string `toml:"env"`
	Venv       string            `toml:"venv"` // a directory, or FILE.sqsh[:DIR]
	Uenv       string            `toml:"uenv"` // a label or a file
	View       string            `toml:"view"` // of it
	Checkpoint Checkpoint        `toml:"checkpoint"`
	Continue   string            `toml:"continue"` // "chain", "requeue" or "no"
	WarnBefore string            `toml:"warn-before"`
	Array      string            `toml:"array"`
	Dependency string            `toml:"dependency"`
	Runtime    string            `toml:"runtime"` // one of cluster.Starters

	TasksPerNode int  `toml:"tasks-per-node"`
	CPUsPerTask  int  `toml:"cpus-per-task"`
	GPUsPerNode  *int `toml:"gpus-per-node"` // nil: the cluster's

	Account     string   `toml:"account"`
	Partition   string   `toml:"partition"`
	QOS         string   `toml:"qos"`
	Constraint  string   `toml:"constraint"`
	Reservation string   `toml:"reservation"`
	Logs        string   `toml:"logs"`    // directory, from where the job is submitted
	Options     []string `toml:"options"` // of sbatch
}

// venvParts takes apart where the virtual environment is: FILE.sqsh[:DIR], or a directory.
func (j Job) venvParts() (source, target string, given bool) { return strings.Cut(j.Venv, ":/") }

// VenvSource is the directory of the virtual environment, or its packed file; "" when the job has none.
func (j Job) VenvSource() string {
	source, _, _ := j.venvParts()
	return source
}

// Checkpoint is what saving the state of a training costs.
type Checkpoint struct {
	Takes string `toml:"takes"` // "90s"
}

// The launchers, and what happens when the time is up.
const (
	Srun     = "srun"     // a process for each GPU, all by srun
	Torchrun = "torchrun" // a process for each node, which starts those of its GPUs

	Chain   = "chain"   // the next job is submitted
	Requeue = "requeue" // the same job is queued again
	No      = "no"
)

// The values of keys with a fixed choice.
var (
	Launchers = []string{Srun, Torchrun}
	Continues = []string{Chain, Requeue, No}
)

// Image is what is known of an image that a job runs. An empty field is not known.
type Image struct {
	Name      string // for people: "llm-train:25.11"
	File      string // where the cluster's nodes read it; variables are allowed
	Reference string // in a registry
	Arch      string // Go's name: "arm64"
	Workdir   string // of its configuration
	Put       string // the command that puts File there: "sconce build -o FILE"
	CUDA      int    // major version of its CUDA libraries
	Cudart    Known  // whether it has a libcudart.so without a version
	Musl      bool   // its C library is musl
	NoBash    bool
}

// Known is what may not be known.
type Known int

// Its values.
const (
	Unknown Known = iota
	Yes
	Nope
)

// Request is everything that files are written from.
type Request struct {
	Name    string // of the job: "train"
	Job     Job
	Image   Image
	Cluster cluster.Profile
	Runtime string   // before what the job and the cluster say
	EDF     string   // the name or path by which srun finds the environment definition file; "" is [Request.EDFName]
	Sees    []string // mounts above all others, in place of the directory that the job is submitted from; nil: that directory
	From    string   // what the files are written again with: "sconce export sbatch --job train"
}

// EDFName is the name of the job's environment definition file, without its ending.
func (r Request) EDFName() string {
	name, _, _ := strings.Cut(r.Image.Name, ":")
	if name = fileName(name); r.Name != "" && r.Name != name {
		name += "-" + r.Name
	}
	return name
}

// starter is what starts the image.
func (r Request) starter() string { return cmp.Or(r.Runtime, r.Job.Runtime, r.Cluster.Starter()) }

// MountsUenv reports whether the image is mounted as a uenv.
func (r Request) MountsUenv() bool { return r.starter() == uenv }

// StartsFiles reports whether the runtime starts images from files, rather than by their names in a registry.
func (r Request) StartsFiles() bool {
	starter := r.starter()
	return starter != cluster.Sarus && starter != cluster.PodmanHPC
}

// imageExt is how the files of a runtime's images end.
var imageExt = map[string]string{apptainer: ".sif", uenv: ".squashfs"}

// DefaultFile is where nodes read the image when nobody says where: in the cluster's directory of images, else where the job is submitted
// from.
func (r Request) DefaultFile() string {
	starter := r.starter()
	if starter == uenv && r.Job.Uenv != "" {
		return ""
	}
	return cmp.Or(r.Cluster.Paths.Images, here) + "/" + fileName(r.Image.Name) + cmp.Or(imageExt[starter], ".sqsh")
}

// ReadsEDF reports whether the runtime reads an environment definition file.
func (r Request) ReadsEDF() bool {
	starter := r.starter()
	return starter == containerEngine || starter == cluster.Sarus
}

// LogName is the name of the log of the job with a number, in its directory; for an array a pattern.
func (r Request) LogName(id string) string {
	name := fileName(r.Name) + "-" + id
	if r.Job.Array != "" {
		name += "_*"
	}
	return name + ".log"
}
