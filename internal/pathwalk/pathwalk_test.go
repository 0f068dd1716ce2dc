package pathwalk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// hostNode is a file of this machine.
type hostNode string

func (n hostNode) IsDir() bool {
	info, err := os.Lstat(string(n))
	return err == nil && info.IsDir()
}

func (n hostNode) Symlink() (string, bool) {
	target, err := os.Readlink(string(n))
	return target, err == nil
}

func (n hostNode) Child(name string) (hostNode, error) {
	_, err := os.Lstat(filepath.Join(string(n), name))
	return hostNode(filepath.Join(string(n), name)), err
}

// asKernel resolves a path as the kernel does for a process whose root is root.
func asKernel(root, path string, follow bool) (name string, err error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	how := &unix.OpenHow{Flags: unix.O_PATH, Resolve: unix.RESOLVE_IN_ROOT}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat2(dir, path, how)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// The kernel is the judge.
func TestFind(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"a/b/c", "d"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "a/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{
		"abs": "/a/b", "rel": "a/b/../file", "up": "../../../../a", "d/back": "../abs/c", "loop": "loop", "gone": "nowhere", "dirlink": "a/b/",
		"filelink": "a/file/", "l0": "a",
	}
	for i := range 41 {
		links[fmt.Sprintf("l%d", i+1)] = fmt.Sprintf("l%d", i)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{
		".", "a", "a/", "a//b/./c", "a/../..", "a/file", "a/file/", "a/file/.", "a/file/..", "a/file/x", "abs", "abs/", "abs/..", "rel", "rel/",
		"up", "up/b", "d/back", "d/back/..", "loop", "loop/", "gone", "gone/x", "dirlink", "filelink", "nothing", "nothing/..", "l39", "l40", "l39/b", "l40/b",
	}
	for _, path := range paths {
		for _, follow := range []bool{true, false} {
			want, wantErr := asKernel(root, path, follow)
			if errors.Is(wantErr, unix.ENOSYS) {
				t.Skip("the kernel has no openat2")
			}
			got, err := Find(hostNode(root), path, follow)
			nothing := errors.Is(err, fs.ErrNotExist) && errors.Is(wantErr, fs.ErrNotExist)
			if !nothing && !errors.Is(err, wantErr) || err == nil && string(got) != want {
				t.Errorf("%s, follow %v: %q, %v; the kernel says %q, %v", path, follow, got, err, want, wantErr)
			}
		}
	}
}

func TestWalk(t *testing.T) {
	w := Begin("a//b/.")
	var parts []string
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		parts = append(parts, fmt.Sprint(part, w.IsLast(), w.AtEnd()))
		if part == "b" {
			if fromRoot, err := w.Follow("/x"); err != nil || !fromRoot {
				t.Errorf("%v, %v", fromRoot, err)
			}
		}
	}
	if got := strings.Join(parts, " "); got != "afalse false .false false btrue false .false false xtrue false .true true" {
		t.Error(got)
	}
	w.links = MaxSymlinks
	if _, err := w.Follow("x"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("one link more: %v", err)
	}
}
