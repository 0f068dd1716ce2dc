package childtest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/child/childtest"
)

// countEnv makes the test binary a program that writes as many lines as it says, and notes each in a file when it is out.
const countEnv = "SCONCE_TEST_COUNT_INTO"

const total = 20

func TestMain(m *testing.M) {
	if file := os.Getenv(countEnv); file != "" {
		for i := range total {
			fmt.Fprintf(os.Stderr, "line %d\n", i+1)
			if err := os.WriteFile(file, fmt.Append(nil, i+1), 0o600); err != nil {
				panic(err)
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A program is killed where it is meant to be killed: not beyond the write after the last that was read.
func TestHeldAtEveryLine(t *testing.T) {
	for step := 1; step < total; step++ {
		file := filepath.Join(t.TempDir(), "count")
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), countEnv+"="+file)
		lines := childtest.Start(t, cmd, &cmd.Stderr)
		for i := range step {
			if want := fmt.Sprint("line ", i+1); !lines.Scan() || lines.Text() != want {
				t.Fatalf("got %q (%v), want %q", lines.Text(), lines.Err(), want)
			}
		}
		waitFor(t, file, fmt.Sprint(step))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Success() {
			t.Errorf("after line %d it was not killed, but ended: %v", step, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != fmt.Sprint(step) {
			t.Errorf("after line %d it had written %q lines: %v", step, got, err)
		}
	}
}

// waitFor waits until the file holds the text.
func waitFor(t *testing.T, file, text string) {
	t.Helper()
	for {
		got, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if string(got) == text {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A program that nobody disturbs comes to its end, and none of what it wrote is lost.
func TestReadToItsEnd(t *testing.T) {
	long := strings.Repeat("x", 3*os.Getpagesize())
	cmd := exec.Command("/bin/sh", "-c", `echo "$0"; echo end`, long)
	lines := childtest.Start(t, cmd, &cmd.Stdout)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0] != long || all[1] != "end" {
		t.Errorf("%d lines came", len(all))
	}
}
