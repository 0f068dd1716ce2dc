// Package squashfstest mounts squashfs files for tests, in the ways that runtimes do.
package squashfstest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// Way is who mounts.
type Way string

// The ways to mount.
const (
	Kernel     Way = "the kernel"
	Squashfuse Way = "squashfuse"
)

// Ways are all of them.
var Ways = []Way{Kernel, Squashfuse}

var commands = map[Way][]string{
	Kernel:     {"mount", "-t", "squashfs", "-o", "ro,loop,nosuid,nodev"},
	Squashfuse: {"squashfuse", "-o", "ro"},
}

// Mount mounts a file until the end of the test, and returns the directory: "" on a machine that cannot, which is logged. With
// all tools required, a failure on any other machine is one of the test.
func (w Way) Mount(t testing.TB, file string) (dir string) {
	t.Helper()
	if err := w.cannot(t); err != nil {
		t.Logf("not mounted by %s: %v", w, err)
		return ""
	}
	dir = t.TempDir()
	command := commands[w]
	if out, err := exec.Command(command[0], append(command[1:], file, dir)...).CombinedOutput(); err != nil {
		tell := t.Logf
		if tooltest.Required() {
			tell = t.Fatalf
		}
		tell("mount %s by %s: %v\n%s", file, w, err, out)
		return ""
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "--lazy", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

// cannot is why this machine, whatever is installed on it, mounts no squashfs in this way; nil when it should.
func (w Way) cannot(t testing.TB) error {
	t.Helper()
	if os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	if w == Squashfuse {
		f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err
	}
	// As root in a container, perhaps.
	dir := t.TempDir()
	if err := exec.Command("mount", "-t", "tmpfs", "tmpfs", dir).Run(); err != nil {
		return errors.New("root may not mount here")
	}
	if err := exec.Command("umount", dir).Run(); err != nil {
		return err
	}
	_ = exec.Command("modprobe", "squashfs").Run() // it is a module, built in, or nowhere
	types, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(types), "\tsquashfs\n") {
		err = errors.New("the kernel has no squashfs")
	}
	return err
}

// MountOrSkip is Mount for a test of the file alone, which is skipped where it cannot be mounted.
func (w Way) MountOrSkip(t testing.TB, file string) (dir string) {
	t.Helper()
	if dir = w.Mount(t, file); dir == "" {
		t.Skipf("%s cannot be mounted here", filepath.Base(file))
	}
	return dir
}
