package engine_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
)

// openings counts how often files of a directory are opened from now on, by their names. The kernel tells it.
func openings(t *testing.T, dir string) func() map[string]int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { events.Close() })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_CLOSE_NOWRITE); err != nil {
		t.Fatal(err)
	}
	return func() map[string]int {
		seen := map[string]int{}
		buf := make([]byte, 1<<16)
		n, err := unix.Read(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; { // struct inotify_event of inotify(7)
			length := int(binary.NativeEndian.Uint32(rest[12:]))
			name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], []byte{0})
			if binary.NativeEndian.Uint32(rest[4:])&unix.IN_OPEN != 0 { // without closings between them, openings would be told as one
				seen[string(name)]++
			}
			rest = rest[unix.SizeofInotifyEvent+length:]
		}
		return seen
	}
}

// A lock that fits is read once, however many parts of a command want to know what is in it.
func TestLockIsReadOnce(t *testing.T) {
	locktest.Isolate(t)
	locktest.UV(t)
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"})
	t.Setenv("UV_DEFAULT_INDEX", x.URL)
	dir := locktest.Dir(t, locktest.Base{}, nil)
	locktest.Write(t, dir, map[string]string{"sconce.toml": locktest.Head + "[python]\npackages = [\"alpha\"]\n"})
	s := newSession(t)
	load := func() *engine.Recipe {
		r, err := engine.LoadRecipe(filepath.Join(dir, "sconce.toml"), engine.Changes{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := s.Lock(t.Context(), load(), engine.LockOptions{}); err != nil {
		t.Fatal(err)
	}
	count := openings(t, dir)
	r := load()
	for name, want := range map[string]func() error{
		"lock": func() error { _, err := s.Lock(t.Context(), r, engine.LockOptions{}); return err },
		"plan": func() error {
			p, err := s.Plan(t.Context(), r, engine.PlanOptions{Locked: true})
			if err == nil {
				p.Close()
			}
			return err
		},
		"export": func() error { r.JobImage(); return nil },
	} {
		if err := want(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		opened := count()
		for _, file := range []string{"sconce.lock", "pylock.toml"} {
			if opened[file] != 1 {
				t.Errorf("%s opens %s %d times", name, file, opened[file])
			}
		}
	}
}
