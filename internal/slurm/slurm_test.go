package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// state gives the test a state directory of its own.
func state(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	return filepath.Join(dir, "sconce", "jobs")
}

func TestRecords(t *testing.T) {
	dir := state(t)
	if all, err := Records(); err != nil || len(all) > 0 {
		t.Fatal(all, err)
	}
	if _, err := Find(""); err == nil || !strings.Contains(err.Error(), "nothing was submitted") {
		t.Error(err)
	}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, r := range []Record{{ID: "7", Name: "train"}, {ID: "8", Name: "eval", Cluster: "a/b"}, {ID: "9", Name: "train"}, {ID: "7", Name: "other", Cluster: "c"}} {
		r.Submitted = begin.Add(time.Duration(i) * time.Hour)
		if err := r.Keep(); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"x.json": "{", "y.json": `{"id":"../../etc"}`, ".new-1": `{"id":"1"}`, "z.json": strings.Repeat(" ", maxRecord+1)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Records()
	if err != nil || len(all) != 4 || all[0].Name != "other" || all[3].ID != "7" {
		t.Errorf("%+v, %v", all, err)
	}
	for what, want := range map[string]string{"": "7", "train": "9", "8": "8", "eval": "8"} {
		if r, err := Find(what); err != nil || r.ID != want {
			t.Errorf("%q is %+v, %v", what, r, err)
		}
	}
	if _, err := Find("nobody"); err == nil {
		t.Error("found")
	}
}

func TestState(t *testing.T) {
	for text, want := range map[string]State{
		"JobId=1 JobName=x JobState=RUNNING Reason=None Dependency=(null)\n":             {Name: "RUNNING"},
		"JobId=1 JobState=PENDING Reason=Resources\n":                                    {Name: "PENDING", Reason: "Resources"},
		"JobId=2 JobState=COMPLETED Reason=None\nJobId=3 JobState=RUNNING Reason=None\n": {Name: "RUNNING"},
		"JobId=2 JobState=RUNNING Reason=None\nJobId=3 JobState=COMPLETED Reason=None\n": {Name: "RUNNING"},
		"JobId=2 JobState=FAILED Reason=NonZeroExitCode\n":                               {Name: "FAILED", Reason: "NonZeroExitCode"},
		"nonsense": {Name: Gone},
	} {
		if got := parseState(text); got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
	}
	for name, want := range map[string][2]bool{"RUNNING": {}, "COMPLETED": {true, false}, "TIMEOUT": {true, true}, "NODE_FAIL": {true, true}, Gone: {true, false}, "COMPLETING": {}} {
		if s := (State{Name: name}); s.Ended() != want[0] || s.Failed() != want[1] {
			t.Errorf("%s: ended %v, failed %v", name, s.Ended(), s.Failed())
		}
	}
}

// Without Slurm the error says so. (A real one is in the tests of cmd/sconce.)
func TestWithoutSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Submit(t.Context(), ".", "x", nil); err == nil || !strings.Contains(err.Error(), "sbatch: there is no such program") {
		t.Error(err)
	}
	if _, err := StateOf(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "scontrol: there is no such program") {
		t.Error(err)
	}
}
