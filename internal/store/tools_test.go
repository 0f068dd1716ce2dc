package store_test

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// needs skips the test for the reason given, or fails it where everything must be there.
func needs(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("SCONCE_REQUIRE_TOOLS") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// asUser runs the calling test once more as an ordinary user, for whom permissions hold.
func asUser(t *testing.T) {
	t.Helper()
	nobody, err := user.Lookup("nobody")
	if err != nil {
		needs(t, err.Error())
	}
	uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
	// The test binary lies where only root may go.
	dir, err := os.MkdirTemp("", "sconce-store-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	bin := filepath.Join(dir, "store.test")
	if err := errors.Join(err, os.WriteFile(bin, self, 0o755), os.Chown(dir, int(uid), int(gid))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

// smallDisk mounts a file system of the size given ("1m").
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		needs(t, "mount tmpfs: "+err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
