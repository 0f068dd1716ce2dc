package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/slurmtest"
)

// A submission that is killed, at each of its events, leaves image and script under their names whole or not at all; the next one submits a
// job that runs.
func TestSubmitKilledAnywhere(t *testing.T) {
	c := submitCluster(t)
	left := map[string]map[string]string{} // by what was going on, and by file
	for step := 1; ; step++ {
		during := killSubmit(t, c, step)
		if during == "" {
			break
		}
		left[during] = submitted(t, c)
	}
	doing := slices.Sorted(maps.Keys(left))
	t.Logf("killed at %q", doing)
	if len(doing) < 2 { // what was done before a kill need not be done again
		t.Errorf("the kills hit only %q", doing)
	}
	if out := c.Run(slurmtest.Alice, "cd app && sconce submit hello --nodes 1 --wait && sconce logs hello"); !strings.Contains(out, "0: rank 0 of 1 says\n") {
		t.Errorf("after the kills a job prints\n%s", out)
	}
	whole := submitted(t, c)
	if len(whole) != 2 {
		t.Errorf("image and script are %q", slices.Collect(maps.Keys(whole)))
	}
	for during, files := range left {
		for name, text := range files {
			if text != whole[name] {
				t.Errorf("killed at the %s, there were %d bytes in %s, of %d", during, len(text), name, len(whole[name]))
			}
		}
	}
}

// A submission that is killed when Slurm has the job and nobody its number is listed, and can be cancelled by its name; one that is killed
// before is not. The job's own comment stays.
func TestSubmitKilledAtSbatch(t *testing.T) {
	c := submitCluster(t)
	const app = "cd app && "
	kill := func(name, how, job string) {
		t.Helper()
		writeText(t, filepath.Join(c.SharedDir, "bin", "sbatch"), "#!/bin/sh\n"+how)
		if out, err := c.Try(slurmtest.Alice, app+"sconce submit "+job); err == nil {
			t.Errorf("killed %s: %s", name, out)
		}
		if err := os.Remove(filepath.Join(c.SharedDir, "bin", "sbatch")); err != nil {
			t.Fatal(err)
		}
	}
	kill("before", "kill -9 $PPID\n", "hello")
	if out := c.Run(slurmtest.Alice, app+"sconce jobs"); !strings.Contains(out, "nothing was submitted from here") {
		t.Errorf("killed before Slurm has the job:\n%s", out)
	}
	kill("behind", "/usr/bin/sbatch \"$@\" > /shared/number; kill -9 $PPID\n", "sleeps")
	id := strings.TrimSpace(c.Run(slurmtest.Alice, "cat number"))
	for range 2 { // found in the queue, and then in the record
		if out := c.Run(slurmtest.Alice, app+"sconce jobs"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "\n"+id+" ") || !strings.Contains(out, "/shared/app/sleeps-"+id+".log") {
			t.Errorf("killed when Slurm has job %s:\n%s", id, out)
		}
	}
	if out := c.Run(slurmtest.Alice, "squeue -h -o %k -j "+id); !strings.HasPrefix(out, "of mine, 1st sconce:") {
		t.Errorf("the job's comment is %q", out)
	}
	if out := c.Run(slurmtest.Alice, app+"sconce cancel sleeps"); !strings.Contains(out, "cancelled job "+id) {
		t.Error(out)
	}
}

// submitted are the files that submissions have written, whole under their names as they ought to be, by name.
func submitted(t *testing.T, c *slurmtest.Cluster) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{"images/sha256-*", "app/.sconce/hello-*"} {
		names, err := filepath.Glob(filepath.Join(c.SharedDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(data)
		}
	}
	return files
}

// killSubmit starts a submission and kills it when it has told its step-th event, which is returned: "" when there are fewer.
func killSubmit(t *testing.T, c *slurmtest.Cluster, step int) (during string) {
	t.Helper()
	cmd := c.Command(slurmtest.Alice, "sh", "-c", "cd app && echo $$ > ../pid && exec sconce --progress json submit hello --nodes 1")
	lines := childtest.Start(t, cmd, &cmd.Stderr)
	for lines.Scan() {
		var e struct{ Kind, Verb string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if e.Kind == "progress" {
			continue
		}
		if step--; step == 0 {
			during = strings.TrimSpace(e.Kind + " of " + e.Verb)
			c.Run(slurmtest.Alice, "kill -9 $(cat pid) || true") // after the last event it may just have ended
		}
	}
	if err := cmd.Wait(); during == "" && err != nil {
		t.Fatal(err)
	}
	return during
}
