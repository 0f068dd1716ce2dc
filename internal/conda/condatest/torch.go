package condatest

import (
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/madetest"
	"sconce.dev/sconce/internal/tooltest"
)

// part is a conda package of Python modules.
type part struct {
	name    string
	entries []string // of Debian's dist-packages; the last are the metadata, which say the version
	depends []string // beside Python and the libraries
}

// torchParts is PyTorch with what it imports.
var torchParts = []part{
	{"numpy", []string{"numpy", "numpy-*.dist-info"}, nil},
	{"typing-extensions", []string{"typing_extensions.py", "typing_extensions-*.dist-info"}, nil},
	{"packaging", []string{"packaging", "packaging-*.dist-info"}, nil},
	{"filelock", []string{"filelock", "filelock-*.dist-info"}, nil},
	{"fsspec", []string{"fsspec", "fsspec-*.dist-info"}, nil},
	{"markupsafe", []string{"markupsafe", "MarkupSafe-*.egg-info"}, nil},
	{"jinja2", []string{"jinja2", "jinja2-*.dist-info"}, []string{"markupsafe"}},
	{"networkx", []string{"networkx", "networkx-*.dist-info"}, nil},
	{"mpmath", []string{"mpmath", "mpmath-*.egg-info"}, nil},
	{"sympy", []string{"sympy", "sympy-*.egg-info"}, []string{"mpmath"}},
	{"psutil", []string{"psutil", "psutil-*.dist-info"}, nil},
	{"setuptools", []string{"setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth", "setuptools-*.egg-info"}, nil},
	{
		"pytorch",
		[]string{"torch", "torchgen", "functorch", "torch-*.egg-info"},
		[]string{"libtorch", "filelock", "fsspec", "jinja2", "networkx", "numpy", "packaging", "setuptools", "sympy", "typing-extensions"},
	},
}

//go:embed torch.go
var torchSource string

// TorchChannel is a channel with a real PyTorch for CPUs, the package "pytorch", and all that it needs but the C library: Python with its
// headers, numpy, setuptools and so on, of Debian 13. What is compiled against it wants a C++ compiler of the base. Libraries find each other
// as those of conda do, relative to where they lie; torch._C alone has the prefix in its program headers, in the place of a placeholder.
//
// The packages are made once, of [madetest.TorchImage], and kept for the next run of tests.
func TorchChannel(t testing.TB) *Channel {
	t.Helper()
	sqfs2tar, patchelf := tooltest.Path(t, "sqfs2tar"), tooltest.Path(t, "patchelf")
	dir := madetest.Once(t, "torch", torchSource+madetest.TorchRecipe, func(ctx context.Context, work, dir string) error {
		file := filepath.Join(work, "root.tar")
		sqsh, _ := madetest.TorchImage(t)
		if err := unsquash(ctx, sqfs2tar, sqsh, file); err != nil {
			return err
		}
		root := filepath.Join(work, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			return err
		}
		args := append([]string{"-xf", file, "-C", root, "--no-same-owner"}, notUnpacked...)
		if said, err := exec.CommandContext(ctx, "tar", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("tar: %w\n%s", err, said)
		}
		d := debianTorch{t: t, root: root, patchelf: patchelf, libs: map[string]bool{}}
		return keep(t, dir, d.packages(PythonIn(t, file, Subdir())))
	})
	c := NewChannel(t)
	for _, p := range kept(t, dir) {
		c.AddArchive(t, p, []byte(read(t, filepath.Join(dir, p.File()))))
	}
	return c
}

// notUnpacked has tar leave out most files: those that no package is made of.
var notUnpacked = []string{
	"--anchored", "--exclude=dev", "--exclude=usr/bin", "--exclude=usr/share", "--exclude=var",
	"--no-anchored", "--exclude=__pycache__", "--exclude=test", "--exclude=tests",
}

// unsquash writes the root file system of a .sqsh as a tar.
func unsquash(ctx context.Context, sqfs2tar, from, to string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, sqfs2tar, from)
	cmd.Stdout, cmd.Stderr = out, &said
	if err := errors.Join(cmd.Run(), out.Close()); err != nil {
		return fmt.Errorf("sqfs2tar: %w\n%s", err, said.String())
	}
	return nil
}

// kept are packages that keep has written, without their files.
func kept(t testing.TB, dir string) (packages []Package) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, "packages.json"))), &packages); err != nil {
		t.Fatal(err)
	}
	return packages
}

func keep(t testing.TB, dir string, packages []Package) error {
	for i := range packages {
		p := &packages[i]
		if err := os.WriteFile(filepath.Join(dir, p.File()), p.Bytes(t), 0o644); err != nil {
			return err
		}
		p.Files = nil
	}
	return os.WriteFile(filepath.Join(dir, "packages.json"), []byte(jsonOf(t, packages)), 0o644)
}

// debianTorch makes conda packages of an unpacked Debian.
type debianTorch struct {
	t        testing.TB
	root     string
	patchelf string
	libs     map[string]bool // libraries that are loaded
	python   string          // the directory lib/python3.13
}

func (d *debianTorch) packages(python Package) []Package {
	minor := python.Version[:strings.LastIndexByte(python.Version, '.')]
	d.python = "lib/python" + minor
	d.headers(python.Files, minor)
	d.bind(python.Files)
	python.Depends = []string{"libdebian"}
	all := []Package{python}
	for _, from := range torchParts {
		all = append(all, d.part(from, minor))
	}
	torch := &all[len(all)-1]
	torch.Build = "cpu_generic_py" + strings.ReplaceAll(minor, ".", "") + "_0"
	d.copy(torch.Files, "usr/include/pybind11", d.python+"/site-packages/torch/include/pybind11")
	libtorch := Package{Name: "libtorch", Version: torch.Version, Build: "cpu_generic_0", Subdir: Subdir(), Depends: []string{"libdebian"}, Files: map[string]File{}}
	for _, name := range []string{"ATen", "c10", "caffe2", "torch", "kineto", "libshm.h"} {
		d.copy(libtorch.Files, "usr/include/"+name, "include/"+name)
	}
	libdebian := Package{Name: "libdebian", Version: "13", Subdir: Subdir(), Depends: []string{"__glibc >=2.41"}, Files: map[string]File{}}
	for name, file := range d.libraries() {
		if ofTorch.MatchString(name) {
			libtorch.Files["lib/"+name] = file
		} else {
			libdebian.Files["lib/"+name] = file
		}
	}
	return append(all, libtorch, libdebian)
}

// headers adds those of Python, with the one of this architecture where that of all architectures includes it.
func (d *debianTorch) headers(files map[string]File, minor string) {
	d.copy(files, "usr/include/python"+minor, "include/python"+minor)
	for _, at := range d.glob("usr/include/*-linux-gnu/python" + minor) {
		d.copy(files, at, "include/python"+minor+"/"+strings.TrimPrefix(at, "usr/include/"))
	}
}

func (d *debianTorch) part(from part, minor string) Package {
	p := Package{
		Name: from.name, Build: "py" + strings.ReplaceAll(minor, ".", "") + "_0", Subdir: Subdir(), Depends: append([]string{"python " + minor + ".*"}, from.depends...),
		Files: map[string]File{},
	}
	for _, pattern := range from.entries {
		found := d.glob("usr/lib/python3/dist-packages/" + pattern)
		if len(found) != 1 {
			d.t.Fatalf("Debian's Python packages have %q for %s", found, pattern)
		}
		name := path.Base(found[0])
		d.copy(p.Files, found[0], d.python+"/site-packages/"+name)
		_, p.Version, _ = strings.Cut(strings.TrimSuffix(strings.TrimSuffix(name, ".dist-info"), ".egg-info"), "-")
	}
	p.Version, _, _ = strings.Cut(p.Version, "+")
	d.bind(p.Files)
	return p
}

func (d *debianTorch) glob(pattern string) (names []string) {
	found, err := filepath.Glob(filepath.Join(d.root, pattern))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, at := range found {
		names = append(names, strings.TrimPrefix(at, d.root+"/"))
	}
	return names
}

// notNeeded are files that only tests of the packages themselves read, and byte code, which is of another place.
var notNeeded = regexp.MustCompile(`/(tests?|__pycache__)(/|$)|torch/bin/(.*[tT]est|test_|tutorial_)`)

// copy adds a file, or all files below a directory. Links to libraries go to where these are here.
func (d *debianTorch) copy(files map[string]File, from, to string) {
	err := filepath.WalkDir(filepath.Join(d.root, from), func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := to + strings.TrimPrefix(at, filepath.Join(d.root, from))
		switch {
		case notNeeded.MatchString(name):
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(at)
			if link = regexp.MustCompile(`[^/]*-linux-gnu/`).ReplaceAllString(link, ""); strings.Contains(link, ".so.") {
				d.libs[path.Base(link)] = true
			}
			files[name] = File{Link: link}
			return err
		default:
			info, err := e.Info()
			if err != nil {
				return err
			}
			files[name] = File{Data: read(d.t, at), Mode: uint32(info.Mode().Perm())}
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// libraryPlaces are where libraries of Debian are; those of linear algebra are chosen among when packages are configured.
var libraryPlaces = []string{"usr/lib/*-linux-gnu/", "usr/lib/", "usr/lib/*-linux-gnu/blas/", "usr/lib/*-linux-gnu/lapack/"}

// libraries are those that the packages load, with those that these load.
func (d *debianTorch) libraries() map[string]File {
	all := map[string]File{}
	for len(d.libs) > 0 {
		for name := range d.libs {
			delete(d.libs, name)
			if _, there := all[name]; !there {
				all[name] = d.library(name)
			}
		}
	}
	return all
}

func (d *debianTorch) library(name string) File {
	for _, place := range libraryPlaces {
		for _, at := range d.glob(place + name) {
			if link, err := os.Readlink(filepath.Join(d.root, at)); err == nil && path.IsAbs(link) {
				continue // to /etc/alternatives, which are this machine's here
			}
			if data, err := os.ReadFile(filepath.Join(d.root, at)); err == nil {
				files := map[string]File{"lib/" + name: {Data: string(data)}}
				d.bind(files)
				return files["lib/"+name]
			}
		}
	}
	d.t.Fatalf("Debian has no %s", name)
	return File{}
}

// ofTheBase are the libraries that a conda environment takes of the system.
var ofTheBase = regexp.MustCompile(`^(ld-linux|(libc|libm|libdl|libpthread|librt|libutil|libresolv)\.so\.)`)

// bind has programs and libraries look for libraries in lib, and notes which.
func (d *debianTorch) bind(files map[string]File) {
	for name, f := range files {
		if !strings.HasPrefix(f.Data, elf.ELFMAG) {
			continue
		}
		x, err := elf.NewFile(strings.NewReader(f.Data))
		if err != nil {
			d.t.Fatalf("%s: %v", name, err)
		}
		needed, err := x.ImportedLibraries()
		if err != nil {
			d.t.Fatalf("%s: %v", name, err)
		}
		needed = slices.DeleteFunc(needed, ofTheBase.MatchString)
		for _, lib := range needed {
			d.libs[lib] = true
		}
		if len(needed) > 0 {
			f.Data = d.lookIn(name, f.Data)
			files[name] = f
		}
	}
}

// ofTorch are the libraries of PyTorch itself.
var ofTorch = regexp.MustCompile(`^lib(torch|c10|shm)`)

// lookIn writes where libraries are looked for: relative to the file, but in torch._C. Those of PyTorch are loaded through links in
// torch/lib, too, and are then there for the loader.
func (d *debianTorch) lookIn(name, data string) string {
	rel, err := filepath.Rel(path.Dir(name), "lib")
	where := "$ORIGIN/" + rel
	switch base := path.Base(name); {
	case strings.HasPrefix(base, "_C."):
		where = Placeholder + "/lib"
	case ofTorch.MatchString(base):
		where += ":$ORIGIN/../../../.."
	}
	file := filepath.Join(d.t.TempDir(), "file")
	if err := errors.Join(err, os.WriteFile(file, []byte(data), 0o644)); err != nil {
		d.t.Fatal(err)
	}
	if said, err := exec.Command(d.patchelf, "--set-rpath", where, file).CombinedOutput(); err != nil {
		d.t.Fatalf("patchelf %s: %v\n%s", name, err, said)
	}
	return read(d.t, file)
}
