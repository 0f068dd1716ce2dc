package lock

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
)

// TestSearchIsRead: this uv says which package it looks for, and what it says besides is kept.
func TestSearchIsRead(t *testing.T) {
	locktest.UV(t)
	locktest.Isolate(t)
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"})
	s := newSearchLog(t.Context(), nil)
	defer s.Close()
	cmd := exec.Command("uv", "pip", "compile", "-", "--default-index", x.URL, "--quiet")
	cmd.Env, cmd.Stdin, cmd.Stderr = append(os.Environ(), tellsSearch), strings.NewReader("alpha\n"), s
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, s)
	}
	if got := s.status(); got != "looking for a version of alpha" {
		t.Errorf("it says %q", got)
	}
	if strings.Contains(s.String(), "DEBUG") {
		t.Errorf("what is left: %s", s)
	}
}

// TestSearchIsTold: a search that takes long is told of, with the package that it is about.
func TestSearchIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events locktest.Events
		ctx := progress.With(t.Context(), &events)
		s := newSearchLog(ctx, progress.Begin(ctx, "resolve", "Python packages", 0))
		wait := func() {
			time.Sleep(searchInterval) // of the bubble's clock
			synctest.Wait()
		}
		wait() // nothing is known yet
		for _, line := range []string{"DEBUG Searching for a compatible ", "version of slow (<2)\nDEBUG other\n", "warning: odd\n", "DEBUG Searching for a compatible version of slow (<1)\n"} {
			if _, err := s.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		wait()
		s.Close()
		told := events.Texts(progress.Log)
		if len(told) != 1 || !strings.Contains(told[0], "looking for a version of slow, 2 times so far") {
			t.Errorf("told: %q", told)
		}
		if got := s.String(); got != "warning: odd\n" {
			t.Errorf("kept: %q", got)
		}
	})
}
