package pipeline

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/engine"
)

// origin is where the pipeline is from, and the job that runs it, as far as that is known; nil where nothing is signed. It is found out once.
func (p *Pipeline) origin(ctx context.Context) *engine.Origin {
	if p.Sign == "" {
		return nil
	}
	p.looked.Do(func() { p.from = p.findOrigin(ctx) })
	return p.from
}

// findOrigin asks git for what is checked out, and the CI system's variables for the rest.
func (p *Pipeline) findOrigin(ctx context.Context) *engine.Origin {
	o := &engine.Origin{}
	git := newGit(ctx, p.Dir)
	o.Commit = git.output("rev-parse", "--verify", "--quiet", "HEAD")
	if o.Commit != "" {
		o.Repository = git.output("config", "--get", "remote.origin.url")
		o.Changed, o.Unchecked = git.changed(p.inputs()) // what an image may be made of
	}
	if all := currentSystems(); len(all) == 1 {
		s := all[0]
		if o.CI, o.Job = s.name, withoutLogin(fill(s.job)); o.Commit == "" {
			o.Commit, o.Unchecked = fill(s.commit), true // git has not said what is there
		}
		if at := fill(s.repository); at != "" {
			o.Repository = at
		}
	}
	o.Repository = withoutLogin(o.Repository)
	return o
}

// schemes are those of addresses that are told: others run programs of this machine, or name its paths.
var schemes = []string{"https", "http", "ssh", "git"}

// withoutLogin is an address as everybody may read it: its scheme, host and path, as a login, a query and a fragment may be secret. "": it is none.
func withoutLogin(address string) string {
	if scheme, rest, ok := strings.Cut(address, "://"); ok {
		scheme = strings.ToLower(scheme)
		if !slices.Contains(schemes, scheme) {
			return ""
		}
		if n := strings.IndexAny(rest, "/?#"); n >= 0 && strings.Contains(rest[n:], "@") {
			return "" // it may be a password with such a sign in it
		}
		rest = rest[strings.LastIndexByte(rest, '@')+1:]
		if n := strings.IndexAny(rest, "?#"); n >= 0 {
			rest = rest[:n]
		}
		u, err := url.Parse(scheme + "://" + rest)
		if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") == "" {
			return ""
		}
		return u.String()
	}
	host, path, ok := strings.Cut(address[strings.LastIndexByte(address, '@')+1:], ":") // [USER@]HOST:PATH, as ssh has it
	if n := strings.IndexAny(path, "?#"); n >= 0 {
		path = path[:n]
	}
	if !ok || host == "" || len(host) == 1 || strings.Trim(host, hostLetters) != "" || path == "" || strings.HasPrefix(path, ":") {
		return ""
	}
	return host + ":" + path
}

// hostLetters are what names of hosts are made of.
const hostLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

// inputs are the files of the pipeline and the directories of its recipes, relative to its own.
func (p *Pipeline) inputs() []string {
	paths, err := p.Paths()
	if err != nil {
		return nil
	}
	return append(paths, recipeFile)
}

// git asks about one repository, of which nothing runs: not its hooks, and no filter that its configuration names.
type git struct {
	ctx context.Context
	dir string
	env []string
}

func newGit(ctx context.Context, dir string) *git {
	g := &git{ctx, dir, os.Environ()}
	settings := []string{"core.fsmonitor=false", "core.hooksPath=/dev/null"}
	for name := range strings.SplitSeq(g.output("config", "--name-only", "--get-regexp", `^filter\.`), "\n") {
		if name != "" {
			settings = append(settings, name+"=")
		}
	}
	for n, kv := range settings {
		i := strings.LastIndexByte(kv, '=')
		g.env = append(g.env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, kv[:i]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, kv[i+1:]))
	}
	g.env = append(g.env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)), "GIT_ALLOW_PROTOCOL=none", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	return g
}

// output is what a command of git says, in lines; "" when it fails, as where there is no repository or no git.
func (g *git) output(args ...string) string {
	out, _ := g.run(args...) // which says nothing then
	return out
}

func (g *git) run(args ...string) (string, error) {
	cmd := exec.CommandContext(g.ctx, "git", args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout = g.dir, g.env, &out
	if err := child.Run(cmd); err != nil {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}

// changed reports whether files are not those of the commit, or more than those, or that this is unknown. What sconce keeps of tests is none of them.
// Of a submodule its commit is compared; what is in it is not looked at, as its own configuration may name programs.
func (g *git) changed(files []string) (changed, unknown bool) {
	args := append([]string{"status", "--porcelain", "--untracked-files=all", "--ignore-submodules=dirty", "--"}, files...)
	out, err := g.run(append(args, ":(exclude,glob)**/.sconce/**")...)
	return out != "", err != nil
}
