package wheelbuild

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
)

// git runs the program git in one directory.
type git struct {
	program, dir string
}

// silence is after how many seconds without a byte git gives a connection up. Without it git waits for ever.
const silence = 60

// run runs one command of git. When it fails because of the network, the error is a [networkError].
func (g git) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, g.program, append([]string{"-c", "advice.detachedHead=false", "-c", "core.hooksPath=/dev/null"}, args...)...)
	cmd.Dir = g.dir
	limits := []string{"GIT_HTTP_LOW_SPEED_LIMIT=1", fmt.Sprintf("GIT_HTTP_LOW_SPEED_TIME=%d", silence)} // before the user's own, which count
	cmd.Env = append(append(limits, os.Environ()...), "GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := child.Run(cmd)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	said := strings.TrimSpace(stderr.String())
	err = fmt.Errorf("git %s: %s", args[0], cmp.Or(fetch.Printable(said), err.Error()))
	if networkFailed.MatchString(said) {
		return networkError{err}
	}
	return err
}

// networkFailed is what git and the programs that it speaks through say of a connection that another attempt may better.
var networkFailed = regexp.MustCompile(`(?i)operation too slow|timed? ?out|connection (was )?(reset|refused|closed)|couldn't connect|failed to connect|` +
	`early eof|unexpected disconnect|the remote end hung up|RPC failed|transfer closed|returned error: (429|5\d\d)|temporary failure in name resolution`)

// networkError is a failure of the network, and not of what was asked for.
type networkError struct{ error }

func (e networkError) Unwrap() error { return e.error }

// Transient tells package fetch that another attempt makes sense.
func (networkError) Transient() bool { return true }

// checkout puts the files of a commit into dir.
func (s Sources) checkout(ctx context.Context, dir string, src python.Source) error {
	program, err := exec.LookPath("git")
	if err != nil {
		return fault.Hint(errors.New("it is in a repository, and git is not on PATH"), "install git: `apt-get install git`, `dnf install git`")
	}
	g := git{program, dir}
	if err := g.run(ctx, "init", "--quiet"); err != nil {
		return err
	}
	err = s.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) { return false, g.fetch(ctx, src) })
	if err != nil {
		return err
	}
	if err := g.run(ctx, "checkout", "--quiet", "--force", src.Commit); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, ".gitmodules")); err != nil {
		return nil
	}
	return s.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		return false, g.run(ctx, "-c", "remote.origin.url="+src.URL, "submodule", "--quiet", "update", "--init", "--recursive", "--depth=1")
	})
}

// fetch brings a commit. Not every server gives one out by its name; all of them give everything.
func (g git) fetch(ctx context.Context, src python.Source) error {
	err := g.run(ctx, "fetch", "--quiet", "--depth=1", "--", src.URL, src.Commit)
	if err == nil || fetch.Transient(err) {
		return err
	}
	return g.run(ctx, "fetch", "--quiet", "--tags", "--", src.URL, "+refs/heads/*:refs/remotes/origin/*")
}
