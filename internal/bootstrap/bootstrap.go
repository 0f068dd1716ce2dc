// Package bootstrap makes a Debian or Ubuntu base from the distribution's own packages, without a registry, root or subuid.
//
// It works in two halves, so that the second needs no network but for files whose hashes are known:
//
//   - [Resolve] asks apt, in a private root set up by mmdebstrap, which packages a suite needs today, and pins each one by
//     URL, size and SHA-256. This is what a lock keeps.
//   - [Build] downloads exactly those packages, offers them to mmdebstrap as its only mirror, and turns the root file
//     system into a layer.
//
// mmdebstrap(1) runs in its mode root, and gives the same bytes whenever SOURCE_DATE_EPOCH is the same. For an ordinary user it runs
// in the sandbox, in which root is emulated as for steps: see sandbox.go.
package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Request is what a recipe asks for.
type Request struct {
	Suite        string   // "bookworm", "noble", …
	Packages     []string // beside the essential and required ones
	Mirror       string   // URL; "" for the distribution's own, as mmdebstrap knows it
	Components   []string // none for mmdebstrap's choice, main
	Variant      string   // apt, minbase (also when empty), important or standard
	Architecture string   // Debian's name: amd64, arm64
}

// Package is one pinned .deb file.
type Package struct {
	Name         string       `toml:"name"`
	Version      string       `toml:"version"`
	Architecture string       `toml:"architecture"`
	URL          string       `toml:"url"`
	Size         int64        `toml:"size"` // bytes
	SHA256       store.Digest `toml:"sha256"`
}

// Pinned is a request resolved: everything that decides the root file system.
type Pinned struct {
	Suite        string    `toml:"suite"`
	Architecture string    `toml:"architecture"`
	Sources      string    `toml:"sources,multiline"` // sources.list(5) of the finished image
	Epoch        time.Time `toml:"epoch"`             // newest Release file's date: no file of the image is younger
	Packages     []Package `toml:"packages"`
}

// program is the external program that owns bootstrapping.
const program = "mmdebstrap"

// mergedUsrHooks lays out /bin, /lib and /sbin as links into /usr before the first package is unpacked, as every current
// release of Debian and Ubuntu has them.
const mergedUsrHooks = "/usr/share/mmdebstrap/hooks/merged-usr"

func findProgram() (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fault.Hint(errors.New("a bootstrapped base needs mmdebstrap, which is not on PATH"),
			"install it with `apt-get install mmdebstrap`, or set base.image to an image instead")
	}
	return path, nil
}

// What an error repeats of a failed program's output: the last lines, and of each the beginning. mmdebstrap names every package
// file when dpkg fails.
const (
	lastLines  = 12
	lineLength = 240
)

// run starts mmdebstrap with a fixed environment, so that nothing of this machine but the network settings reaches the
// root file system, and reports each line it prints to the task. Of an ordinary user's files it may write below dir alone.
// Packages come from mirror, "" for none of the user's own.
func run(ctx context.Context, task *progress.Task, dir, mirror string, epoch time.Time, args []string) error {
	path, err := findProgram()
	if err != nil {
		return err
	}
	// A umask other than 022 would show in the modes of files that maintainer scripts make.
	args = append([]string{"/bin/sh", "-c", `umask 022; exec "$0" "$@"`, path, "--mode=root"}, args...)
	tail := tailWriter{task: task}
	if os.Geteuid() == 0 {
		err = runAsRoot(ctx, &tail, append(environment(epoch, append(slices.Clone(proxies), "HOME")...), "TMPDIR="+dir), args)
	} else {
		err = runInSandbox(ctx, &tail, dir, mirror, environment(epoch, proxies...), args)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return explain(fmt.Errorf("%s: %w\n%s", program, err, strings.Join(tail.lines, "\n")))
	}
	return nil
}

// runAsRoot gives mmdebstrap a mount name space of its own, with which its mounts go however it ends. Who may not have one may
// not mount either.
func runAsRoot(ctx context.Context, out io.Writer, env, args []string) error {
	run := func(unshare uintptr) error {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unshare}
		cmd.WaitDelay = 10 * time.Second
		cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
		// An interrupt reaches the whole group, as one from the keyboard does, and mmdebstrap unmounts and cleans up.
		return child.Group(cmd, syscall.SIGINT)
	}
	err := run(syscall.CLONE_NEWNS)
	if errors.Is(err, syscall.EPERM) {
		err = run(0)
	}
	return err
}

// explain says what to do about a failure of mmdebstrap that a user can do something about.
func explain(err error) error {
	said := func(text string) bool { return strings.Contains(err.Error(), text) }
	switch {
	case said("foreign architecture support"), said("can neither be executed natively"):
		return fault.Hint(err, "a base made from packages runs programs of its architecture: `apt-get install arch-test qemu-user-static` lets "+
			"this machine run them; or build on a machine of that kind, or set base.image to an image instead")
	case said("setup_mounts failed"):
		return fault.Hint(err, "sconce needs mmdebstrap 1.2 or newer, which can be told to mount nothing (--skip=chroot/mount); or set base.image to an image instead")
	}
	return err
}

// proxies are the variables that name them.
var proxies = []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}

// dpkgForce is what dpkg forces by default (dpkg(1), "DPKG_FORCE"), and unsafe-io: a root file system that is packed and
// thrown away need not survive a power cut, and without the thousands of syncs it is made in a fraction of the time.
const dpkgForce = "security-mac,downgrade,unsafe-io"

// environment is all that mmdebstrap sees; the variables passedOn are as here.
func environment(epoch time.Time, passedOn ...string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive",
		"DPKG_FORCE=" + dpkgForce,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()),
	}
	for _, name := range passedOn {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// tailWriter passes whole lines on and remembers the last of them.
type tailWriter struct {
	task    *progress.Task
	partial []byte
	lines   []string
}

func (w *tailWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		i := bytes.IndexAny(w.partial, "\r\n")
		if i < 0 {
			break
		}
		if line := strings.TrimSpace(string(w.partial[:i])); line != "" {
			w.task.Log(line)
			w.keep(line)
		}
		w.partial = w.partial[i+1:]
	}
	return len(p), nil
}

// keep remembers a line, unless it is only information.
func (w *tailWriter) keep(line string) {
	if strings.HasPrefix(line, "I: ") {
		return
	}
	if len(line) > lineLength {
		line = strings.ToValidUTF8(line[:lineLength], "") + "…"
	}
	w.lines = append(w.lines, line)
	w.lines = w.lines[max(0, len(w.lines)-lastLines):]
}

// quote makes s one word of a shell command.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
