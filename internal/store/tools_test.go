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

	"sconce.dev/sconce/internal/tooltest"
)

// asUser runs the calling test once more as an ordinary user, for whom permissions hold.
func asUser(t *testing.T) {
	t.Helper()
	nobody, err := user.Lookup("nobody")
	if err != nil {
		tooltest.Missing(t, "%v", err)
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
	if err := errors.Join(err, tooltest.WriteProgram(bin, self), os.Chown(dir, int(uid), int(gid))); err != nil {
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
