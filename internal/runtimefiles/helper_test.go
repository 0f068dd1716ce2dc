package runtimefiles

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func regular(p, data string) item {
	return item{layer.Entry{Path: p, Mode: 0o644, Size: int64(len(data))}, []byte(data)}
}

func program(p, data string) item {
	i := regular(p, data)
	i.Mode = 0o755
	return i
}

func directory(p string) item {
	return item{Entry: layer.Entry{Path: p, Type: layer.Dir, Mode: 0o755}}
}

func symlink(p, to string) item {
	return item{Entry: layer.Entry{Path: p, Type: layer.Symlink, Mode: 0o777, Link: to}}
}

// base makes a layer. Parents that are not given are implied.
func base(tb testing.TB, st *store.Store, items ...item) layer.Descriptor {
	tb.Helper()
	b := newBuilder(nil)
	for _, i := range items {
		b.items[i.Path] = i
	}
	w, err := layer.NewWriter(context.Background(), st, layer.Options{Compression: layer.None})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	for _, i := range b.sorted() {
		if err := w.Add(i.Entry, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(i.data)), nil }); err != nil {
			tb.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func treeOf(tb testing.TB, st *store.Store, layers ...layer.Descriptor) *image.Tree {
	tb.Helper()
	tree, err := image.NewTree(context.Background(), st, layers)
	if err != nil {
		tb.Fatal(err)
	}
	return tree
}

// dressed returns the image's tree with the layer on top, and the tree of the layer alone.
func dressed(tb testing.TB, im Image, items ...item) (whole, alone *image.Tree) {
	tb.Helper()
	st := storetest.Alone(tb)
	below := base(tb, st, items...)
	d, err := Layer(context.Background(), st, im, treeOf(tb, st, below))
	if err != nil {
		tb.Fatal(err)
	}
	return treeOf(tb, st, below, d), treeOf(tb, st, d)
}

func reading(tree *image.Tree) func(string) ([]byte, error) {
	return func(p string) ([]byte, error) { return tree.ReadFile(p, 16<<20) }
}

// python is an image such as Docker Hub has.
func python() Image {
	return Image{
		Digest: "sha256:" + store.Digest(strings.Repeat("ab", 32)),
		Config: v1.ConfigFile{
			Architecture: "arm64", OS: "linux", Variant: "v8",
			Created: v1.Time{Time: time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)},
			Config: v1.Config{
				Env: []string{
					"PATH=/opt/venv/bin:/usr/bin:/bin", "LANG=C.UTF-8", `GREETING=it's "quoted" for $5 or a ` + "`tick` \\",
					"LINES_=one\ntwo", "PINNED=${HOME}/x", `OPTS="-a -b"`, "BARE", "bad-name=1", "ENROOT_X=1", "LANG=de_DE.UTF-8",
				},
				Entrypoint: []string{"python3", "-c", `print("it's")`},
				Cmd:        []string{"--verbose", "two words"},
				WorkingDir: "/srv/app dir",
				Volumes:    map[string]struct{}{"/data": {}, "/with space": {}, "cache": {}},
				Labels:     map[string]string{"maintainer": "A <a@example.org>", "multi": "one\ntwo", "org.opencontainers.image.variant": "own"},
			},
		},
	}
}

// shells are what /bin/sh is on the distributions that matter, by the name of the program.
var shells = []string{"dash", "bash", "busybox"}

// root is a root file system on disk with a shell.
type root struct {
	tb  testing.TB
	dir string
}

// newRoot unpacks the image with shell as its /bin/sh.
func newRoot(tb testing.TB, shell string, im Image, items ...item) *root {
	tb.Helper()
	busybox := tooltest.Path(tb, "busybox")
	sh := tooltest.Path(tb, shell)
	items = append(items, symlink("bin/sh", "/bin/"+shell), program("bin/show", showArguments))
	tree, _ := dressed(tb, im, items...)
	r := &root{tb, tb.TempDir()}
	r.unpack(tree)
	r.install(busybox)
	r.install(sh)
	for _, applet := range []string{"tr", "sed", "mkdir", "cat", "pwd", "env"} {
		r.link("/bin/busybox", "bin/"+applet)
	}
	return r
}

// showArguments is a program that prints its arguments, each followed by NUL.
const showArguments = "#!/bin/busybox sh\nfor a do printf '%s\\0' \"$a\"; done\n"

func (r *root) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

func (r *root) unpack(tree *image.Tree) {
	r.must(tree.Walk(func(n *image.Node) error {
		to := filepath.Join(r.dir, n.Path)
		switch n.Type {
		case layer.Dir:
			return os.Mkdir(to, fs.FileMode(n.Mode&0o777)|0o700)
		case layer.Symlink:
			return os.Symlink(n.Link, to)
		case layer.Regular:
			data, err := tree.ReadFile(n.Path, 1<<30)
			return errors.Join(err, os.WriteFile(to, data, fs.FileMode(n.Mode&0o777)))
		}
		return errors.New("unexpected type of " + n.Path)
	}))
}

func (r *root) link(to, p string) {
	if err := os.Symlink(to, filepath.Join(r.dir, p)); !errors.Is(err, fs.ErrExist) {
		r.must(err)
	}
}

func (r *root) write(p, data string) {
	r.must(os.MkdirAll(filepath.Dir(filepath.Join(r.dir, p)), 0o755))
	r.must(os.WriteFile(filepath.Join(r.dir, p), []byte(data), 0o755))
}

// install copies a program and the libraries it needs.
func (r *root) install(p string) {
	data, err := os.ReadFile(p)
	r.must(err)
	r.write("bin/"+filepath.Base(p), string(data))
	f, err := elf.NewFile(bytes.NewReader(data))
	r.must(err)
	names, err := f.ImportedLibraries()
	r.must(err)
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			name, err := io.ReadAll(s.Open())
			r.must(err)
			r.library(strings.TrimRight(string(name), "\x00"))
		}
	}
	for _, n := range names {
		found := false
		for _, pattern := range []string{"/lib/*-linux-gnu/", "/usr/lib/*-linux-gnu/", "/lib64/", "/usr/lib64/", "/lib/"} {
			hits, _ := filepath.Glob(pattern + n)
			for _, h := range hits[:min(1, len(hits))] {
				r.library(h)
				found = true
			}
		}
		if !found {
			r.tb.Skipf("library %s of %s is nowhere where it usually is", n, p)
		}
	}
}

func (r *root) library(p string) {
	data, err := os.ReadFile(p)
	r.must(err)
	r.write(p, string(data))
}

// run runs a program in the root with exactly this environment. Without args[0]'s path, name is the program.
func (r *root) run(env []string, name string, args ...string) (stdout string, code int) {
	r.tb.Helper()
	cmd := &exec.Cmd{Path: name, Args: args, Env: slices.Clone(env), Dir: "/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit), err == nil:
	case errors.Is(err, fs.ErrPermission) && os.Getuid() != 0:
		r.tb.Skipf("an ordinary user may not change the root here: %v", err)
	default:
		r.tb.Fatalf("%s: %v", name, err)
	}
	if stderr.Len() > 0 {
		r.tb.Logf("%s %q: %s", name, args, stderr.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// enroot starts a container as enroot does: the environment is what its reader makes of /etc/environment, and more after it.
func (r *root) enroot(shell string, more []string, command ...string) (string, int) {
	r.tb.Helper()
	args := append([]string{shell, "/etc/rc"}, command...)
	env := append(r.environment(), more...)
	if shell == "busybox" {
		args[0] = "sh"
	}
	return r.run(env, "/bin/sh", args...)
}

// environment is what enroot reads from /etc/environment when the host has HOME=/host.
func (r *root) environment() []string {
	r.tb.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "etc/environment"))
	r.must(err)
	text := strings.ReplaceAll(string(data), "${HOME}", "/host")
	return environmentLines(text)
}

// action runs one of Apptainer's actions with this environment.
func (r *root) action(env []string, name string, args ...string) (string, int) {
	r.tb.Helper()
	p := path.Join("/.singularity.d/actions", name)
	return r.run(env, p, append([]string{p}, args...)...)
}

// split undoes showArguments.
func split(out string) []string {
	if out == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
}
