package bootstrap

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/sandbox"
)

// workDir is where mmdebstrap makes the root file system: on the sandbox's own disk, where root is emulated.
const workDir = "/sconce-bootstrap"

// notBound are the directories of this machine's root that the sandbox has of its own.
var notBound = []string{"dev", "proc", "sys", "tmp"}

// mountArgs have the new system see the sandbox's devices and processes while its packages are installed. What mmdebstrap would
// mount itself needs more than one user id (devpts(5), gid=).
var mountArgs = []string{
	"--skip=chroot/mount",
	`--extract-hook=for d in dev proc; do mkdir -p "$1/$d" && mount --rbind "/$d" "$1/$d" || exit 1; done`,
	`--customize-hook=umount -R "$1/dev" "$1/proc"`,
}

// runInSandbox runs a command of this machine in a sandbox that has this machine's files, read-only, but for dir, which may be
// written to, and /tmp, of which there are only dir and the mirror's files.
func runInSandbox(ctx context.Context, out io.Writer, dir, mirror string, env, args []string) error {
	if err := sandbox.Check(); err != nil {
		return err
	}
	root, scratch := filepath.Join(dir, "root"), filepath.Join(dir, "scratch")
	for _, d := range []string{filepath.Join(root, workDir), filepath.Join(root, "tmp"), scratch} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil { // apt runs some of its programs as a user of its own
		return err
	}
	binds, err := bindHost(root)
	if err != nil {
		return err
	}
	if u, err := url.Parse(mirror); err == nil && (u.Scheme == "file" || u.Scheme == "copy") {
		binds = append(binds, sandbox.Bind{Source: u.Path, Target: u.Path, ReadOnly: true})
	}
	code, err := sandbox.Run(ctx, sandbox.Options{
		Layers: []string{root}, Binds: append(binds, sandbox.Bind{Source: dir, Target: dir}), ScratchDir: scratch, Owners: &rootemu.Owners{},
		Args: slices.Concat(args, mountArgs), Env: append(env, "TMPDIR="+workDir, "HOME="+workDir), Stdout: out, Stderr: out,
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d", code)
	}
	return err
}

// bindHost shows what this machine has in its root directory in another one, in which it puts the symbolic links.
func bindHost(root string) ([]sandbox.Bind, error) {
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil, err
	}
	var binds []sandbox.Bind
	for _, e := range entries {
		name := "/" + e.Name()
		switch {
		case slices.Contains(notBound, e.Name()):
		case e.IsDir():
			binds = append(binds, sandbox.Bind{Source: name, Target: name, ReadOnly: true})
		case e.Type() == os.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return nil, err
			}
			if err := os.Symlink(strings.TrimPrefix(target, "/"), filepath.Join(root, name)); err != nil {
				return nil, err
			}
		}
	}
	return binds, nil
}
