// Package lock decides once, and writes down, everything a recipe leaves open: which base exactly, and which Python
// packages.
//
// The decision is two files beside the recipe. sconce.lock holds what was asked ([Inputs]), the pinned base and the facts
// about its Python; pylock.toml is the standard lock of the Python packages (PEP 751), written by uv, or the user's own.
// A build reads only these two: it asks no index and no registry what is newest.
package lock

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/upstream"
)

// formatVersion is the layout of sconce.lock. A reader refuses another one.
const formatVersion = 1

// maxSize bounds what is read as a lock, in bytes: thousands of packages fit many times over.
const maxSize = 64 << 20

// Lock is the content of sconce.lock.
type Lock struct {
	Version  int                `toml:"version"`
	Platform string             `toml:"platform"`
	Inputs   Inputs             `toml:"inputs"`
	Base     base.Pinned        `toml:"base"`
	System   *ospackages.Pinned `toml:"system,omitempty"` // nil: the recipe asks for no system packages
	Conda    *Conda             `toml:"conda,omitempty"`  // nil: there is no conda environment
	Python   *Python            `toml:"python,omitempty"`

	Source    map[string]*upstream.Pinned `toml:"source,omitempty"`    // by name
	Component map[string]*Component       `toml:"component,omitempty"` // those that packages are installed for
}

// Python says what the Python is, of the base or of the conda environment, and which packages go beside it.
type Python struct {
	Executable     string       `toml:"executable"`
	Version        string       `toml:"version"`
	Prefix         string       `toml:"prefix"`
	Implementation string       `toml:"implementation"`
	Platform       string       `toml:"platform"`
	Glibc          string       `toml:"glibc,omitempty"`
	Musl           string       `toml:"musl,omitempty"`
	File           string       `toml:"file"`                // the PEP 751 lock: beside this one, or, the user's own, relative to the recipe
	Digest         store.Digest `toml:"digest"`              // of that file
	Requested      []string     `toml:"requested,multiline"` // the packages that were asked for by name, not by another package
	Protected      []Protected  `toml:"protected,omitempty"`

	// Whether the environment sees the base's packages: it does when the base brings packages that nothing may replace,
	// or a torch of its own.
	SystemSitePackages bool `toml:"system-site-packages,omitempty"`

	// The virtual environment of the base that packages are added to, absolute; "": the image gets one of its own.
	Environment string `toml:"environment,omitempty"`

	// Python packages that the conda environment brings, which is what the others stand beside then.
	Conda []InstalledBy `toml:"conda,omitempty"`

	SitePackages string `toml:"site-packages,omitempty"` // of the conda environment's Python, absolute

	// Of an environment on top of one of the base, see [python.Base].
	Chain    []string `toml:"chain,omitempty,multiline"`
	Commands []string `toml:"commands,omitempty,multiline"` // NAME = MODULE:FUNCTION

	Sizes    map[string]int64 `toml:"sizes,omitempty"`    // of wheels, in bytes, where the package lock does not say
	Compiled []Compiled       `toml:"compiled,omitempty"` // packages without a wheel
}

// Protected is a package of the base that nothing in the lock may replace.
type Protected struct {
	Name    string `toml:"name"`
	Version string `toml:"version"`
}

// Interpreter returns the Python of the base, or of the conda environment, in the form that package python takes.
func (p *Python) Interpreter() python.Interpreter {
	i := python.Interpreter{
		Executable: p.Executable, Version: p.Version, Prefix: p.Prefix, Implementation: p.Implementation,
		Platform: p.Platform, Glibc: p.Glibc, Musl: p.Musl,
	}
	if p.SitePackages != "" {
		i.SitePackages = []string{p.SitePackages}
	}
	return i
}

// EntryPoints are the commands of the base that an environment on top of it has as well. What is no such line, in a lock that somebody
// edited, is left out.
func (p *Python) EntryPoints() []python.EntryPoint {
	if len(p.Commands) == 0 {
		return nil
	}
	declared, err := python.ParseEntryPoints([]byte("[console_scripts]\n" + strings.Join(p.Commands, "\n")))
	if err != nil {
		return nil
	}
	return declared.Console
}

// Path returns where the lock of r is: where r says, else beside the recipe, sconce.lock for sconce.toml and sconce.VARIANT.lock for a
// variant of it.
func Path(r *recipe.Recipe) string {
	if r.LockFile != "" {
		return r.LockFile
	}
	name := filepath.Base(r.Path)
	name = strings.TrimSuffix(name, filepath.Ext(name))
	if r.Variant != "" {
		name += "." + r.Variant
	}
	return filepath.Join(r.Dir, name+".lock")
}

// stem is what the lock of r is called without its extension.
func stem(r *recipe.Recipe) string {
	name := filepath.Base(Path(r))
	return strings.TrimSuffix(name, filepath.Ext(name))
}

// defaultStem is that of the lock of sconce.toml.
const defaultStem = "sconce"

// besideLock returns the path of a file in the directory of r's lock.
func besideLock(r *recipe.Recipe, name string) string {
	return filepath.Join(filepath.Dir(Path(r)), name)
}

// pylockPath returns where uv's lock of r goes: pylock.toml, or pylock.NAME.toml for a lock of another name (PEP 751,
// "File Name").
func pylockPath(r *recipe.Recipe) string {
	if name := stem(r); name != defaultStem {
		return besideLock(r, "pylock."+strings.ReplaceAll(name, ".", "-")+".toml")
	}
	return besideLock(r, "pylock.toml")
}

// pylock returns the path of the package lock: beside the lock, or where r names the user's own.
func (p *Python) pylock(r *recipe.Recipe) string {
	if r.Python.Lock != "" {
		return r.Resolve(p.File)
	}
	return besideLock(r, p.File)
}

// readLock reads the sconce.lock of r.
func readLock(r *recipe.Recipe) (*Lock, error) {
	path := Path(r)
	data, err := readBeside(r, path)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	l, err := parse(data)
	if err != nil {
		return nil, fault.Hint(fmt.Errorf("read lock %s: %w", path, err), "run `sconce lock` to write it anew")
	}
	return l, nil
}

func parse(data []byte) (*Lock, error) {
	l := &Lock{}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(l); err != nil {
		return nil, err
	}
	if l.Version != formatVersion {
		return nil, fmt.Errorf("its version is %d, this sconce reads version %d", l.Version, formatVersion)
	}
	return l, l.check()
}

// check makes sure that the lock holds what every user of it takes for granted.
func (l *Lock) check() error {
	if l.Base.Bootstrap == nil && l.Base.Recipe == "" {
		if _, err := store.ParseDigest(string(l.Base.Digest)); err != nil {
			return fmt.Errorf("base.digest: %w", err)
		}
	}
	if c := l.Conda; c != nil && (c.File == "" || !strings.HasPrefix(c.Prefix, "/") || c.Platform == "") {
		return errors.New("[conda] lacks file, prefix or platform")
	}
	if p := l.Python; p != nil && (p.File == "" || p.Version == "" || !strings.HasPrefix(p.Executable, "/")) {
		return errors.New("[python] lacks file, version or executable")
	}
	if p := l.Python; p != nil && p.Environment != "" && (!strings.HasPrefix(p.Environment, "/") || path.Clean(p.Environment) != p.Environment || p.Environment == "/") {
		return fmt.Errorf("python.environment: %q is not the directory of an environment", p.Environment)
	}
	for name, s := range l.Source {
		if err := s.Check(); err != nil {
			return fmt.Errorf("source.%s: %w", name, err)
		}
	}
	return nil
}

// readBeside reads a part of the lock of r, which may have come along as a link.
func readBeside(r *recipe.Recipe, path string) ([]byte, error) {
	if err := r.Reach.Check(path); err != nil {
		return nil, err
	}
	return readFile(path)
}

// readFile reads a whole file that is not larger than any lock.
func readFile(path string) ([]byte, error) { return ctxio.ReadRegular(path, maxSize) }

func writeFile(path string, data []byte) error {
	if old, err := readFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := atomicfile.Write(path, data, 0o644); err != nil {
		return fmt.Errorf("write lock %s: %w", path, err)
	}
	return nil
}

// movedBase says how the image of the recipe that r is based on is another one than what this lock was resolved on, where somebody has
// planned it.
func (l *Lock) movedBase(r *recipe.Recipe) []string {
	if r.Base.Key == "" || l.Base.ImageKey == "" || r.Base.Key == l.Base.ImageKey {
		return nil
	}
	return []string{
		fmt.Sprintf("- base %s (image %.12s)", l.Base.Recipe, l.Base.ImageKey), fmt.Sprintf("+ base %s (image %.12s)", r.Base.Recipe, r.Base.Key),
	}
}
