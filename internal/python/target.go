// Package python lays Python packages down: it reads wheels, spreads them as pip would, and makes layers of them.
//
// Nothing here runs pip. A [Wheel] is read member by member from the store, every byte checked against the wheel's own
// RECORD; [Layout] says where each member goes under a [Target]; [BuildLayer] writes the files of a [Group] of wheels as
// one deterministic layer, byte code included. What differs between two images that hold the same wheel (which package
// was asked for, where it came from, the interpreter's links) is kept out of these layers, in the one that
// [BuildEnvironment] makes.
package python

import (
	"fmt"
	"path"
	"strings"

	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/entrypoint"
)

// Target is where packages go: a virtual environment in the image, made for one interpreter, or the interpreter's own prefix.
type Target struct {
	Root   string // the environment's directory, relative to the image's root: "opt/venv"
	Python Interpreter

	// Own: Root is the interpreter's own prefix. Packages go beside its library, as those of a conda environment do, and there
	// is no virtual environment.
	Own bool `json:",omitempty"`

	// Added: Root is an environment that layers below have. Packages are added to it, and the environment itself is left as it is.
	Added bool `json:",omitempty"`

	// Relocatable: the environment works in any directory that it is seen in. Its commands find their interpreter beside them.
	Relocatable bool `json:",omitempty"`
}

// Interpreter is the Python that an image brings, as found by reading the image (see [Find]).
type Interpreter struct {
	Executable     string      `json:"executable"`         // absolute path in the image, no symlink: /usr/bin/python3.11
	Version        string      `json:"version"`            // the full version: 3.11.2
	Prefix         string      `json:"prefix"`             // sys.base_prefix: /usr
	Implementation string      `json:"implementation"`     // "cpython"
	Platform       string      `json:"platform"`           // the machine, as wheel tags spell it: x86_64, aarch64
	Glibc          string      `json:"glibc,omitempty"`    // glibc's version, 2.36; empty with musl
	Musl           string      `json:"musl,omitempty"`     // musl's version, 1.2; empty with glibc
	SitePackages   []string    `json:"sitePackages"`       // absolute directories it imports from by default, first first
	Packages       []Installed `json:"packages,omitempty"` // distributions installed there, by normalised name
}

// Installed is one distribution that the base brings.
type Installed struct {
	Name     string   `json:"name"` // normalised
	Version  string   `json:"version"`
	Requires []string `json:"requires,omitempty"` // Requires-Dist, as written
	Path     string   `json:"path"`               // of its metadata directory or file, absolute
}

// Minor returns the version as far as paths and byte code depend on it: 3.11.
func (i Interpreter) Minor() string { return cpython.Minor(i.Version) }

// CacheTag returns what stands in the name of byte code files (sys.implementation.cache_tag): cpython-311.
func (i Interpreter) CacheTag() string { return cpython.CacheTag(i.Version) }

// Package returns the installed distribution called name, in any spelling.
func (i Interpreter) Package(name string) (Installed, bool) {
	for _, p := range i.Packages {
		if p.Name == NormalizeName(name) {
			return p, true
		}
	}
	return Installed{}, false
}

// lib is the directory, relative to the environment, that holds site-packages.
func (t Target) lib() string { return "lib/python" + t.Python.Minor() }

// sitePackages is where purelib and platlib go, relative to the environment. An interpreter may say so of its own prefix: one
// without a global lock does (CEP 17).
func (t Target) sitePackages() string {
	if t.Own && len(t.Python.SitePackages) > 0 {
		if site, below := strings.CutPrefix(t.Python.SitePackages[0], "/"+t.Root+"/"); below {
			return site
		}
	}
	return t.lib() + "/site-packages"
}

// headers is where the header files of the distribution called name go, relative to the environment.
func (t Target) headers(name string) string {
	if t.Own {
		return "include/python" + t.Python.Minor() + "/" + name
	}
	return "include/site/python" + t.Python.Minor() + "/" + name
}

// Executable is the absolute path of the environment's interpreter, for interpreter lines.
func (t Target) Executable() string {
	if t.Own {
		return t.Python.Executable
	}
	return "/" + t.Root + "/bin/python"
}

// interpreterLine is what stands behind "#!" in commands. One of a relocatable environment is a few lines of shell, which are a string to
// Python: the kernel wants an absolute path.
func (t Target) interpreterLine() string {
	if t.Relocatable {
		return entrypoint.Beside
	}
	return t.Executable()
}

func (t Target) validate() error {
	if t.Root == "" || path.IsAbs(t.Root) || path.Clean(t.Root) != t.Root || strings.HasPrefix(t.Root, "..") {
		return fmt.Errorf("%q cannot be the directory of a Python environment: it must be relative to the image's root and clean", t.Root)
	}
	if !cpython.Valid(t.Python.Version) {
		return fmt.Errorf("%q is not the version of a Python interpreter", t.Python.Version)
	}
	return nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
