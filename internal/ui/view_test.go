package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/progress"
)

var t0 = time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)

// at makes an event of a task some seconds after t0.
func at(seconds float64, kind progress.Kind, id, name string, current, total int64) progress.Event {
	return progress.Event{
		Time: t0.Add(time.Duration(seconds * float64(time.Second))), Kind: kind, Task: id, Verb: "pull", Name: name,
		Current: current, Total: total,
	}
}

func tick(v view, seconds float64) { v.tick(t0.Add(time.Duration(seconds * float64(time.Second)))) }

func newTestTTY(t *testing.T, width, height int, o Options) (*ttyView, *screen) {
	t.Setenv("LC_ALL", "C.UTF-8")
	s := newScreen(t, width, height)
	v := newTTY(s, o)
	v.size = s.size
	return v, s
}

func wantText(t *testing.T, got, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimLeft(want, "\n"), got); diff != "" {
		t.Errorf("screen (- want, + got):\n%s\nwhole:\n%s", diff, got)
	}
}

func TestLiveView(t *testing.T) {
	v, s := newTestTTY(t, 100, 24, Options{})
	v.event(at(0, progress.Start, "1", "torch.whl", 0, 800e6))
	v.event(at(0, progress.Start, "2", "resolve", 0, 0))
	v.event(at(0, progress.Progress, "1", "torch.whl", 0, 800e6))
	v.event(at(2, progress.Progress, "1", "torch.whl", 200e6, 800e6))
	v.event(progress.Event{Time: t0, Kind: progress.Log, Task: "2", Text: "working\rhard\n"})
	tick(v, 2)
	wantText(t, s.text(), `
pull      torch.whl                ━━━━━───────────────   200.0 MB of  800.0 MB  100.0 MB/s  6s
pull      resolve  hard                                                                        2.0s
total     2 in progress, 0 ended · 200.0 MB of 800.0 MB
`)
	v.event(progress.Event{Kind: progress.Warning, Text: "mind the gap", Hint: "jump"})
	v.event(progress.Event{Kind: progress.Note, Text: "waiting for process 7"})
	v.event(at(3, progress.Done, "1", "torch.whl", 800e6, 800e6))
	tick(v, 3)
	wantText(t, s.text(), `
warning: mind the gap
hint: jump
waiting for process 7
pull torch.whl: done, 800.0 MB in 3.0s
pull      resolve  hard                                                                        3.0s
`)
	v.event(at(4, progress.Cached, "2", "resolve", 0, 0))
	v.close()
	wantText(t, s.text(), `
warning: mind the gap
hint: jump
waiting for process 7
pull torch.whl: done, 800.0 MB in 3.0s
`)
	if s.hidden {
		t.Error("the cursor stays hidden")
	}
}

func TestLiveViewShowsLogOfFailedTask(t *testing.T) {
	v, s := newTestTTY(t, 80, 24, Options{})
	v.event(at(0, progress.Start, "1", "suite", 0, 0))
	v.event(progress.Event{Kind: progress.Log, Task: "1", Text: "the reason"})
	v.event(at(1, progress.Failed, "1", "suite", 0, 0))
	v.event(at(1, progress.Start, "2", "other", 0, 0))
	e := at(1, progress.Failed, "2", "other", 0, 0)
	e.Err = "get: context canceled"
	v.event(e)
	wantText(t, s.text(), `
pull suite | the reason
pull suite: failed after 1.0s
`)
}

func TestLiveViewOnTinyScreens(t *testing.T) {
	v, s := newTestTTY(t, 100, 5, Options{})
	for w := 100; w > 0; w -= 3 {
		id := fmt.Sprint(w)
		v.event(at(0, progress.Start, id, "name", 0, 1000))
		v.event(at(1, progress.Progress, id, "name", 500, 1000))
		s.resize(w)
		tick(v, 1)
	}
}

// Whatever is shown, however the size changes: finished lines stay, each once, and the live part leaves nothing behind.
func TestLiveViewSurvivesResize(t *testing.T) {
	for _, widths := range [][]int{{80, 50, 120, 60, 99}, {100, 101, 200, 130}} {
		v, s := newTestTTY(t, 100, 50, Options{Color: true})
		want := ""
		for i, w := range widths {
			for j := range 20 {
				id := fmt.Sprint(i, "-", j)
				v.event(at(0, progress.Start, id, "a-rather-long-name-of-a-package-"+id, 0, 1000))
				v.event(at(1, progress.Progress, id, "x", 500, 1000))
			}
			tick(v, 1)
			s.resize(w)
			tick(v, 2)
			for j := range 20 {
				id := fmt.Sprint(i, "-", j)
				v.event(at(3, progress.Done, id, "x", 1000, 1000))
				want += "pull a-rather-long-name-of-a-package-" + id + ": done, 1.0 kB in 3.0s"
			}
			tick(v, 3)
		}
		v.close()
		if got := strings.ReplaceAll(s.text(), "\n", ""); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("widths %v:\n%s", widths, s.text())
		}
	}
}

func TestLiveViewFitsTheScreen(t *testing.T) {
	for height := 1; height < 30; height++ {
		v, s := newTestTTY(t, 60, height, Options{})
		for i := range 40 {
			v.event(at(0, progress.Start, fmt.Sprint(i), fmt.Sprint("task ", i), 0, int64(i)))
		}
		tick(v, 1)
		tick(v, 2)
		if n := strings.Count(s.text(), "\n"); n > max(4, height) {
			t.Errorf("%d lines on a screen of %d", n, height)
		}
		if !strings.Contains(s.text(), "not shown") {
			t.Error("tasks are hidden without a word")
		}
	}
}

// A name from outside must not reach the terminal as it is; screen fails on unexpected sequences.
func TestLiveViewCleansNames(t *testing.T) {
	evil := "x\x1b]0;title\a\x1b[2J\x1b[1;1Hhidden\u202egpj.exe\r\b\x9b31m"
	v, s := newTestTTY(t, 200, 24, Options{Verbose: true})
	v.event(at(0, progress.Start, "1", evil, 0, 0))
	v.event(progress.Event{Kind: progress.Log, Task: "1", Text: evil})
	v.event(progress.Event{Kind: progress.Warning, Text: evil, Hint: evil})
	tick(v, 1)
	v.close()
	if strings.ContainsAny(s.text(), "\u202e\u009b") {
		t.Errorf("%q", s.text())
	}
}

func TestPlainView(t *testing.T) {
	var out bytes.Buffer
	v := newPlain(&out, Options{})
	v.event(at(0, progress.Start, "1", "large", 0, 1000e6))
	v.event(at(0, progress.Progress, "1", "large", 500e6, 1000e6)) // resumed
	v.event(at(0, progress.Start, "2", "small", 0, 0))
	v.event(at(0.5, progress.Done, "2", "small", 0, 0))
	for i := range 3 {
		id := fmt.Sprint("s", i)
		v.event(at(0.5, progress.Start, id, id, 0, 0))
		v.event(at(0.7, progress.Done, id, id, 10e6, 10e6))
	}
	for i := 1; i <= 25; i++ {
		v.event(at(float64(i), progress.Progress, "1", "large", 500e6+int64(i)*10e6, 1000e6))
		tick(v, float64(i))
	}
	v.event(progress.Event{Kind: progress.Note, Text: "by the way"})
	v.event(progress.Event{Kind: progress.Log, Task: "1", Text: "not shown"})
	v.event(at(26, progress.Done, "1", "large", 1000e6, 1000e6))
	v.event(at(26, progress.Start, "3", "compile", 0, 0))
	tick(v, 27)
	v.event(progress.Event{Kind: progress.Log, Task: "3", Text: "cc b.c"})
	tick(v, 37)
	v.event(at(26, progress.Progress, "1", "large", 1000e6, 1000e6)) // too late
	wantText(t, out.String(), `
pull large (1.0 GB)
pull: 4 tasks done, 30.0 MB in 0.70s
pull large: 600.0 MB of 1.0 GB, 10.0 MB/s, 40s left
pull large: 700.0 MB of 1.0 GB, 10.0 MB/s, 30s left
by the way
pull large: done, 1.0 GB in 26.0s
pull compile
pull compile: running for 11.0s | cc b.c
`)
}

// A time of next to nothing is not told, of one task or of several.
func TestPlainViewOfMoments(t *testing.T) {
	var out bytes.Buffer
	v := newPlain(&out, Options{})
	v.event(at(0, progress.Start, "1", "one", 0, 0))
	v.event(at(0.002, progress.Done, "1", "one", 0, 0))
	v.flush()
	for _, id := range []string{"2", "3"} {
		v.event(at(1, progress.Start, id, id, 0, 0))
		v.event(at(1.05, progress.Done, id, id, 5e6, 5e6))
	}
	v.close()
	wantText(t, out.String(), "pull one: done\npull: 2 tasks done, 10.0 MB\n")
}

func TestQuietView(t *testing.T) {
	var out bytes.Buffer
	v := New(&out, Options{Mode: Quiet})
	v.Emit(at(0, progress.Start, "1", "x", 0, 0))
	v.Emit(progress.Event{Kind: progress.Note, Text: "note"})
	v.Emit(progress.Event{Kind: progress.Warning, Text: "careful"})
	v.Emit(progress.Event{Kind: progress.Note, Text: "waiting for process 7; 1s", Waited: 1})
	v.Emit(progress.Event{Kind: progress.Note, Text: "waiting for process 7; 11s", Waited: 11})
	v.Emit(at(9, progress.Done, "1", "x", 0, 0))
	v.Close()
	wantText(t, out.String(), "warning: careful\nwaiting for process 7; 11s\n")
}

func TestJSONView(t *testing.T) {
	var out bytes.Buffer
	v := New(&out, Options{Mode: JSON})
	sent := at(1, progress.Progress, "7", "nasty\n\x1b[2J", 5, 10)
	v.Emit(sent)
	v.Emit(progress.Event{Kind: progress.Note, Text: "waiting for process 7"})
	v.PrintError(&out, errors.New("broken"), 1)
	v.Close()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], `"waiting for process 7"`) || strings.Contains(out.String(), "\x1b") {
		t.Fatalf("%q", out.String())
	}
	var got progress.Event
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil || got != sent {
		t.Errorf("%+v, %v", got, err)
	}
	var last failureEvent
	if err := json.Unmarshal([]byte(lines[2]), &last); err != nil || last.Err != "broken" || last.Kind != "error" || last.Code != 1 {
		t.Errorf("%+v, %v", last, err)
	}
}

func TestViewInParallel(t *testing.T) {
	for _, m := range []Mode{TTY, Plain, JSON, Quiet} {
		var out bytes.Buffer
		v := New(&out, Options{Mode: m})
		var g sync.WaitGroup
		for i := range 8 {
			g.Go(func() {
				for j := range 100 {
					id := fmt.Sprint(i, j)
					v.Emit(at(0, progress.Start, id, id, 0, 0))
					v.Emit(at(0, progress.Progress, id, id, 1, 0))
					v.Emit(at(1, progress.Done, id, id, 1, 0))
				}
			})
		}
		g.Wait()
		v.Close()
		v.Close()
		v.Emit(at(0, progress.Warning, "", "", 0, 0)) // dropped
		if want := map[Mode]int{TTY: 800, Plain: 800, JSON: 2400}[m]; strings.Count(out.String(), "\n") < want {
			t.Errorf("%s: %d lines", m, strings.Count(out.String(), "\n"))
		}
	}
}

func TestChoose(t *testing.T) {
	if m := choose(&bytes.Buffer{}, Auto); m != Plain {
		t.Errorf("a buffer gets %s", m)
	}
	if m := choose(&bytes.Buffer{}, TTY); m != TTY {
		t.Errorf("asked for tty, gets %s", m)
	}
	if _, err := ParseMode("fancy"); err == nil || !strings.Contains(err.Error(), "auto, tty, plain, json, quiet") {
		t.Errorf("ParseMode: %v", err)
	}
}
