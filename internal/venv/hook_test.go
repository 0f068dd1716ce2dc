package venv_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/tooltest"
	"sconce.dev/sconce/internal/venv"
)

// asEnroot does around the hook what enroot does: a mount name space, variables that say where the container is, and the container's
// process, which then shows what it sees.
const asEnroot = `
export ENROOT_PID=$$ ENROOT_ROOTFS=$1 ENROOT_ENVIRON=$2
sh "$3" || exit
mounts=$(grep -c " $1/opt/exp fuse.squashfuse " /proc/self/mounts)
echo "$mounts $(cat "$1/opt/exp/pyvenv.cfg")"
`

// hookRoot is a container's root with its variables, and the hook.
func hookRoot(t *testing.T) (root, environ, hook string) {
	t.Helper()
	dir := t.TempDir()
	root, environ, hook = filepath.Join(dir, "root"), filepath.Join(dir, "environ"), filepath.Join(dir, "hook.sh")
	err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(environ, []byte("A=1\nPATH=/image/bin\n"), 0o644), tooltest.WriteProgram(hook, []byte(venv.Hook)))
	if err != nil {
		t.Fatal(err)
	}
	return root, environ, hook
}

// runHook runs the hook as enroot does, for an environment.
func runHook(t *testing.T, named, root, environ, hook string) (string, error) {
	t.Helper()
	args := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(args, "sh", "-c", asEnroot, "sh", root, environ, hook)...)
	cmd.Env = append(os.Environ(), venv.HookVariable+"="+named)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The hook mounts a packed environment in the root of a container, and makes it the active one.
func TestHookMounts(t *testing.T) {
	tooltest.Path(t, "squashfuse")
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		tooltest.Missing(t, "no FUSE here: %v", err)
	} else {
		f.Close()
	}
	root, environ, hook := hookRoot(t)
	exp := packed(t, file{"pyvenv.cfg", squashfs.Regular, "home = /usr/bin\n"}, file{"bin", squashfs.Dir, ""})
	out, err := runHook(t, exp+":/opt/exp", root, environ, hook)
	if err != nil || out != "1 home = /usr/bin\n" {
		t.Errorf("%v: %q, want one mount and what is in the file", err, out)
	}
	got, err := os.ReadFile(environ)
	if want := "A=1\nPATH=/image/bin\nVIRTUAL_ENV=/opt/exp\nPATH=/opt/exp/bin:/image/bin\n"; err != nil || string(got) != want {
		t.Errorf("variables %q %v, want %q", got, err, want)
	}
}

// squashfuse ends when the container's process does, although its mounts are its own.
func TestHookEnds(t *testing.T) {
	dir := t.TempDir()
	root, environ, hook := hookRoot(t)
	exp := filepath.Join(dir, "exp.sqsh")
	// It stands in for squashfuse: it shows an environment, and ends by a signal alone, which it tells.
	fuse := "#!/bin/sh\ntrap ': > " + dir + "/ended; exit' TERM\nfor at; do :; done\n: > \"$at/pyvenv.cfg\"\nwhile :; do sleep 0.05; done\n"
	if err := errors.Join(os.WriteFile(exp, nil, 0o644), tooltest.WriteProgram(filepath.Join(dir, "squashfuse"), []byte(fuse))); err != nil {
		t.Fatal(err)
	}
	// The container is the inner shell; the outer one waits for what it has left to end.
	const script = `PATH=$4:$PATH
sh -c 'export ENROOT_PID=$$ ENROOT_ROOTFS=$1 ENROOT_ENVIRON=$2; sh "$3"' sh "$1" "$2" "$3" || exit
until [ -e "$4/ended" ]; do sleep 0.05; done
echo ended`
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", root, environ, hook, dir)
	cmd.Env = append(os.Environ(), venv.HookVariable+"="+exp)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ended\n" {
		t.Errorf("%v %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(root, "venv")); err != nil {
		t.Errorf("without a directory it is /venv: %v", err)
	}
}

// What cannot be mounted stops the container with a reason, and leads nowhere else.
func TestHookRefuses(t *testing.T) {
	root, environ, hook := hookRoot(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := tooltest.WriteProgram(filepath.Join(bin, "squashfuse"), []byte("#!/bin/sh\nexit 1\n")); err != nil {
		t.Fatal(err)
	}
	exp := filepath.Join(t.TempDir(), "exp.sqsh")
	if err := os.WriteFile(exp, []byte("hsqs"), 0o644); err != nil {
		t.Fatal(err)
	}
	for named, want := range map[string]string{
		"":                       "",
		"/nowhere/x.sqsh":        "/nowhere/x.sqsh cannot be read",
		exp + ":/opt/../../x":    "is no path of a directory in the container",
		exp + ":/link/x":         "leads through a link in the image",
		exp + ":/opt/x":          "squashfuse does not mount " + exp,
		filepath.Dir(exp) + "/y": "cannot be read",
	} {
		cmd := exec.CommandContext(t.Context(), "sh", hook)
		cmd.Env = append(os.Environ(), venv.HookVariable+"="+named, "PATH="+bin+":"+os.Getenv("PATH"), "ENROOT_PID=1", "ENROOT_ROOTFS="+root, "ENROOT_ENVIRON="+environ)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (want == "") || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v %s, want %q", named, err, out, want)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made outside: %v", err)
	}
	if got, err := os.ReadFile(environ); err != nil || strings.Contains(string(got), "VIRTUAL_ENV") {
		t.Errorf("%s %v", got, err)
	}
}
