package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/store"
)

// sconceCommand runs this test binary as the sconce command.
func sconceCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &exec.Cmd{Path: self, Args: append([]string{"sconce"}, args...), Env: os.Environ()}
}

// A command that waits ends at the first signal, says so, and has the exit code for it.
func TestInterrupt(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP) // what is started would ignore it if this process does, as under nohup(1)
	defer signal.Stop(caught)
	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	waits := fmt.Sprintf("waiting for process %d on %s", os.Getpid(), node)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		dir := t.TempDir()
		busy, err := store.Open(context.Background(), dir) // so that a prune has to wait
		if err != nil {
			t.Fatal(err)
		}
		cmd := sconceCommand(t, "--store", dir, "cache", "prune")
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(stderr)
		if line, err := lines.ReadString('\n'); !strings.HasPrefix(line, waits) || !strings.Contains(line, ", which uses the store ") {
			t.Errorf("first line: %q, %v, want %q", line, err, waits)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		rest, _ := io.ReadAll(lines)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.HasSuffix(string(rest), "error: interrupted\n") {
			t.Errorf("%v: exit code %d, %q", sig, code, rest)
		}
		busy.Close()
	}
}
