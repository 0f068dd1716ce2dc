package conda

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/layer"
)

// maxPath bounds a path with the prefix, in bytes: what Linux takes.
const maxPath = 4095

// checkPath is [layer.CheckPath] for what goes into a layer as it is called in the package.
func checkPath(name string) error {
	if err := layer.CheckPath(name, maxPath); err != nil {
		return err
	}
	if strings.Count(name, "/") > layer.MaxDepth-maxPrefixDepth {
		return errors.New("it lies in too many directories")
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, layer.WhiteoutPrefix) {
			return fmt.Errorf("its name has the component %q, which in an image removes files", part)
		}
	}
	return nil
}

// below reports whether p is the directory dir or lies in it.
func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

// maxPrefix bounds a prefix, in bytes. The line "#!PREFIX/bin/python3.12" must fit into 127, what kernels before 5.1 read of it.
const (
	maxPrefix      = 80
	maxPrefixDepth = 40 // components
)

// Target is where packages go: a directory of the image, and the Python that the environment has.
type Target struct {
	Prefix string // absolute and clean: "/opt/conda"
	Python Python // none in an environment without
}

// Python is what packages for any Python have to know of the environment's.
type Python struct {
	Version      string // the full version: "3.12.4"; "" is none
	SitePackages string // below the prefix: "lib/python3.12/site-packages"
	Compiler     string `json:",omitempty"` // the full version of another Python that makes the byte code; "": it does so itself
}

// PythonOf returns the Python of an environment of packages.
func PythonOf(packages []Package) Python {
	for _, p := range packages {
		if p.Name != "python" {
			continue
		}
		py := Python{Version: p.Version, SitePackages: p.SitePackages}
		if py.SitePackages == "" { // CEP 17
			py.SitePackages = "lib/python" + py.Minor() + "/site-packages"
		}
		return py
	}
	return Python{}
}

// Minor returns the version as far as paths and byte code depend on it: "3.12".
func (p Python) Minor() string { return cpython.Minor(p.Version) }

// cacheTag is what stands in the names of its byte code (PEP 3147).
func (p Python) cacheTag() string { return cpython.CacheTag(p.Version) }

// Executable returns the absolute path of the environment's Python.
func (t Target) Executable() string { return t.Prefix + "/bin/python" + t.Python.Minor() }

// root is the prefix as paths in layers are.
func (t Target) root() string { return strings.TrimPrefix(t.Prefix, "/") }

// validate refuses a prefix that could not stand in a script: there are shells, and the first lines of scripts, that end a word at
// a blank.
func (t Target) validate() error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._+-", r)
	}
	switch p := t.Prefix; {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		return fmt.Errorf("%q cannot be the prefix of a conda environment: it must be an absolute path", p)
	case len(p) > maxPrefix || strings.Count(p, "/") > maxPrefixDepth:
		return fmt.Errorf("the prefix %s has %d bytes: at most %d leave room for the first lines of scripts", p, len(p), maxPrefix)
	case strings.ContainsFunc(p, func(r rune) bool { return !plain(r) }):
		return fmt.Errorf(`the prefix %q may have letters, digits and ". _ + -" alone: it stands in scripts`, p)
	}
	if v := t.Python; v.Version != "" {
		if err := checkPath(v.SitePackages); err != nil {
			return fmt.Errorf("site-packages of Python %s, %q: %w", v.Version, v.SitePackages, err)
		}
		if !cpython.Valid(v.Version) {
			return fmt.Errorf("%q is not the version of a Python", v.Version)
		}
	}
	return nil
}

// place says where a file of a package goes below the prefix; "" is nowhere. Files of a package for any Python lie where this one
// looks for them (CEP 17, CEP 20).
func (t Target) place(name string, noarchPython bool) (string, error) {
	if below(name, "Menu") { // entries for the menus of desktops (CEP 11)
		return "", nil
	}
	if noarchPython {
		if rest, ok := strings.CutPrefix(name, "site-packages/"); ok {
			name = t.Python.SitePackages + "/" + rest
		} else if rest, ok := strings.CutPrefix(name, "python-scripts/"); ok {
			name = "bin/" + rest
		}
	}
	if below(name, "conda-meta") {
		return "", errors.New("it lies in conda-meta, where no package has files")
	}
	return name, checkPath(t.root() + "/" + name)
}
