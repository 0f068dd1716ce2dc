// Package jobstep is about processes that a launcher (srun, mpiexec, flux run) starts side by side, the tasks of one step of a job: which
// step a process belongs to, what of its environment is the step's, and how the tasks of a machine find each other to stand on one root
// file system.
//
//	jobstep.go  the step, its variables, what they name     meet.go  tasks find the keeper, or become it
//	                                                        keep.go  the keeper's side
package jobstep

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Step is a step of a job, as a task sees it.
type Step struct {
	Launcher string // "Slurm", for people
	Name     string // the same in all tasks of a machine, and in those of no other step
}

// launchers are how tasks know their launcher: by a variable that each task has. The others tell steps of one user apart, as far as they
// are set.
var launchers = []struct {
	name string
	task string
	step []string
}{
	{"Slurm", "SLURM_STEP_ID", []string{"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_HET_GROUP_ID", "SLURMD_NODENAME"}},
	{"Flux", "FLUX_TASK_RANK", []string{"FLUX_URI", "FLUX_JOB_ID"}},
	{"PALS", "PALS_RANKID", []string{"PALS_APID", "PALS_NODEID"}},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}},
	{"PMIx", "PMIX_RANK", []string{"PMIX_NAMESPACE"}},
	{"PMI", "PMI_RANK", []string{"PMI_JOBID", "PMI_ID_STRING", "PMI_PORT"}},
}

// Find returns the step that this process is a task of, by its variables.
func Find(get func(name string) string) (Step, bool) {
	for _, l := range launchers {
		if get(l.task) == "" {
			continue
		}
		parts := []string{l.name, machine()}
		for _, v := range l.step {
			parts = append(parts, get(v))
		}
		if l.name != "Slurm" && l.name != "Flux" && l.name != "PALS" {
			parts = append(parts, siblings()) // the names of others may be used again
		}
		return Step{l.name, strings.Join(parts, "/")}, true
	}
	return Step{}, false
}

// Siblings is the step of all processes that the parent of this one has started, where no launcher says more.
func Siblings() Step {
	return Step{"this process's parent", strings.Join([]string{"parent", machine(), siblings()}, "/")}
}

func machine() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// siblings tells the children of one process from those of another, also when process ids come round again: proc_pid_stat(5), field 22,
// is when it started.
func siblings() string {
	parent := os.Getppid()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(parent), "stat"))
	if err != nil {
		return strconv.Itoa(parent)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const start = 22 - 3 // after the name, which is field 2
	if len(fields) <= start {
		return strconv.Itoa(parent)
	}
	return strconv.Itoa(parent) + "@" + fields[start]
}

// prefixes begin the names of variables by which launchers, process managers, MPI libraries and PyTorch's tell tasks what they are, and
// by which users tune communication. A job that sets one means its processes, in an image or not.
var prefixes = []string{
	"SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "PALS_", "FLUX_", "OMPI_", "PRTE_", "PRRTE_", "MPI_", "MPICH_", "MPIR_", "MV2_", "I_MPI_", "HYDRA_", "HYDI_",
	"UCX_", "UCC_", "FI_", "NCCL_", "RCCL_", "NVSHMEM_", "GLOO_", "TORCH_NCCL_", "TORCHELASTIC_", "TORCH_FR_", "OMP_", "KMP_", "GOMP_",
}

// names are further variables of that kind.
var names = []string{
	"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "NODE_RANK",
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
}

// Variables returns those of an environment, as KEY=VALUE, that are the step's rather than the machine's. One is changed: where the memory
// that Slurm's PMIx server shares with tasks is not found, PMIx is told to do without (gds/hash), since MPI_Init fails in a task that cannot open it.
func Variables(environ []string) []string {
	get := func(name string) string {
		for _, kv := range environ {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value
			}
		}
		return ""
	}
	var list []string
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if name == "PMIX_GDS_MODULE" && strings.Contains(value, "shmem") && get("SLURM_STEP_ID") != "" {
			if _, ok := slurmClients(get); !ok {
				kv = name + "=hash"
			}
		}
		if slices.Contains(names, name) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			list = append(list, kv)
		}
	}
	return list
}

// directories are variables that name one in which a process manager keeps sockets and files for tasks, as servers of OpenPMIx set them.
// FLUX_URI is the path of a socket, after "local://".
var directories = []string{"PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR", "PMIX_DSTORE_ESH_BASE_PATH", "PMIX_DSTORE_21_BASE_PATH", "FLUX_URI", "FLUX_JOB_TMPDIR"}

// common are directories that everybody's files are in: they are bound when the user says so, and never because a variable names them.
var common = []string{"/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run", "/home", "/root", "/usr", "/etc"}

// Directories returns directories of this machine that a task needs to talk to its process manager, each once and all absolute.
func Directories(get func(name string) string) []string {
	var list []string
	for _, name := range directories {
		dir := get(name)
		if uri, ok := strings.CutPrefix(dir, "local://"); ok {
			dir = filepath.Dir(uri)
		}
		if !filepath.IsAbs(dir) || slices.Contains(common, filepath.Clean(dir)) {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			list = append(list, filepath.Clean(dir))
		}
	}
	if dir, ok := slurmClients(get); ok {
		list = append(list, dir)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// slurmClients returns the directory in which Slurm's PMIx server keeps memory that it shares with the tasks of a step (gds/shmem2), of
// which no variable tells: Slurm, src/plugins/mpi/pmix/pmixp_info.c, cli_tmpdir. Older ones have no user in its name.
func slurmClients(get func(name string) string) (string, bool) {
	step := get("SLURM_JOB_ID") + "." + get("SLURM_STEP_ID")
	for _, above := range []string{get("SLURM_PMIX_TMPDIR"), get("PMIX_SYSTEM_TMPDIR"), "/tmp"} {
		for _, owner := range []string{strconv.Itoa(os.Getuid()) + "_", ""} {
			dir := filepath.Join(above, "spmix_appdir_"+owner+step)
			if info, err := os.Stat(dir); err == nil && info.IsDir() && filepath.IsAbs(dir) {
				return dir, true
			}
		}
	}
	return "", false
}

// Descriptors returns the open files of this process by which a process manager talks to it: PMI 1 and 2 hand a task a socket, whose
// number is in PMI_FD.
func Descriptors(get func(name string) string) []int {
	fd, err := strconv.Atoi(get("PMI_FD"))
	if err != nil || fd < 3 {
		return nil
	}
	return []int{fd}
}
