package slurmtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// A job of two nodes with two tasks each runs, on a cluster of root and on one of an ordinary user.
func TestJob(t *testing.T) {
	for name, o := range clusters() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Start(t, o)
			out := c.Run(Alice, "srun -N2 --ntasks-per-node=2 --gpus-per-task=1 sh -c 'echo $(hostname) $SLURM_PROCID $CUDA_VISIBLE_DEVICES $(id -un)' | sort")
			if want := "n1 0 0 alice\nn1 1 1 alice\nn2 2 0 alice\nn2 3 1 alice\n"; out != want {
				t.Errorf("tasks print\n%swant\n%s", out, want)
			}
			id := strings.TrimSpace(c.Run(Alice, "sbatch -w n1 --parsable --wrap 'hostname > /shared/said' && true"))
			c.until("end the job", func() bool { return c.Run(Alice, "squeue -h -j "+id+" -o %T || true") == "" })
			if said, err := os.ReadFile(c.SharedDir + "/said"); err != nil || string(said) != "n1\n" {
				t.Errorf("the batch job wrote %q, %v", said, err)
			}
			if _, err := c.Try(Alice, "touch /usr/x"); err == nil {
				t.Error("the root of the cluster can be written to")
			}
		})
	}
}

// clusters are the ways to start one here.
func clusters() map[string]Options {
	if os.Getuid() != 0 {
		return map[string]Options{"ordinary user": {}}
	}
	return map[string]Options{"root": {}, "ordinary user": {UID: 54321, GID: 54321}}
}

// The stand-in takes the options of container plug-ins from command lines and job scripts, and no others.
func TestStandIn(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{StandIn: true})
	c.Run(Alice, "srun --container-image=/shared/x.sqsh --container-mounts=/a:/b,/c:/d --container-writable true")
	if got, want := c.Recorded(), []string{"srun --container-image=/shared/x.sqsh", "srun --container-mounts=/a:/b,/c:/d", "srun --container-writable"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	c.Run(Alice, `printf '#!/bin/sh\n#SBATCH --uenv=pytorch/v2:/user-environment --view=default\n#SBATCH --edf=torch\ntrue\n' > /shared/job.sh
		sbatch --test-only --environment=torch /shared/job.sh`)
	want := []string{"sbatch --edf=torch", "sbatch --environment=torch", "sbatch --uenv=pytorch/v2:/user-environment", "sbatch --view=default"}
	if got := c.Recorded(); !slices.Equal(slices.Compact(slices.Sorted(slices.Values(got))), want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if out, err := c.Try(Alice, "srun --container-imag=x true"); err != nil || len(c.Recorded()) != 1 {
		t.Errorf("an option may be shortened as any other: %v\n%s", err, out)
	}
	if _, err := c.Try(Alice, "srun --containers=x true"); err == nil {
		t.Error("an option that no plug-in has is accepted")
	}
}

// The cluster ends with its test.
func TestEnd(t *testing.T) {
	var pid int
	t.Run("cluster", func(t *testing.T) { pid = Start(t, Options{}).pid })
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Errorf("process %d is still there", pid)
	}
}
