package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/slurmtest"
)

const testRecipe = `name = "tiny"
version = "1"
base.image = "debian:12"
target.cluster = "two"

[[test]]
name = "good"
run = "cat words/word; echo rate = 5 GB/s"
files = ["words"]
repeat = 3
expect = { rate = ">= 90%" }
log = ["^open sesame$"]

[[test]]
name = "ranks"
run = "echo rank $RANK of $WORLD_SIZE at $SLURMD_NODENAME; echo rate = $((10 + RANK)) it/s"
nodes = 2
tasks-per-node = 2
expect = { rate = ">= 10 it/s" }
log = ["^rank 0 of 4 at n1$", "^rank 3 of 4 at n2$"]

[[test]]
name = "silent"
run = "echo all is well"
expect = { rate = ">= 1 it/s" }

[[test]]
name = "slow-node"
run = "if [ $SLURMD_NODENAME = n1 ]; then echo rate = 1 GB/s; else echo rate = 5 GB/s; fi"
expect = { rate = "5 GB/s ± 5%" }

[[test]]
name = "bad-everywhere"
run = "echo rate = 1 GB/s; exit 3"
nodes = 2
expect = { rate = ">= 1 GB/s" }

[[test]]
name = "hangs"
run = "echo rate = 1 GB/s; echo up > /shared/up-$RANK; sleep 1000"
nodes = 2
expect = { rate = ">= 1 GB/s" }

[[test]]
name = "waits"
run = "echo up > /shared/up-$RANK; until [ -e /shared/go-on ]; do sleep 0.1; done; echo rate = 1 GB/s"
expect = { rate = ">= 1 GB/s" }

[[test]]
name = "secret"
run = "echo length = ${#TOKEN}"
env = { TOKEN = "${MY_TOKEN}" }
expect = { length = "12 ± 0%" }

[[test]]
name = "hostile"
run = "(echo id >> ../../job.sbatch) 2>&1; (echo 0 0 > ../run-1.end.new) 2>&1; (echo > ../../done) 2>&1; echo mine > own; cat own; echo all is well"
log = ["^mine$", "job.sbatch: Read-only", "run-1.end.new: Read-only", "done: Read-only", "^all is well$"]

[[test]]
name = "later"
run = "false"
log = ["never"]
skip = "waits for a driver"

[[test]]
name = "elsewhere"
run = "false"
log = ["never"]
clusters = ["other"]
`

const testProfile = `name = "two"
runtimes = ["sconce"]
platform = "linux/amd64"

[paths]
images = "/shared/images"

[container]
mounts = ["/shared"]

[slurm]
partition = "debug"
max-time = "30m"

[reference]
"good.rate" = "5 GB/s"
`

// testCluster is submitCluster with the tests of a recipe.
func testCluster(t *testing.T) *slurmtest.Cluster {
	t.Helper()
	c := submitCluster(t)
	for name, text := range map[string]string{"app/sconce.toml": testRecipe, "app/clusters/two.toml": testProfile, "app/words/word": "open sesame\n"} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	c.Run(slurmtest.Alice, "ln -s sh rootfs/bin/cat && sconce pull dir:rootfs --platform linux/amd64 --name tiny:1")
	return c
}

// testImage runs `sconce test` and returns what it says of each test, its stderr and its exit code.
func testImage(t *testing.T, c *slurmtest.Cluster, before, args string) (map[string]imagetest.Result, string, string) {
	t.Helper()
	out := c.Run(slurmtest.Alice, "cd app; "+before+" sconce test --json "+args+" > /tmp/out 2> /tmp/err; echo $? > /tmp/code; cat /tmp/code /tmp/out; echo; cat /tmp/err >&2")
	code, out, _ := strings.Cut(out, "\n")
	var results []imagetest.Result
	d := json.NewDecoder(strings.NewReader(out))
	if err := d.Decode(&results); err != nil && strings.HasPrefix(strings.TrimSpace(out), "[") {
		t.Fatalf("%v:\n%s", err, out)
	}
	byName := map[string]imagetest.Result{}
	for _, r := range results {
		byName[r.Test] = r
	}
	return byName, out, code
}

func wantVerdict(t *testing.T, r imagetest.Result, v imagetest.Verdict, reason string, nodes, suspects []string) {
	t.Helper()
	if r.Verdict != v || !strings.Contains(r.Reason, reason) || !slices.Equal(r.Nodes, nodes) || !slices.Equal(r.Suspects, suspects) {
		t.Errorf("%s is %s (%s) on %v, suspects %v; want %s (%s) on %v, suspects %v", r.Test, r.Verdict, r.Reason, r.Nodes, r.Suspects, v, reason, nodes, suspects)
	}
}

// All tests of an image are one job; a test that fails runs again elsewhere, which tells the image from the node.
func TestImageTests(t *testing.T) {
	c := testCluster(t)
	n1, both := []string{"n1"}, []string{"n1", "n2"}
	results, out, code := testImage(t, c, "MY_TOKEN=hunter2hunte", "--only good --only ranks --only silent --only slow-node --only bad-everywhere --only secret --only hostile --only later")
	if code != "3" || len(results) != 8 {
		t.Errorf("exit code %s\n%s", code, out)
	}
	wantVerdict(t, results["good"], imagetest.Passed, "", n1, nil)
	wantVerdict(t, results["ranks"], imagetest.Passed, "", both, nil)
	wantVerdict(t, results["secret"], imagetest.Passed, "", n1, nil)
	wantVerdict(t, results["hostile"], imagetest.Passed, "", n1, nil) // although the profile mounts all that is around it
	wantVerdict(t, results["silent"], imagetest.Failed, "it printed no number (on n2, and before on n1)", both, nil)
	wantVerdict(t, results["slow-node"], imagetest.Warned, "passed on n2, and failed on n1, which may be at fault: rate is 1 GB/s, expected 5 GB/s ± 5%", both, n1)
	wantVerdict(t, results["bad-everywhere"], imagetest.Failed, "there are no other nodes to try", both, nil)
	wantVerdict(t, results["later"], imagetest.Skipped, "waits for a driver", nil, nil)
	good := results["good"]
	if m := good.Measurements; len(m) != 1 || m[0].Name != "rate" || m[0].Value != 5 || m[0].Unit != "GB/s" || len(m[0].Runs) != 3 || m[0].Reference != "5 GB/s" || m[0].Met == nil || !*m[0].Met {
		t.Errorf("measured %+v", m)
	}
	if good.Cluster != "two" || len(good.Hash) != 64 || !strings.HasPrefix(good.ImageDigest, "sha256:") || good.Log.Size == 0 || len(good.Log.SHA256) != 64 || good.Started.IsZero() {
		t.Errorf("the result lacks something: %+v", good)
	}
	if jobs := c.Run(slurmtest.Alice, "ls -d app/.sconce/tests/*/job | wc -l"); jobs != "2\n" {
		t.Errorf("%s jobs, want one, and one for the tests that failed on n1", jobs)
	}
	if found, err := c.Try(slurmtest.Alice, "grep -rl hunter2 app/.sconce /home/alice/.local/state"); err == nil {
		t.Errorf("the secret is in %s", found)
	}

	out, _ = c.Try(slurmtest.Alice, "cd app; sconce test --only slow-node; echo code $?")
	wantIn(t, out, "slow-node WARNED", "rate 5 GB/s", "n1,n2", "which may be at fault", "code 0")
	out, _ = c.Try(slurmtest.Alice, "cd app; sconce test --only goood; echo code $?; sconce test --only elsewhere; echo code $?; sconce test --only later; echo code $?")
	wantIn(t, out, `there is no test "goood"`, `did you mean "good"?`, "code 2", "is for other, and not for two", "SKIPPED", "code 4")

	// A job that would wait forever is cancelled.
	out, _ = c.Try(slurmtest.Alice, "cd app; sed -i.old /max-time/d clusters/two.toml; sconce test --only good; echo code $?; mv clusters/two.toml.old clusters/two.toml; squeue -h")
	wantIn(t, out, "good NOT_JUDGED", "ended as CANCELLED (PartitionTimeLimit)", "code 4")

	// In an allocation, and without Slurm.
	out, _ = c.Try(slurmtest.Alice, "cd app; salloc -Q -N2 --ntasks-per-node=2 sconce test --only good --only ranks --only slow-node; echo code $?; squeue -h")
	wantIn(t, out, "good PASSED", "ranks PASSED", "slow-node WARNED", "code 0")
	writeText(t, filepath.Join(c.SharedDir, "here/sconce.toml"), hereRecipe)
	out, _ = c.Try(slurmtest.Alice, "cd here; sconce test --here; echo code $?; sconce test --here --only ranks; echo code $?")
	wantIn(t, out, "ranks PASSED", "silent FAILED", "code 3", "code 0")
}

const hereRecipe = `name = "tiny"
version = "1"
base.image = "debian:12"

[[test]]
name = "ranks"
run = "echo rank $RANK of $WORLD_SIZE; echo rate = 1 it/s; : > /dev/shm/seen-$RANK; until [ -e /dev/shm/seen-0 ] && [ -e /dev/shm/seen-1 ]; do :; done"
nodes = 2
expect = { rate = ">= 1 it/s" }
log = ["^rank 0 of 2$", "^rank 1 of 2$"]

[[test]]
name = "silent"
run = "echo all is well; [ $RANK = 0 ] || sleep 1000; exit 5"
tasks-per-node = 2
expect = { rate = ">= 1 it/s" }
`

// wantIn wants texts in another, however wide the columns of a table are.
func wantIn(t *testing.T, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%s\nlacks %q", out, want)
		}
	}
}

// What did not run to its end is not judged; what was submitted is found again.
func TestImageTestsAreLost(t *testing.T) {
	c := testCluster(t)
	ready := func(ranks ...int) string {
		script := ""
		for _, r := range ranks {
			script += fmt.Sprintf("until [ -e /shared/up-%d ]; do sleep 0.05; done; ", r)
		}
		return script
	}
	lost := func(what, does, reason string) {
		t.Helper()
		out, err := c.Try(slurmtest.Alice, "cd app; rm -f /shared/up-*; sconce test --only hangs > /tmp/out 2>&1 & client=$!; "+ready(0, 1)+does+"; wait $client; echo code $?; cat /tmp/out")
		if err != nil || !strings.Contains(out, "code 4") || !strings.Contains(out, "NOT_JUDGED") || !strings.Contains(out, reason) {
			t.Errorf("%s: %v\n%s\nwant %q", what, err, out, reason)
		}
	}
	lost("a job that is cancelled", "scancel -u alice", "ended as CANCELLED")
	c.Run(slurmtest.Alice, "rm -f up-*")
	done := make(chan string)
	go func() {
		out, _ := c.Try(slurmtest.Alice, "cd app; sconce test --only hangs 2>&1; echo code $?")
		done <- out
	}()
	if out, err := c.Try(c.Admin(), ready(0, 1)+"scontrol update nodename=n2 state=down reason=fire"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out := <-done; !strings.Contains(out, "NOT_JUDGED") || !strings.Contains(out, "ended as NODE_FAIL") && !strings.Contains(out, "the node n2 failed") || !strings.Contains(out, "code 4") {
		t.Errorf("a node that dies:\n%s", out)
	}
	_, _ = c.Try(c.Admin(), "scontrol update nodename=n2 state=resume") // unless its slurmd has told already that it is well
	c.WaitUntilIdle()

	// A client that is killed, and one that waits no longer, leave the job to the next.
	out := c.Run(slurmtest.Alice, `cd app; rm -f /shared/up-*
		sconce test --only waits > /dev/null 2>&1 & client=$!
		`+ready(0)+`kill -9 $client; wait $client
		sconce test --only waits --wait 1s; echo code $?
		touch /shared/go-on
		mkdir ../other && cp -r sconce.toml clusters words ../other && cd ../other
		sconce test --only waits 2>&1; echo code $?
		sconce jobs --json | grep -c sconce-test-tiny-1`)
	wantIn(t, out, "code 4", "was submitted before", "waits PASSED", "code 0")
	if n := c.Run(slurmtest.Alice, "ls -d app/.sconce/tests/*/job other/.sconce/tests/*/job 2> /dev/null | wc -l"); n != "2\n" {
		t.Errorf("%s jobs, want that which hung and that which waited:\n%s", n, out)
	}
	// Collected, it is not collected again.
	out = c.Run(slurmtest.Alice, "cd app; sconce test --only waits --detach 2>&1; sconce test --only waits 2>&1; echo code $?")
	if !strings.Contains(out, "submitted job") || !strings.Contains(out, "was submitted before") || !strings.Contains(out, "code 0") {
		t.Errorf("--detach:\n%s", out)
	}
}
