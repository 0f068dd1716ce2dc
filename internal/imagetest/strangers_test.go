package imagetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/slurm"
	"sconce.dev/sconce/internal/tooltest"
)

// hostile is a batch in whose directory others have written.
func hostile(t *testing.T, write map[string]string) (*batch, Plan, Options) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	o := Options{Root: t.TempDir(), Unkept: t.TempDir(), Say: t.Logf}
	p := Plan{
		Place: Submitted, Image: job.Image{Name: "x:1"}, ImageDigest: "sha256:1", Recipe: t.TempDir(),
		Tests: []Test{{Name: "bench", Run: "bench", Log: []string{"."}}},
	}
	b, err := newBatch(p, 1, nil, o.Root)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range write {
		path := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return b, p, o
}

// What lies in the place of a log is a log, or the test has failed: a link is not followed, and nobody waits for the writer of a pipe.
func TestCollectOnlyFiles(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(log string) error{
		"a link":      func(log string) error { return os.Symlink(secret, log) },
		"a link here": func(log string) error { return os.Symlink("run-1.end", log) },
		"a pipe":      func(log string) error { return syscall.Mkfifo(log, 0o666) },
		"a directory": func(log string) error { return os.Mkdir(log, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			b, _, _ := hostile(t, map[string]string{"done": "7\n", "1/nodes": "1700000000 n1\n", "1/run-1.end": "0 8\n"})
			if err := put(filepath.Join(b.dir, "1/log")); err != nil {
				t.Fatal(err)
			}
			outcomes, err := b.collect(slurm.State{Name: "COMPLETED"}, "7")
			if err != nil {
				t.Fatal(err)
			}
			if r := b.result(0, outcomes[0]); r.Verdict != Failed || !strings.Contains(r.Reason, "is not a regular file") || r.Log.File != "" {
				t.Errorf("%s (%s), with the log %q", r.Verdict, r.Reason, r.Log.File)
			}
		})
	}
}

// What a repository brings along in .sconce names no job of this user's, and is no result: neither would be collected, and signed.
func TestBroughtAlong(t *testing.T) {
	b, p, o := hostile(t, map[string]string{"job": "7\n", "started": "7\n"})
	results, err := json.Marshal([]Result{{Test: "bench", Hash: b.hashes[0], ImageDigest: p.ImageDigest, Verdict: Passed, Log: Log{File: "/etc/passwd"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"unkept.json", "results.json"} {
		if err := os.WriteFile(filepath.Join(b.dir, name), results, 0o644); err != nil {
			t.Fatal(err)
		}
		if c, err := p.unkept(o, b.hashes); err != nil || len(c.found) > 0 {
			t.Errorf("%s is believed: %+v, %v", name, c, err)
		}
		if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	programs := t.TempDir()
	t.Setenv("PATH", programs)
	if err := tooltest.WriteProgram(filepath.Join(programs, "squeue"), []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	if id, err := b.find(t.Context()); id != "" || err != nil {
		t.Errorf("job %q is this user's, %v", id, err)
	}
}

// An image sees the directory of the job read-only, over all that the cluster's profile mounts, and may write to its own files alone.
func TestSees(t *testing.T) {
	for _, runtime := range []string{"pyxis", "apptainer", "sconce", "container-engine"} {
		b, _, _ := hostile(t, nil)
		b.Cluster = cluster.Profile{Name: "two", Starts: []string{runtime}, Container: cluster.Container{Mounts: []string{"/scratch"}}}
		text := ""
		var err error
		if r := b.request(0, b.Tests[0]); r.ReadsEDF() {
			text, err = job.EDF(r)
		} else {
			text, err = b.script()
		}
		if err != nil {
			t.Fatal(err)
		}
		if runtime == "apptainer" && !strings.Contains(text, `--home="${PWD}/1/files"`) {
			t.Errorf("apptainer mounts the user's home:\n%s", text)
		}
		at := -1
		for _, want := range []string{"/scratch:/scratch", "${PWD}:${PWD}:ro", "${PWD}/1/files:${PWD}/1/files"} {
			i := strings.Index(text, want)
			if i <= at {
				t.Errorf("%s: %q is not there, behind the mount before:\n%s", runtime, want, text)
			}
			at = i
		}
		if strings.Contains(strings.ReplaceAll(text, "${PWD}:${PWD}:ro", ""), "${PWD}:${PWD}") {
			t.Errorf("%s: the directory of the job can be written:\n%s", runtime, text)
		}
	}
}

// The script's own files go through no link, and leave what is there alone when they cannot be written.
func TestPut(t *testing.T) {
	bash := tooltest.Path(t, "bash")
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	for _, err := range []error{
		os.WriteFile(victim, []byte("mine\n"), 0o600), os.Symlink(victim, filepath.Join(dir, "a.new")), os.Symlink(victim, filepath.Join(dir, "b")),
		os.Symlink(filepath.Dir(victim), filepath.Join(dir, "c")), syscall.Mkfifo(filepath.Join(dir, "d.new"), 0o666), os.Mkdir(filepath.Join(dir, "e"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), bash, "-c", putFunction+"\ncd "+quote.Word(dir)+"; for f in a b c d e; do put $f 'text of '$f; done; cat a b c d").CombinedOutput()
	if want := "text of a\ntext of b\ntext of c\ntext of d\n"; err != nil || !strings.HasSuffix(string(out), want) {
		t.Errorf("%v:\n%swant\n%s", err, out, want)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "mine\n" {
		t.Errorf("what a link led to is %q now, %v", text, err)
	}
}
