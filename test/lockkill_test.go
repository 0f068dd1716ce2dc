package test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// repositoryBench is a recipe with a package of a repository, and the servers that it is locked with.
type repositoryBench struct {
	t      *testing.T
	index  *locktest.Index
	server *locktest.SSHServer
	recipe string
}

func newRepositoryBench(t *testing.T) *repositoryBench {
	t.Helper()
	tooltest.Path(t, "uv")
	tooltest.Path(t, "git")
	repository := filepath.Join(t.TempDir(), "mine")
	locktest.Repository(t, repository, "mine")
	return &repositoryBench{
		t: t, server: locktest.SSH(t),
		index: locktest.NewIndex(t,
			locktest.Wheel{Name: "alpha", Version: "1.0", Requires: []string{"beta"}}, locktest.Wheel{Name: "beta", Version: "2.0"},
			locktest.Wheel{Name: "setuptools", Version: "70.0"}),
		recipe: locktest.Head + "[python]\npackages = [\"alpha\", \"mine @ git+ssh://git@host" + repository + "\"]\n",
	}
}

// place makes a place with the recipe, in which nothing was ever locked.
func (b *repositoryBench) place() *place {
	b.t.Helper()
	p := newPlace(b.t, nil)
	locktest.Write(b.t, p.path("app"), map[string]string{"base.tar": string(locktest.Base{}.Tar(b.t)), "sconce.toml": b.recipe})
	p.env = []string{"UV_DEFAULT_INDEX=" + b.index.URL, "GIT_SSH_COMMAND=" + b.server.Command, "GIT_HTTP_LOW_SPEED_TIME=1000"}
	return p
}

// locked returns what was locked.
func (p *place) locked() string {
	p.t.Helper()
	files, err := os.ReadDir(p.path("app"))
	if err != nil || len(files) != 4 {
		p.t.Errorf("beside the recipe lie %v (%v)", files, err)
	}
	return p.read("app/sconce.lock") + p.read("app/pylock.toml")
}

// stalled starts a lock, and returns when the server has been asked for the n-th time, to which it says nothing, and all that was started.
func (b *repositoryBench) stalled(p *place, n int, stderr io.Writer) (*exec.Cmd, []process) {
	b.t.Helper()
	b.server.SilentAt(n)
	cmd := p.command("lock", "app")
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	for range 30_000 {
		family := descendants(cmd.Process.Pid)
		if b.server.Asked() >= n && slices.ContainsFunc(family, func(f process) bool { return f.name == "sleep" }) {
			return cmd, family
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatalf("the server was asked %d times only, not %d", b.server.Asked(), n)
	return nil, nil
}

// A lock is killed while uv's git, and then our own, waits for a server, and at each of its events: nothing of it lives on, nothing stays
// after the next command, whichever that is, and what is locked next is what an undisturbed one locks.
func TestKilledLock(t *testing.T) {
	begin(t)
	b := newRepositoryBench(t)
	calm := b.place()
	calm.must("lock", "app")
	want, requests := calm.locked(), b.server.Asked()
	if requests < 2 {
		t.Fatalf("the server was asked %d times, want once by uv and once by sconce at least", requests)
	}
	again := func(p *place, when string) {
		b.server.SilentAt(0)
		p.must("cache", "info")
		if left, err := os.ReadDir(p.tmp()); err != nil || len(left) != 0 {
			t.Errorf("killed %s: the next command left %v (%v)", when, left, err)
		}
		p.must("lock", "app")
		p.must("cache", "prune")
		p.wantTidy()
		if got := p.locked(); got != want {
			t.Errorf("killed %s: the next lock is\n%s\nwant\n%s", when, got, want)
		}
	}
	for n := 1; n <= requests; n++ {
		p := b.place()
		cmd, family := b.stalled(p, n, nil)
		_ = cmd.Process.Kill() // and nobody else
		_ = cmd.Wait()
		p.wantNobody(cmd.Process.Pid, family)
		again(p, fmt.Sprint("at request ", n))
	}
	b.server.SilentAt(0)
	for step := 1; ; step += 2 {
		p := b.place()
		during := p.stopCommand(unix.SIGKILL, step, "lock", "app")
		if during == "" {
			break
		}
		again(p, "at "+during)
	}
}

// timeout(1) signals sconce and then its group: that is one wish, and everything ends in good order, however close the two are.
func TestSignalledTwice(t *testing.T) {
	begin(t)
	b := newRepositoryBench(t)
	p := b.place()
	var stderr bytes.Buffer
	cmd, family := b.stalled(p, 1, &stderr)
	for _, sig := range []syscall.Signal{unix.SIGSTOP, unix.SIGTERM, unix.SIGHUP, unix.SIGCONT} { // both are there when it goes on
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("it ended with %d:\n%s", code, stderr.String())
	}
	p.wantNobody(cmd.Process.Pid, family)
	p.wantTidy()
}
