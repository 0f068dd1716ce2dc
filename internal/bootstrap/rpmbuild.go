package bootstrap

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rpm"
	"sconce.dev/sconce/internal/rpmdb"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

//go:embed rpm-install.sh
var rpmInstallScript string

//go:embed rpm-database.sh
var rpmDatabaseScript string

// targetDir is where the first root has the new one.
const targetDir = "target"

// rpmMaking is a base from RPM packages on its way to a layer.
type rpmMaking struct {
	making

	first string // the first root
}

func buildRPM(ctx context.Context, task *progress.Task, st *store.Store, p *Pinned, o layer.Options) (d layer.Descriptor, err error) {
	work, err := st.TempDir("bootstrap-*")
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, store.RemoveAll(work)) }()
	m := &rpmMaking{first: filepath.Join(work, "first"), making: making{
		store: st, task: task, p: p, work: work,
		upper: filepath.Join(work, sandbox.Upper), run: filepath.Join(work, "run"), packages: filepath.Join(work, "packages"),
	}}
	for _, step := range []func(context.Context) error{m.prepare, m.install, m.database, m.clean} {
		if err := step(ctx); err != nil {
			return d, err
		}
	}
	o.ModTime = p.Epoch
	return layer.FromUpper(ctx, st, filepath.Join(m.upper, targetDir), layer.UpperOptions{Options: o, Owner: sandbox.Owner(&m.owners)})
}

// prepare lays down the first root: rpm, a shell, and what they need of the packages that are pinned.
func (m *rpmMaking) prepare(ctx context.Context) error {
	for _, dir := range []string{filepath.Join(m.upper, targetDir), m.run, m.packages, m.first} {
		if err := makeDir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := m.lay(m.p.Packages, "rpm"); err != nil {
		return err
	}
	first, err := m.split()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(m.first)
	if err != nil {
		return err
	}
	defer root.Close()
	return (&firstRoot{store: m.store, root: root}).unpack(ctx, first)
}

// split returns the packages of the first root.
func (m *rpmMaking) split() ([]Package, error) {
	u := rpm.NewUniverse(rpmArchitectures[m.p.Architecture])
	for i, pkg := range m.p.Packages {
		f, err := m.read(pkg)
		if err != nil {
			return nil, fmt.Errorf("package %s %s: %w", pkg.Name, pkg.Version, err)
		}
		listed := f.Listed()
		listed.Repository = i // which finds it again
		u.Add(listed)
	}
	u.FilesKnown()
	asked := []rpm.Relation{{Name: "rpm"}, {Name: "/bin/sh"}}
	if u.Has("filesystem") { // whose links say where everything lies
		asked = append(asked, rpm.Relation{Name: "filesystem"})
	}
	closed, err := u.Close(asked)
	if err != nil {
		return nil, fmt.Errorf("the packages that are pinned do not make a system with rpm: %w", err)
	}
	var first []Package
	for _, c := range closed {
		first = append(first, m.p.Packages[c.Repository])
	}
	return first, nil
}

func (m *rpmMaking) read(pkg Package) (*rpm.File, error) {
	in, err := m.store.OpenBlob(pkg.SHA256)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return openPinned(in, pkg)
}

// targetDevices are the device nodes that scripts in the new root find, which has no /dev of its own.
var targetDevices = []string{"null", "zero", "full", "random", "urandom"}

// script runs one in the first root, with the new root in it.
func (m *rpmMaking) script(ctx context.Context, text string) error {
	binds := []sandbox.Bind{
		{Source: m.run, Target: "/run/sconce-bootstrap"},
		{Source: m.packages, Target: "/run/sconce-packages", ReadOnly: true},
	}
	for _, name := range targetDevices {
		if device := "/dev/" + name; isThere(device) {
			binds = append(binds, sandbox.Bind{Source: device, Target: path.Join("/", targetDir, device)})
		}
	}
	return m.inSandbox(ctx, []string{m.first}, text, binds)
}

func isThere(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

func (m *rpmMaking) install(ctx context.Context) error {
	if err := m.script(ctx, rpmInstallScript); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(m.run, "installed"))
	if err != nil {
		return err
	}
	installed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 {
			words[2] = rpm.ParseVersion(words[2]).String() // rpm itself writes an epoch of 0, too
			installed[strings.Join(words, " ")] = true
		}
	}
	for _, pkg := range m.p.Packages {
		if line := pkg.Name + " " + pkg.Architecture + " " + pkg.Version; !installed[line] {
			return fmt.Errorf("%s is not installed as it should be", line)
		}
	}
	return nil
}

// Tags that rpm adds to a package's header when it installs it.
const (
	tagInstallTime        = 1008
	tagInstallTransaction = 1128
)

// database makes that of the new root anew. rpm notes when it has installed what, for which only RPM 4.18 and later take a time that
// they are given.
func (m *rpmMaking) database(ctx context.Context) error {
	name := filepath.Join(m.run, "headers")
	headers, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := setInstallTimes(headers, uint32(m.p.Epoch.Unix())); err != nil {
		return err
	}
	if err := os.WriteFile(name, headers, 0o644); err != nil {
		return err
	}
	where, err := os.ReadFile(filepath.Join(m.run, "database"))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Join(m.upper, targetDir))
	if err != nil {
		return err
	}
	defer root.Close()
	dir := strings.Trim(strings.TrimSpace(string(where)), "/")
	if err := emptyDir(root, dir); err != nil {
		return fmt.Errorf("empty the database of rpm: %w", err)
	}
	if err := m.script(ctx, rpmDatabaseScript); err != nil {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // of who has it open
		if n := e.Name(); n == ".rpm.lock" || strings.HasPrefix(n, "__db.") || strings.HasSuffix(n, "-shm") || strings.HasSuffix(n, "-wal") {
			if err := root.Remove(path.Join(dir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func emptyDir(root *os.Root, dir string) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := root.RemoveAll(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// setInstallTimes gives all headers of an exported database the same time, in seconds since 1970.
func setInstallTimes(headers []byte, when uint32) error {
	magic := []byte{0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0}
	for rest := headers; len(rest) > 0; {
		if !bytes.HasPrefix(rest, magic) || len(rest) < len(magic)+rpmdb.IntroSize {
			return errors.New("the database of rpm cannot be read: it is no list of headers")
		}
		rest = rest[len(magic):]
		size := rpmdb.HeaderSize(rest)
		h, err := rpmdb.ParseHeader(rest)
		if err == nil {
			err = errors.Join(h.SetInts32(tagInstallTime, when), h.SetInts32(tagInstallTransaction, when))
		}
		if err != nil {
			return fmt.Errorf("the database of rpm cannot be read: %w", err)
		}
		rest = rest[size:]
	}
	return nil
}

// leftovers are files that hold times, inode numbers or nothing of use, in the new root.
var leftovers = []string{
	"var/log/*.log", "var/log/dnf.*", "var/log/hawkey.log", "var/cache/ldconfig/aux-cache", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-",
	"etc/subuid-", "etc/subgid-", "etc/.pwd.lock", "var/cache/dnf/*", "var/cache/libdnf5/*", "tmp/*", "var/tmp/*", "var/lib/dbus/machine-id",
}

// repositoryDirs are where package managers look for repositories.
var repositoryDirs = []string{"etc/zypp/repos.d", "etc/yum.repos.d"}

// clean leaves nothing behind that would differ from machine to machine or from run to run, and writes where packages come from.
func (m *rpmMaking) clean(context.Context) error {
	root, err := os.OpenRoot(filepath.Join(m.upper, targetDir))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, pattern := range leftovers {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	if info, err := root.Lstat("etc/machine-id"); err == nil && info.Mode().IsRegular() && info.Size() > 0 { // machine-id(5): an image has an empty one
		if err := root.WriteFile("etc/machine-id", nil, 0o444); err != nil {
			return err
		}
	}
	if m.p.Sources == "" {
		return nil
	}
	return m.configure(root)
}

// configure makes the repositories that were asked for those of the image, and switches off those that a package has brought, unless they
// stand beside them.
func (m *rpmMaking) configure(root *os.Root) error {
	dir := repositoryDirs[len(repositoryDirs)-1]
	for _, d := range repositoryDirs {
		if info, err := root.Stat(d); err == nil && info.IsDir() {
			dir = d
			break
		}
	}
	brought, err := fs.Glob(root.FS(), dir+"/*.repo")
	if err != nil {
		return err
	}
	if m.p.Beside {
		brought = nil
	}
	for _, name := range brought {
		if err := switchOff(root, name); err != nil {
			return err
		}
	}
	if err := writeBelow(root, dir+"/bootstrap.repo", m.p.Sources); err != nil || m.p.Keys == "" {
		return err
	}
	return writeBelow(root, keyFile, m.p.Keys)
}

func switchOff(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxKeys {
		return err
	}
	data, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "enabled" && strings.TrimSpace(value) != "0" {
			lines[i] = "enabled=0"
		}
	}
	return root.WriteFile(name, []byte(strings.Join(lines, "\n")), info.Mode().Perm())
}

// writeBelow writes a file that is not there yet, of mode 0644, with the directories above it.
func writeBelow(root *os.Root, name, text string) error {
	dir := path.Dir(name)
	for above := range strings.SplitSeq(dir, "/") {
		at := strings.Index(dir+"/", above+"/") + len(above)
		if err := root.Mkdir(dir[:at], 0o755); err == nil {
			err = root.Chmod(dir[:at], 0o755) // whatever the umask is
			if err != nil {
				return err
			}
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o644), f.Close())
}
