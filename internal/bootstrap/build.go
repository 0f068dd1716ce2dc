package bootstrap

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
)

// Version is the version of the code below: it enters the key of every bootstrapped base.
const Version = 3

// Build makes the layer that p pins. What a base lacks of the packages is downloaded first, in parallel.
func Build(ctx context.Context, st *store.Store, fetcher *fetch.Client, p *Pinned, o layer.Options) (layer.Descriptor, error) {
	if err := download(ctx, fetcher, p); err != nil {
		return layer.Descriptor{}, err
	}
	task := progress.Begin(ctx, "bootstrap", p.Suite, 0)
	with := build
	if p.Manager == managerRPM {
		with = buildRPM
	}
	d, err := with(ctx, task, st, p, o)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("bootstrap %s: %w", p.Suite, err)
	}
	return d, task.End(err)
}

func download(ctx context.Context, fetcher *fetch.Client, p *Pinned) error {
	var requests []fetch.Request
	for _, pkg := range p.Packages {
		requests = append(requests, fetch.Request{URL: pkg.URL, Digest: pkg.SHA256, Size: pkg.Size, Name: pkg.Name + " " + pkg.Version, OfRecipe: true})
	}
	return lies(fetcher.Blobs(ctx, requests))
}

// making is a base on its way to a layer.
type making struct {
	store *store.Store
	task  *progress.Task
	p     *Pinned

	work     string // all of it; removed at the end
	upper    string // the new system's root directory
	run      string // what the script in it needs, and its answers
	packages string // the package files that apt installs
	owners   rootemu.Owners
}

func build(ctx context.Context, task *progress.Task, st *store.Store, p *Pinned, o layer.Options) (d layer.Descriptor, err error) {
	work, err := st.TempDir("bootstrap-*")
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, store.RemoveAll(work)) }()
	m := &making{
		store: st, task: task, p: p, work: work,
		upper: filepath.Join(work, sandbox.Upper), run: filepath.Join(work, "run"), packages: filepath.Join(work, "packages"),
	}
	if err := m.prepare(ctx); err != nil {
		return d, err
	}
	if err := m.install(ctx); err != nil {
		return d, err
	}
	o.ModTime = p.Epoch
	return layer.FromUpper(ctx, st, m.upper, layer.UpperOptions{Options: o, Owner: sandbox.Owner(&m.owners)})
}

// prepare lays down everything that the new system needs to go on by itself.
func (m *making) prepare(ctx context.Context) error {
	for _, dir := range []string{m.upper, m.run, m.packages, filepath.Join(m.work, "below")} {
		if err := makeDir(dir, 0o755); err != nil {
			return err
		}
	}
	first, rest, err := m.split(ctx)
	if err != nil {
		return err
	}
	if err := m.skeleton(); err != nil {
		return err
	}
	root, err := os.OpenRoot(m.upper)
	if err != nil {
		return err
	}
	defer root.Close()
	x := newUnpacker(m.store, root)
	if err := x.unpack(ctx, first); err != nil {
		return err
	}
	// The script has the database elsewhere while it works.
	database := filepath.Join(m.run, "dpkg")
	if err := os.Rename(filepath.Join(m.upper, databaseDir), database); err != nil {
		return err
	}
	if err := makeDir(filepath.Join(m.upper, databaseDir), 0o755); err != nil {
		return err
	}
	if err := writeDatabase(database, m.p.Architecture, first); err != nil {
		return err
	}
	if err := m.orders(first, x.given); err != nil {
		return err
	}
	return m.lay(rest, "deb")
}

const databaseDir = "var/lib/dpkg"

// split divides the packages: of those that every system has, and of what they need, the files are laid down here, and the others are
// left to apt. Scripts that run before a package is unpacked find nothing to do in the first (Debian Policy 3.8), but for making
// what they need themselves.
func (m *making) split(ctx context.Context) (first []*unpacked, rest []Package, err error) {
	u := debian.NewUniverse(m.p.Architecture)
	controls := make([]*unpacked, len(m.p.Packages))
	g, _ := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, pkg := range m.p.Packages {
		g.Go(func() (err error) {
			controls[i], err = readControl(m.store, pkg)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, c := range controls {
		if err := u.Add(&c.Package); err != nil {
			return nil, nil, err
		}
	}
	asked := u.Where(func(p *debian.Package) bool { return p.Essential || p.Priority == "required" })
	for _, name := range []string{"apt", "usr-is-merged"} {
		if u.Has(name) {
			asked = append(asked, name)
		}
	}
	closed, err := u.Close(asked)
	if err != nil {
		return nil, nil, fmt.Errorf("the packages that are pinned do not make a system: %w", err)
	}
	for _, c := range controls {
		if slices.ContainsFunc(closed, func(p *debian.Package) bool { return p.Name == c.Name }) {
			first = append(first, c)
		} else {
			rest = append(rest, c.pinned)
		}
	}
	return first, rest, nil
}

// merged are the directories of the root that are links into /usr, as every current release of Debian and Ubuntu has them.
var merged = map[string][]string{
	"amd64": {"bin", "sbin", "lib", "lib32", "lib64", "libx32"},
	"i386":  {"bin", "sbin", "lib", "lib64", "libx32"},
	"":      {"bin", "sbin", "lib"},
}

// skeleton makes what no package brings.
func (m *making) skeleton() error {
	links, ok := merged[m.p.Architecture]
	if !ok {
		links = merged[""]
	}
	for _, name := range links {
		if err := makeDir(filepath.Join(m.upper, "usr", name), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+name, filepath.Join(m.upper, name)); err != nil {
			return err
		}
	}
	for _, dir := range []string{
		"dev", "proc", "sys", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/dpkg/dpkg.cfg.d", "var/cache/apt",
		"var/lib/apt/lists/partial", "var/log/apt", databaseDir + "/info", databaseDir + "/updates", databaseDir + "/triggers", databaseDir + "/alternatives",
	} {
		if err := makeDir(filepath.Join(m.upper, dir), 0o755); err != nil {
			return err
		}
	}
	if err := makeDir(filepath.Join(m.upper, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	// Runtimes bring their own of the last two, over what is there.
	for name, text := range map[string]string{
		"etc/apt/sources.list": m.p.Sources, "etc/fstab": "# UNCONFIGURED FSTAB FOR BASE SYSTEM\n", "etc/hostname": "", "etc/resolv.conf": "",
	} {
		if err := writeFile(filepath.Join(m.upper, name), []byte(text), 0o644, m.p.Epoch); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes a directory and those above it, whatever the umask is.
func makeDir(dir string, mode os.FileMode) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// orders writes what the script is to do: whose files are, which scripts run first, what must be there in the end, as dpkg says it.
func (m *making) orders(all []*unpacked, files []given) error {
	var owners, preinst, expected strings.Builder
	for _, f := range files {
		mode := "-"
		if f.mode != 0 {
			mode = fmt.Sprintf("%04o", f.mode)
		}
		fmt.Fprintf(&owners, "%d:%d %s %s\n", f.uid, f.gid, mode, f.path)
	}
	version := "1"
	for _, u := range all {
		if u.has("preinst") != nil {
			fmt.Fprintf(&preinst, "%s %s\n", u.Name, u.Architecture)
			if err := u.writeScripts(filepath.Join(m.run, "control", u.Name)); err != nil {
				return err
			}
		}
		if u.Name == "dpkg" {
			version = u.Version
		}
	}
	for _, pkg := range m.p.Packages {
		fmt.Fprintf(&expected, "%s %s %s\n", pkg.Name, pkg.Architecture, debian.WrittenVersion(pkg.Version))
	}
	for name, text := range map[string]string{
		"owners": owners.String(), "preinst": preinst.String(), "expected": expected.String(), "dpkg-version": version + "\n",
	} {
		if err := writeFile(filepath.Join(m.run, name), []byte(text), 0o644, m.p.Epoch); err != nil {
			return err
		}
	}
	return nil
}

// lay puts package files where the package manager finds them.
func (m *making) lay(packages []Package, ending string) error {
	for i, pkg := range packages {
		from, err := m.store.BlobPath(pkg.SHA256)
		if err != nil {
			return err
		}
		to := filepath.Join(m.packages, fmt.Sprintf("%04d_%s.%s", i, pkg.Name, ending)) // no epoch's colon
		if os.Link(from, to) == nil {
			continue
		}
		if err := m.store.CopyBlob(pkg.SHA256, to); err != nil { // a shared store's, perhaps on another file system
			return err
		}
	}
	return nil
}

//go:embed install.sh
var installScript string

// policy tells invoke-rc.d(8) that no service may be started: 101 is "action forbidden by policy".
const policy = "#!/bin/sh\nexit 101\n"

// dpkgForce is what dpkg forces by default (dpkg(1), "DPKG_FORCE"), and unsafe-io: a root file system that is packed and
// thrown away need not survive a power cut, and without the thousands of syncs it is made in a fraction of the time.
const dpkgForce = "security-mac,downgrade,unsafe-io"

// install lets the new system's own programs do the rest.
func (m *making) install(ctx context.Context) error {
	err := m.inSandbox(ctx, []string{filepath.Join(m.work, "below")}, installScript, []sandbox.Bind{
		{Source: m.run, Target: "/run/sconce-bootstrap"},
		{Source: m.packages, Target: "/run/sconce-packages", ReadOnly: true},
	}, "/"+databaseDir)
	if err != nil {
		return err
	}
	database := filepath.Join(m.upper, databaseDir)
	if err := os.RemoveAll(database); err != nil {
		return err
	}
	return os.Rename(filepath.Join(m.run, "dpkg"), database)
}

// inSandbox runs a script on layers, and keeps what it changes in m.upper. It has no network.
func (m *making) inSandbox(ctx context.Context, layers []string, script string, binds []sandbox.Bind, inMemory ...string) error {
	tail := &tailWriter{task: m.task}
	code, err := sandbox.Run(ctx, sandbox.Options{
		Layers: layers, Arch: m.p.Architecture, UpperDir: m.work, Owners: &m.owners,
		Args: []string{"/bin/sh", "-c", script, "sh"},
		Env: []string{
			"PATH=" + searchpath.Default, "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC", "DEBIAN_FRONTEND=noninteractive", "DPKG_FORCE=" + dpkgForce,
			"PYTHONHASHSEED=0", // byte code holds sets in the order of their hashes
			fmt.Sprintf("SOURCE_DATE_EPOCH=%d", m.p.Epoch.Unix()),
		},
		Stdout: tail, Stderr: tail, Hostname: "sconce", NoNetwork: true, NoMounts: true, MaxProcesses: sandbox.DefaultProcesses(),
		Tmpfs:  inMemory,
		Binds:  binds,
		Mounts: []sandbox.Mount{{Target: "/usr/sbin/policy-rc.d", Content: []byte(policy), Mode: 0o755}},
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, unix.ENOEXEC):
		return fault.Hint(fmt.Errorf("the packages for %s cannot be configured on this machine, which is linux/%s: their scripts run programs of that architecture",
			m.p.Architecture, runtime.GOARCH), fault.HintOf(err)+"; or set base.image to an image instead")
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("its packages cannot be installed: exit code %d\n%s", code, strings.Join(tail.lines, "\n"))
	}
	return nil
}
