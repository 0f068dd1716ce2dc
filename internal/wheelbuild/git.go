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
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/gitrun"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// git runs the program git in one directory. The user's own configuration counts, which has logins and proxies; nothing that comes
// with a repository does: no hook runs, and a submodule is fetched over a network or, in a repository of this machine, from there.
type git struct {
	program, dir string
	local        bool // the repository is on this machine
}

// settled are the settings that decide which bytes a checkout has, and what runs during it, whatever the user's configuration says.
var settled = []string{
	"advice.detachedHead=false", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.autocrlf=false", "core.eol=lf",
	"core.symlinks=true", "core.fileMode=true", "core.attributesFile=/dev/null", "submodule.recurse=false",
}

// protocols are those that a repository may be fetched by. Git has others, one of which runs a program that the address names.
const protocols = "https:http:ssh:git"

// run runs one command of git. When it fails because of the network, the error is a [networkError].
func (g git) run(ctx context.Context, args ...string) error {
	_, err := g.output(ctx, args...)
	return err
}

// maxSaid bounds what is read of git's answer, in bytes.
const maxSaid = 16 << 20

// output is run for a command that says something.
func (g git) output(ctx context.Context, args ...string) (string, error) {
	var all []string
	for _, kv := range settled {
		all = append(all, "-c", kv)
	}
	cmd := exec.CommandContext(ctx, g.program, append(all, args...)...)
	cmd.Dir = g.dir
	allowed := protocols
	if g.local {
		allowed += ":file"
	}
	cmd.Env = append(gitrun.Environment(os.Environ()), "GIT_LFS_SKIP_SMUDGE=1", "GIT_ALLOW_PROTOCOL="+allowed, "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limitedWriter{&stdout, maxSaid}, &limitedWriter{&stderr, maxSaid}
	err := gitrun.Run(cmd)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err == nil {
		return stdout.String(), nil
	}
	said := strings.TrimSpace(stderr.String())
	failed := fault.Hint(fmt.Errorf("git %s: %s", args[0], cmp.Or(fetch.Printable(said), err.Error())), gitrun.Hint(said))
	var silent *gitrun.SilentError
	if errors.As(err, &silent) {
		failed = fmt.Errorf("git %s: %w", args[0], silent)
	}
	if gitrun.NetworkFailed(err, said) {
		return "", networkError{failed}
	}
	return "", failed
}

// limitedWriter keeps the beginning of what is written.
type limitedWriter struct {
	to   *bytes.Buffer
	room int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.to.Write(p[:n])
	w.room -= n
	return len(p), nil
}

// networkError is a failure of the network, and not of what was asked for.
type networkError struct{ error }

func (e networkError) Unwrap() error { return e.error }

// Transient tells package fetch that another attempt makes sense.
func (networkError) Transient() bool { return true }

// checkout puts the files of a commit into dir.
func (s Sources) checkout(ctx context.Context, dir string, src python.Source) error {
	program, err := findGit()
	if err != nil {
		return err
	}
	g := git{program, dir, isLocal(src.URL)}
	if err := s.reachRepository(ctx, src.URL); err != nil {
		return err
	}
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
		return nil //nolint:nilerr // it has no submodules
	}
	return s.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		if g.local {
			return false, s.submodules(ctx, g, "-c", "remote.origin.url="+src.URL)
		}
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

// commitForm is the name of a commit that nobody can move.
var commitForm = lazyregexp.New(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// Commit returns the commit that a name of a repository's means: itself, or what a tag or branch leads to now. A tag goes before a
// branch of the same name, as with git.
func (s Sources) Commit(ctx context.Context, url, name string) (string, error) {
	if commitForm.MatchString(name) {
		return name, nil
	}
	if s.Fetch.Offline() && !isLocal(url) {
		return "", fmt.Errorf("look up %s of %s: %w", name, fetch.Redact(url), fetch.ErrOffline)
	}
	program, err := findGit()
	if err != nil {
		return "", err
	}
	dir, err := s.Store.TempDir("repository-*")
	if err != nil {
		return "", err
	}
	defer store.RemoveAll(dir)
	g := git{program, dir, isLocal(url)}
	if err := s.reachRepository(ctx, url); err != nil {
		return "", err
	}
	names := []string{"refs/tags/" + name + "^{}", "refs/tags/" + name, "refs/heads/" + name}
	if strings.HasPrefix(name, "refs/") {
		names = []string{name + "^{}", name}
	}
	var answer string
	err = s.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		answer, err = g.output(ctx, append([]string{"ls-remote", "--quiet", "--", url}, names...)...)
		return false, err
	})
	if err != nil {
		return "", err
	}
	found := make(map[string]string)
	for line := range strings.Lines(answer) {
		if words := strings.Fields(line); len(words) == 2 && commitForm.MatchString(words[0]) {
			found[words[1]] = words[0]
		}
	}
	for _, ref := range names {
		if found[ref] != "" {
			return found[ref], nil
		}
	}
	return "", fault.Hint(fmt.Errorf("%s has no tag or branch %s", fetch.Redact(url), name), "write the whole hash of a commit, or `git ls-remote` lists what there is")
}

// isLocal reports whether a repository is on this machine.
func isLocal(url string) bool { return strings.HasPrefix(url, "file:") || filepath.IsAbs(url) }

func findGit() (string, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return "", fault.Hint(errors.New("it is in a repository, and git is not on PATH"), "install git: `apt-get install git`, `dnf install git`")
	}
	return program, nil
}
