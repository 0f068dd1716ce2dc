package joblog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/joblog"
	"sconce.dev/sconce/internal/lint"
)

// ids lists what was found in a text, in order.
func ids(t *testing.T, log string) []string {
	t.Helper()
	found, err := joblog.Explain(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range found {
		all = append(all, f.ID)
	}
	return all
}

// lines reads a file of "ID: line"; # begins a comment.
func lines(t *testing.T, file string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		id, text, _ := strings.Cut(line, ": ")
		all[id] = append(all[id], text)
	}
	return all
}

// Each cause is known by what the programs print, alone and behind the rank that srun --label puts in front, and not by a line that
// is only like it.
func TestLines(t *testing.T) {
	fires, quiet := lines(t, "fires"), lines(t, "quiet")
	for _, c := range joblog.Causes() {
		if len(fires[c.ID]) == 0 || len(quiet[c.ID]) == 0 {
			t.Errorf("%s lacks a line that shows it, or one that is like it: %d, %d", c.ID, len(fires[c.ID]), len(quiet[c.ID]))
		}
		for _, line := range fires[c.ID] {
			for _, log := range []string{line, "before\n 3: " + line + "\r\nafter\n"} {
				if got := ids(t, log); !slices.Equal(got, []string{c.ID}) {
					t.Errorf("%q shows %q, want %s", log, got, c.ID)
				}
			}
		}
		for _, line := range quiet[c.ID] {
			if got := ids(t, line); len(got) > 0 {
				t.Errorf("%q shows %q, want nothing", line, got)
			}
		}
		delete(fires, c.ID)
		delete(quiet, c.ID)
	}
	if len(fires)+len(quiet) > 0 {
		t.Errorf("lines of no cause: %q, %q", fires, quiet)
	}
}

// Slurm's state of a job is a cause by itself, where it says more than that the job failed.
func TestStates(t *testing.T) {
	for state, want := range map[string]string{
		"TIMEOUT": "time-limit", "OUT_OF_MEMORY": "memory", "NODE_FAIL": "node-failed", "BOOT_FAIL": "node-failed", "PREEMPTED": "preempted",
		"FAILED": "", "COMPLETED": "", "CANCELLED": "", "": "",
	} {
		f, ok := joblog.OfState(state)
		if f.ID != want || ok != (want != "") || ok && (f.Text != "JobState="+state || f.Title == "" || strings.Contains(f.Title+f.Remedy, "$1")) {
			t.Errorf("%s is %+v, want %q", state, f, want)
		}
	}
}

// What a cause names is there: its rule in the tool that has it, and a text for all that is in a template.
func TestCauses(t *testing.T) {
	rules := map[string][]audit.Rule{"check": audit.Rules(), "lint": lint.AuditRules(), "": nil}
	seen := map[string]bool{}
	for _, c := range joblog.Causes() {
		if seen[c.ID] || c.Title == "" || c.Remedy == "" {
			t.Errorf("%+v is incomplete, or there twice", c)
		}
		seen[c.ID] = true
		list, ok := rules[c.Tool]
		if !ok || c.Rule != "" && !slices.ContainsFunc(list, func(r audit.Rule) bool { return r.ID == c.Rule }) {
			t.Errorf("%s: sconce %s has no rule %q", c.ID, c.Tool, c.Rule)
		}
	}
}

// A whole log: causes stand before what follows from them, each with its first line and how many show it; names from the log are in
// the texts.
func TestWholeLog(t *testing.T) {
	f, err := os.Open("testdata/training.log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found, err := joblog.Explain(f)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range found {
		fmt.Fprintf(&got, "%s %s %d %d %s\n", f.Role, f.ID, f.Line, f.Lines, f.Title)
	}
	const want = `cause memory 12 2 a node had not enough memory for the job, and the kernel ended a process
consequence collective-timeout 10 1 a process waited in vain for the others in a collective operation: one had failed, hung or was far behind
consequence cancelled 14 1 the job or its step was cancelled: by somebody, or by the job itself after one of its tasks had failed
consequence task-failed 15 1 Slurm says of n2, task 5: Exited with exit code 1
slow network-sockets 3 2 NCCL talks between nodes by TCP, and not by the cluster's fast network
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

// Neither a line without end nor a log without lines is kept in memory, and what stands behind is found, with its number.
func TestLongLines(t *testing.T) {
	const bar = "epoch 1: 12%|#   | 3/25 [00:01<00:09]\r"
	const last = "RuntimeError: CUDA error: invalid device ordinal\n"
	long := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)+"\n"), strings.NewReader(strings.Repeat(bar, 1<<14)), strings.NewReader(last))
	found, err := joblog.Explain(iotest.HalfReader(long))
	if err != nil || len(found) != 1 || found[0].Line != 2 || found[0].Text != strings.TrimSpace(last) {
		t.Errorf("%+v, %v", found, err)
	}
	found, err = joblog.Explain(strings.NewReader(strings.Repeat("y", 5000) + " " + last))
	if err != nil || len(found) != 1 || found[0].Text != "invalid device ordinal" {
		t.Errorf("of a long line: %+v, %v", found, err)
	}
}

// What was found before a log could not be read any more is told.
func TestBrokenLog(t *testing.T) {
	broken := errors.New("stale")
	found, err := joblog.Explain(io.MultiReader(strings.NewReader("x: Illegal instruction\n"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}

// Evidence is short and valid text with a line that the log has, whatever the log is.
func FuzzExplain(f *testing.F) {
	data, err := os.ReadFile("testdata/fires")
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := joblog.Explain(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Line < 1 || f.Line > bytes.Count(data, []byte("\n"))+1 || f.Lines < 1 || !utf8.ValidString(f.Text) || len(f.Text) > 1200 || f.Title == "" || !utf8.ValidString(f.Title+f.Remedy) {
				t.Errorf("%+v", f)
			}
		}
	})
}
