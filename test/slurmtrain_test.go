package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/madetest"
	"sconce.dev/sconce/internal/slurmtest"
)

// exampleWithEnds is the program of the example, which ends: in the first job when it is warned, in the next one after five steps more. At its
// end each rank says what all of them have: the sum of their numbers, and how many different weights.
const exampleWithEnds = `import os
import sys
import torch
import torch.distributed as dist
import example

saved = torch.load(example.CHECKPOINT)["step"] if os.path.exists(example.CHECKPOINT) else 0
example.STEPS = saved + 5 if saved else 10**9

class Kept(example.DistributedDataParallel):
    def __init__(self, *args, **kwargs):
        global model
        super().__init__(*args, **kwargs)
        model = self
        open("trains-%d" % dist.get_rank(), "w").close()

def end(destroy=dist.destroy_process_group):
    ranks = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(ranks)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, weights)
    different = len({tuple(w.tolist()) for w in everybody})
    print(f"rank {dist.get_rank()} on {os.uname().nodename} by {dist.get_backend()}: sum {ranks.item():.0f}, weights {different}", flush=True)
    destroy()

example.DistributedDataParallel, dist.destroy_process_group = Kept, end
try:
    example.main()
except SystemExit as e:
    sys.stdout.flush()
    os._exit(e.code) # threads of PyTorch's now and then abort a process that takes its time to end
`

// trainingCluster is the profile of the two nodes, for training on their processors.
const trainingCluster = `runtimes = ["sconce"]
platform = "linux/amd64"
[slurm]
partition = "debug"
[env]
USE_LIBUV = "0" # which Debian's PyTorch lacks
`

// The job of examples/jobs, with PyTorch on two nodes: it is warned before its end, and saves; the job that follows goes on from there; and
// the ranks of both agree with each other.
func TestSlurmTraining(t *testing.T) {
	begin(t)
	torch, layout := madetest.TorchImage(t)
	c := slurmtest.Start(t, slurmtest.Options{})
	for to, from := range map[string]string{
		"bin/sconce": filepath.Join(workshop, "bin", "sconce"), "torch.sqsh": torch,
		"app/sconce.toml": "../examples/jobs/sconce.toml", "app/example.py": "../examples/jobs/train.py",
	} {
		to = filepath.Join(c.SharedDir, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(c.SharedDir, "torch"), os.DirFS(layout)); err != nil {
		t.Fatal(err)
	}
	writeShared(t, c, "app/train.py", exampleWithEnds)
	writeShared(t, c, "app/two.toml", trainingCluster)
	if err := os.Chmod(filepath.Join(c.SharedDir, "app"), 0o777); err != nil {
		t.Fatal(err)
	}
	out, err := c.Try(slurmtest.Alice, `cd app; id=$(sconce -q submit train --cluster two.toml --image /shared/torch.sqsh --time 20m) || exit
		queued() { until jobs=$(squeue -h); do sleep 0.1; done; [ -n "$jobs" ]; }
		until [ -e trains-0 ] && [ -e trains-1 ] || ! queued; do sleep 0.1; done
		scancel --batch --signal=USR1 "$id" # as Slurm does before the time is up, to the minute
		while queued; do sleep 0.1; done
		cat logs/train-"$id".log; echo ==; cat $(ls logs/*.log | grep -v "$id")`)
	first, next, both := strings.Cut(out, "==\n")
	if err != nil || !both {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s==\n%s", first, next)
	began, end := savedAfter(t, first)
	last, all := savedAfter(t, next)
	if end != 1_000_000_000 || last != began+5 || all != last {
		t.Errorf("the first job saved after step %d of %d, the next one after step %d of %d", began, end, last, all)
	}
	for _, log := range []string{first, next} {
		said := slices.Sorted(strings.Lines(strings.Join(regexp.MustCompile(`(?m)rank .*\n`).FindAllString(log, -1), "")))
		want := []string{"rank 0 on n1 by gloo: sum 3, weights 1\n", "rank 1 on n2 by gloo: sum 3, weights 1\n"}
		if !slices.Equal(said, want) {
			t.Errorf("the ranks say %q, want %q", said, want)
		}
	}
	kitTestsTheNetwork(t, c)
}

// kitRecipe has the kit's operations between the processors of the two nodes, with little to send.
const kitRecipe = `name = "torch"
version = "1"
base.image = "oci:/shared/torch:torch"
target.cluster = "two.toml"
[[test]]
use = "all-reduce"
nodes = 2
time = "4m"
repeat = 3
env = { USE_LIBUV = "0", SCONCE_TEST_SIZE = "1048576" }
expect = { busbw = ">= 0 GB/s" }
log = ["^all-reduce of 1048576 bytes by 2 ranks, gloo$"]
[[test]]
use = "sendrecv"
nodes = 2
time = "4m"
env = { USE_LIBUV = "0", SCONCE_TEST_SIZE = "1048576" }
log = ["^sendrecv of 1048576 bytes by 2 ranks, gloo$"]
[[test]]
use = "all-to-all"
nodes = 2
time = "4m"
env = { USE_LIBUV = "0", SCONCE_TEST_SIZE = "1048576" }
log = ["^all-to-all of 1048576 bytes by 2 ranks, gloo$"]
`

// kitTestsTheNetwork runs the kit's operations with PyTorch: the results are right, and measured.
func kitTestsTheNetwork(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	dir := filepath.Join(c.SharedDir, "kit")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	writeShared(t, c, "kit/sconce.toml", kitRecipe)
	writeShared(t, c, "kit/two.toml", trainingCluster)
	out, err := c.Try(slurmtest.Alice, `cd kit; sconce -q pull oci:/shared/torch:torch --name torch:1 && sconce test || { cat .sconce/tests/*/*; exit 1; }`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, name := range []string{"all-reduce", "sendrecv", "all-to-all"} {
		if !regexp.MustCompile(name + ` PASSED [^|]*busbw [0-9.e-]+ GB/s[^|]* n1,n2`).MatchString(words) {
			t.Errorf("%s did not pass:\n%s", name, out)
		}
	}
}

// savedAfter returns the step after which the first rank has saved, and the last there would be.
func savedAfter(t *testing.T, log string) (step, of int) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^0: saved after .*$`).FindString(log)
	if _, err := fmt.Sscanf(line, "0: saved after step %d of %d", &step, &of); err != nil {
		t.Errorf("%v: %q", err, line)
	}
	return step, of
}
