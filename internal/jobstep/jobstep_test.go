package jobstep

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func getter(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// Tasks of one step find the same name, tasks of another step, node or launcher another one.
func TestFind(t *testing.T) {
	slurm := map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1", "SLURM_PROCID": "0"}
	with := func(name, value string) map[string]string {
		changed := map[string]string{name: value}
		for k, v := range slurm {
			if k != name {
				changed[k] = v
			}
		}
		return changed
	}
	first, ok := Find(getter(slurm))
	if !ok || first.Launcher != "Slurm" {
		t.Fatalf("found %v, %v", first, ok)
	}
	if other, _ := Find(getter(with("SLURM_PROCID", "1"))); other != first {
		t.Errorf("another task is of step %v, not %v", other, first)
	}
	for _, c := range []string{"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME"} {
		if other, _ := Find(getter(with(c, "8"))); other == first {
			t.Errorf("with another %s the step is the same", c)
		}
	}
	for name, launcher := range map[string]string{"PMIX_RANK": "PMIx", "PMI_RANK": "PMI", "OMPI_COMM_WORLD_RANK": "Open MPI", "FLUX_TASK_RANK": "Flux", "PALS_RANKID": "PALS"} {
		if s, ok := Find(getter(map[string]string{name: "0"})); !ok || s.Launcher != launcher {
			t.Errorf("with %s the launcher is %v, %v, not %s", name, s, ok, launcher)
		}
	}
	if s, ok := Find(getter(map[string]string{"SLURM_JOB_ID": "7"})); ok {
		t.Errorf("a batch script is a task of %v", s)
	}
	if a, b := Siblings(), Siblings(); a != b || a.Name == "" {
		t.Errorf("siblings are %v and %v", a, b)
	}
}

func TestVariables(t *testing.T) {
	got := Variables([]string{"SLURM_PROCID=3", "HOME=/home/u", "RANK=3", "RANKING=1", "NCCL_DEBUG=INFO", "AWS_SECRET_ACCESS_KEY=x", "LD_LIBRARY_PATH=/opt", "PMIX_RANK=3", "odd", "=x"})
	if want := []string{"SLURM_PROCID=3", "RANK=3", "NCCL_DEBUG=INFO", "PMIX_RANK=3"}; !slices.Equal(got, want) {
		t.Errorf("passed on are %q, want %q", got, want)
	}
}

// Directories that everybody's files are in are not bound because a variable names them.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "flux"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := Directories(getter(map[string]string{
		"PMIX_SERVER_TMPDIR": dir + "/", "PMIX_SYSTEM_TMPDIR": "/tmp", "PMIX_DSTORE_ESH_BASE_PATH": "relative", "PMIX_DSTORE_21_BASE_PATH": dir + "/none",
		"FLUX_URI": "local://" + dir + "/flux/local",
	}))
	if want := []string{dir, dir + "/flux"}; !slices.Equal(got, want) {
		t.Errorf("directories %q, want %q", got, want)
	}
}

// The directory of Slurm's PMIx server is named by no variable.
func TestDirectoryOfSlurm(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{fmt.Sprintf("spmix_appdir_%d_7.0", os.Getuid()), "spmix_appdir_8.1"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		job, step, _ := strings.Cut(name[strings.LastIndex(name, "_")+1:], ".")
		got := Directories(getter(map[string]string{"SLURM_JOB_ID": job, "SLURM_STEP_ID": step, "SLURM_PMIX_TMPDIR": dir}))
		if want := []string{filepath.Join(dir, name)}; !slices.Equal(got, want) {
			t.Errorf("directories %q, want %q", got, want)
		}
	}
	for step, want := range map[string]string{"0": "PMIX_GDS_MODULE=shmem2,hash", "1": "PMIX_GDS_MODULE=hash"} {
		got := Variables([]string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=" + step, "SLURM_PMIX_TMPDIR=" + dir, "PMIX_GDS_MODULE=shmem2,hash"})
		if !slices.Contains(got, want) {
			t.Errorf("step %s has the variables %q, want %s", step, got, want)
		}
	}
}

func TestDescriptors(t *testing.T) {
	for value, want := range map[string][]int{"": nil, "11": {11}, "1": nil, "-4": nil, "x": nil} {
		if got := Descriptors(getter(map[string]string{"PMI_FD": value})); !slices.Equal(got, want) {
			t.Errorf("PMI_FD=%s gives %v, want %v", value, got, want)
		}
	}
}
