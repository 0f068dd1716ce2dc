package ospackages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
)

// Resolve asks the base's package manager, over the network, what installing r.Packages means today. It runs in a sandbox
// and leaves the base as it is.
func Resolve(ctx context.Context, st *store.Store, r Request) (*Pinned, error) {
	if r.Offline {
		return nil, errors.New("cannot resolve the system packages with --offline: the base's package sources have to be asked")
	}
	task := progress.Begin(ctx, "resolve", "system packages", 0)
	p, err := resolve(ctx, task, st, r)
	return p, task.End(err)
}

func resolve(ctx context.Context, task *progress.Task, st *store.Store, r Request) (*Pinned, error) {
	tree, err := image.NewTree(ctx, st, r.On)
	if err != nil {
		return nil, err
	}
	m, err := managerOf(tree)
	if err != nil {
		return nil, err
	}
	if err := m.check(r.Packages); err != nil {
		return nil, err
	}
	dirs, err := sandbox.Layers(ctx, st, r.On)
	if err != nil {
		return nil, err
	}
	work, err := st.TempDir("resolve-*")
	if err != nil {
		return nil, err
	}
	defer store.RemoveAll(work)
	q := &question{task: task, store: st, tree: tree, on: r.On, layers: dirs, work: work, platform: r.Platform}
	p, err := q.resolve(ctx, m, r.Packages)
	if err != nil {
		return nil, err
	}
	if len(p.Remove) > 0 {
		progress.Warn(ctx, "the system packages push some of the base's out: "+strings.Join(p.Remove, ", "),
			"name other [system] packages if the image needs them")
	}
	return p, nil
}

// manager is a package manager that can be asked.
type manager interface {
	name() string // as in Pinned.Manager
	// check refuses what the manager would take for something else than the name of a package.
	check(packages []string) error
	// sources returns the text of all of the base's package sources. That there are none is an error.
	sources(base *image.Tree) (string, error)
	// question is the script that asks what an installation needs, and its arguments.
	question(sources string, packages []string) (script string, args []string)
	// read makes the pins of the answer.
	read(q *question, packages []string) (*Pinned, error)
	// listsError tells that the lists of packages cannot be fetched, by what the manager said.
	listsError(said string) error
	// explain tells why the packages cannot be installed.
	explain(q *question, packages []string) error
}

// What the scripts that ask exit with.
const (
	noArchitecture = 11 // apt's alone
	noLists        = 12
	unresolved     = 13
)

// resolve asks a manager.
func (q *question) resolve(ctx context.Context, m manager, packages []string) (*Pinned, error) {
	sources, err := m.sources(q.tree)
	if err != nil {
		return nil, err
	}
	lists, done, err := q.lists(ctx, m.name(), q.platform.String()+"\n"+sources)
	if err != nil {
		return nil, err
	}
	defer done()
	script, args := m.question(sources, packages)
	if err := q.put(ctx, m, lists, script, args, func() error { return m.explain(q, packages) }); err != nil {
		return nil, err
	}
	return m.read(q, packages)
}

// put runs a script that asks a manager, and makes errors of its exit codes. explain tells why there is no answer.
func (q *question) put(ctx context.Context, m manager, lists, script string, args []string, explain func() error) error {
	code, err := q.ask(ctx, lists, script, args...)
	switch {
	case err != nil:
		return err
	case code == 0:
		return nil
	case code == noArchitecture:
		return fmt.Errorf("the base's dpkg does not take the architecture of one of %s", strings.Join(args[slices.Index(args, "--")+1:], ", "))
	case code == noLists:
		said, err := q.answer("updated")
		if err != nil {
			return err
		}
		return m.listsError(said)
	case code == unresolved:
		return explain()
	}
	return fmt.Errorf("the base's %s cannot be asked: the script that does it ended with exit code %d", m.name(), code)
}

// managers are the programs that tell which manager a base has, the preferred one first. A link counts as what it leads to.
var managers = []struct {
	program string
	manager manager // nil: not supported
	instead string  // the command that a step may run then
}{
	{program: "usr/bin/apt-get", manager: apt{}},
	{program: "usr/bin/dnf5", instead: "dnf5 install -y"},
	{program: "usr/bin/dnf", manager: dnf{}},
	{program: "usr/bin/zypper", manager: zypper{}},
	{program: "usr/bin/microdnf", instead: "microdnf install -y"},
	{program: "usr/bin/yum", instead: "yum install -y"},
	{program: "sbin/apk", instead: "apk add"},
	{program: "usr/bin/pacman", instead: "pacman -Sy --noconfirm"},
}

func managerOf(t *image.Tree) (manager, error) {
	for _, m := range managers {
		if _, err := t.Lookup(m.program); err != nil {
			continue
		}
		if m.manager == nil {
			return nil, notSupported(path.Base(m.program), m.instead)
		}
		return m.manager, nil
	}
	return nil, fault.Hint(errors.New("the base has no package manager that could install [system] packages: none of apt-get, dnf and zypper is in it"),
		"take a base with one, or put what is needed into the base")
}

func notSupported(program, instead string) error {
	hint := fmt.Sprintf("install the packages in a [[step]], run = \"%s NAME\", which locks no versions, or take another base", instead)
	if strings.HasSuffix(instead, "install -y") { // a distribution of RPM packages
		hint += "; a base that is made from packages locks its own: bootstrap = { dnf = \"fedora:44\", packages = [\"NAME\"] }"
	}
	return fault.Hint(fmt.Errorf("the base's package manager, %s, is not supported for [system] packages: only apt, dnf 4 and zypper are", program), hint)
}

// question is one run of a manager in the base.
type question struct {
	task     *progress.Task
	store    *store.Store
	tree     *image.Tree
	on       []layer.Descriptor // the base
	layers   []string           // that, unpacked
	work     string             // directory that the manager sees as workDir
	platform v1.Platform
}

// The places in the sandbox where we meet the manager.
const (
	workDir  = "/run/sconce-work"
	listsDir = "/run/sconce-lists"
)

// caFile is the certificates of this machine, in q.work. A small base has none, and downloads will use them too.
const caFile = "ca.crt"

// ask runs a shell script in the base, with args, and returns its exit code. lists is a directory that the script may
// change. Whatever else it writes is forgotten, but for what is in workDir.
func (q *question) ask(ctx context.Context, lists, script string, args ...string) (int, error) {
	if err := q.copyCertificates(); err != nil {
		return 0, err
	}
	out := &lineWriter{line: q.task.Log}
	code, err := sandbox.Run(ctx, sandbox.Options{
		Layers: q.layers, Arch: q.platform.Architecture,
		Args:   slices.Concat([]string{"/bin/sh", "-c", script, "sh"}, args),
		Env:    append(environment(), proxies()...),
		Stdout: out, Stderr: out,
		Binds:  []sandbox.Bind{{Source: q.work, Target: workDir}, {Source: lists, Target: listsDir}},
		Owners: &rootemu.Owners{}, NoMounts: true, MaxProcesses: sandbox.DefaultProcesses(),
	})
	out.flush()
	if errors.Is(err, unix.ENOEXEC) {
		return 0, cannotRun(q.platform, fault.HintOf(err))
	}
	return code, err
}

func cannotRun(p v1.Platform, fix string) error {
	return fault.Hint(
		fmt.Errorf("[system] packages for %s cannot be locked on this machine, which is linux/%s: the base's own package manager must run", p.String(), runtime.GOARCH), fix)
}

// lists returns a directory for a manager's lists of packages, with what an earlier question left in it, so that only what
// has changed is fetched. sources tells whose lists they are. Nobody else has the directory until done is called.
//
// A base has lists of its own: managers believe what lies there, and what lies there was written by the base's programs.
func (q *question) lists(ctx context.Context, manager, sources string) (dir string, done func(), err error) {
	of := sources
	for _, d := range q.on {
		of += "\n" + string(d.Digest)
	}
	name := "lists-" + manager + "-v2-" + store.DigestOf([]byte(of)).Hex()
	busy, err := q.store.Lock(ctx, name, "reads the lists of "+manager)
	if err != nil {
		return "", nil, err
	}
	done = func() { busy.Unlock() }
	dir, err = q.store.Tree(ctx, name, func(string) error { return nil })
	if err == nil && strings.HasPrefix(dir, q.store.Dir()+string(filepath.Separator)) && !unwritable(dir) {
		return dir, done, nil
	}
	if err == nil { // it is a shared store's, or another user's
		dir = filepath.Join(q.work, "lists")
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

func unwritable(dir string) bool {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return true
	}
	f.Close()
	return os.Remove(f.Name()) != nil
}

// answer reads what the script left in workDir.
func (q *question) answer(name string) (string, error) {
	root, err := os.OpenRoot(q.work) // a base may be hostile: no link leads out, and no pipe is waited for
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := ctxio.ReadAtMost(f, maxAnswer)
	if err != nil {
		return "", fmt.Errorf("read the package manager's answer: %w", err)
	}
	return string(data), nil
}

// maxAnswer bounds what is read of a manager's answer, in bytes. The names of all of Debian's packages are 1.5 MB.
const maxAnswer = 16 << 20

// copyCertificates lets the manager trust whom downloads trust.
func (q *question) copyCertificates() error {
	for _, name := range []string{os.Getenv("SSL_CERT_FILE"), hostconfig.Bundle()} {
		if data, err := os.ReadFile(name); err == nil {
			return os.WriteFile(filepath.Join(q.work, caFile), data, 0o644)
		}
	}
	return nil // the base's own will have to do
}

// environment is what a manager and the scripts of packages get: nothing of this machine, and nothing of the image's own
// configuration, which is for its programs.
func environment() []string {
	return []string{
		"PATH=" + searchpath.Default,
		"HOME=/root",
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
		"DEBIAN_FRONTEND=noninteractive",
		"PYTHONHASHSEED=0", // byte code holds sets in the order of their hashes
	}
}

// proxies are the variables that name proxies.
func proxies() []string {
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// maxLine is how many bytes of one line are kept. What a base's programs print is theirs to choose.
const maxLine = 64 << 10

// lineWriter passes whole lines on.
type lineWriter struct {
	line    func(string)
	partial []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		i := bytes.IndexAny(w.partial, "\r\n")
		if i < 0 {
			w.partial = w.partial[:min(len(w.partial), maxLine)]
			return len(p), nil
		}
		w.pass(w.partial[:i])
		w.partial = w.partial[i+1:]
	}
}

func (w *lineWriter) flush() {
	w.pass(w.partial)
	w.partial = nil
}

func (w *lineWriter) pass(line []byte) {
	if text := strings.TrimSpace(string(line)); text != "" {
		w.line(text)
	}
}
