package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
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
	if all, err := Records(t.Context()); err != nil || len(all) > 0 {
		t.Fatal(all, err)
	}
	if _, err := Find(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "nothing was submitted") {
		t.Error(err)
	}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, r := range []Record{{ID: "7", Name: "train"}, {ID: "8", Name: "eval", Cluster: "a/b"}, {ID: "9", Name: "train"}, {ID: "7", Name: "other", Cluster: "c"}} {
		r.Submitted = begin.Add(time.Duration(i) * time.Hour)
		if err := r.keep(); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"x.json": "{", "y.json": `{"id":"../../etc"}`, ".new-1": `{"id":"1"}`, "z.json": strings.Repeat(" ", maxRecord+1)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Records(t.Context())
	if err != nil || len(all) != 4 || all[0].Name != "other" || all[3].ID != "7" {
		t.Errorf("%+v, %v", all, err)
	}
	for what, want := range map[string]string{"": "7", "train": "9", "8": "8", "eval": "8"} {
		if r, err := Find(t.Context(), what); err != nil || r.ID != want {
			t.Errorf("%q is %+v, %v", what, r, err)
		}
	}
	if _, err := Find(t.Context(), "nobody"); err == nil {
		t.Error("found")
	}
	for _, id := range []string{"98", "101", "99", "100"} { // at once
		if err := (Record{ID: id, Name: "many", Submitted: begin}).keep(); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := Find(t.Context(), "many"); err != nil || r.ID != "101" {
		t.Errorf("of several that were submitted at once, the newest is %q, %v", r.ID, err)
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

// Records that were begun are completed by what Slurm says of the jobs' comments, in the queue or, for jobs that it forgot, in the
// accounting. (squeue and sacct are stand-ins here; a submission that is killed, with a real queue, is in the tests of cmd/sconce.)
func TestBegun(t *testing.T) {
	dir := state(t)
	programs := t.TempDir()
	t.Setenv("PATH", programs)
	program := func(name, script string) {
		if err := tooltest.WriteProgram(filepath.Join(programs, name), []byte("#!/bin/sh\n"+script)); err != nil {
			t.Fatal(err)
		}
	}
	queued, ended, waits, never := strings.Repeat("A", 26), strings.Repeat("B", 26), strings.Repeat("C", 26), strings.Repeat("D", 26)
	now := time.Now().UTC()
	for i, r := range []Record{
		{Name: "queued", Token: queued, Submitted: now},
		{Name: "ended", Token: ended, Submitted: now.Add(-time.Hour)},
		{Name: "waits", Token: waits, Submitted: now.Add(time.Hour - forgetAfter)},
		{Name: "never", Token: never, Submitted: now.Add(-time.Hour - forgetAfter)},
		{Name: "settled", ID: "9", Token: waits[1:] + "E", Submitted: now},
		{Name: "settled", Token: waits[1:] + "E", Submitted: now},
	} {
		r.Log = fmt.Sprintf("/logs/%d-%s_*.log", i, Number)
		if err := r.keep(); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (names []string) {
		t.Helper()
		all, err := Records(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			names = append(names, r.Name+" "+r.ID)
		}
		return names
	}
	program("squeue", "exit 1\n")
	if got, want := list(), []string{"settled 9"}; !slices.Equal(got, want) {
		t.Errorf("while Slurm does not answer: %q, want %q", got, want)
	}
	program("squeue", "echo '12 why not sconce:"+queued+"'\necho 13\necho '14 (null)'\necho '9 sconce:"+waits[1:]+"E'\n")
	program("sacct", "echo '7_[1-3]|sbatch --parsable --comment=sconce:"+ended+" /x.sbatch'\n")
	for range 2 { // and the second time, by the files alone
		if got, want := list(), []string{"queued 12", "settled 9", "ended 7"}; !slices.Equal(got, want) && !slices.Equal(got, []string{"settled 9", "queued 12", "ended 7"}) {
			t.Errorf("listed are %q, want %q", got, want)
		}
	}
	if r, err := Find(t.Context(), "ended"); err != nil || r.Log != "/logs/1-7_*.log" {
		t.Errorf("the log of the job that ended is %q, %v", r.Log, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, begunPrefix+"*"))
	if want := filepath.Join(dir, begunPrefix+waits+".json"); err != nil || !slices.Contains(files, want) || slices.Contains(files, filepath.Join(dir, begunPrefix+never+".json")) {
		t.Errorf("these are begun: %q, %v, want %q", files, err, want)
	}
}

// Without Slurm the error says so. (A real one is in the tests of cmd/sconce.)
func TestWithoutSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Submit(t.Context(), Record{Script: os.DevNull}, nil); err == nil || !strings.Contains(err.Error(), "sbatch: there is no such program") {
		t.Error(err)
	}
	if _, err := StateOf(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "scontrol: there is no such program") {
		t.Error(err)
	}
}
