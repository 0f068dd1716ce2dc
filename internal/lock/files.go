package lock

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// Files are the files of a lock: sconce.lock and those that list packages, beside it or the user's own. Each has been read once, or is to be
// written; what is asked of them reads nothing more.
type Files struct {
	*Lock
	name          string // of sconce.lock
	pylock, conda listing
}

// listing is a file that lists packages; the zero value is none.
type listing struct {
	path string
	text []byte
	own  bool  // it is the user's, and not a part of the lock
	err  error // why it cannot be read
}

// Read reads the lock of r. The error wraps fs.ErrNotExist when there is none. Of a file that the lock names and that is not there, those say
// so who need it.
func Read(r *recipe.Recipe) (*Files, error) {
	l, err := readLock(r)
	if err != nil {
		return nil, err
	}
	if err := l.reach(r); err != nil {
		return nil, fmt.Errorf("read lock %s: %w", Path(r), err)
	}
	return l.Files(r), nil
}

// Files reads the files of packages that the lock of r names.
func (l *Lock) Files(r *recipe.Recipe) *Files {
	f := &Files{Lock: l, name: filepath.Base(Path(r))}
	if l.Python != nil {
		f.pylock = readListing(r, l.Python.pylock(r), r.Python.Lock != "")
	}
	if l.Conda != nil {
		f.conda = readListing(r, l.Conda.path(r), r.Conda.Lock != "")
	}
	return f
}

func readListing(r *recipe.Recipe, path string, own bool) listing {
	text, err := readBeside(r, path)
	return listing{path: path, text: text, own: own, err: err}
}

// get returns the text for somebody who needs it.
func (l listing) get() ([]byte, error) {
	if errors.Is(l.err, fs.ErrNotExist) {
		return nil, fault.Hint(fmt.Errorf("read lock: %w", l.err), "run `sconce lock` to write it")
	}
	if l.err != nil {
		return nil, fmt.Errorf("read lock: %w", l.err)
	}
	return l.text, nil
}

// drift says how the file is not the one of which the lock has the digest. The user's own is among the inputs.
func (l listing) drift(name string, digest store.Digest) ([]string, error) {
	switch {
	case errors.Is(l.err, fs.ErrNotExist):
		return []string{"- " + name + " (it is gone)"}, nil
	case l.err != nil:
		return nil, l.err
	case !l.own && store.DigestOf(l.text) != digest:
		return []string{"+ " + name + " (it was changed by hand)"}, nil
	}
	return nil, nil
}

// Locked is what a recipe means, pinned: all that is planned and built from it. It needs neither the recipe nor the files any more.
type Locked struct {
	*Lock
	Wheels        []Wheel   // each for the lock's Python
	Compiles      []Compile // packages that are built, in the order of the lock
	CondaPackages []conda.Package
	Variables     []string // of the conda environment, KEY=VALUE
}

// Locked reads from the lock's files what r means. They fit it, see [Files.Drift].
func (f *Files) Locked(r *recipe.Recipe) (*Locked, error) {
	out := &Locked{Lock: f.Lock}
	packages, err := f.packages(r)
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		if p.Source == nil {
			out.Wheels = append(out.Wheels, f.Python.wheel(p))
			continue
		}
		c, err := f.Python.compile(r, p)
		if err != nil {
			return nil, err
		}
		if f.Conda != nil {
			c.Conda = string(f.Conda.Digest)
		}
		out.Compiles = append(out.Compiles, c)
	}
	if f.Conda == nil {
		return out, nil
	}
	if out.CondaPackages, err = f.condaPackages(r); err != nil {
		return nil, err
	}
	out.Variables, err = Variables(r)
	return out, err
}

// packages are the Python packages of the lock.
func (f *Files) packages(r *recipe.Recipe) ([]python.Package, error) {
	if f.Python == nil {
		return nil, nil
	}
	text, err := f.pylock.get()
	if err != nil {
		return nil, err
	}
	return f.Python.read(r, text)
}

// condaPackages are the packages of the conda environment, each after those that it depends on.
func (f *Files) condaPackages(r *recipe.Recipe) ([]conda.Package, error) {
	if f.Conda == nil {
		return nil, nil
	}
	text, err := f.conda.get()
	if err != nil {
		return nil, err
	}
	all, err := condalock.Parse(f.conda.path, text, selection(r))
	if err != nil {
		return nil, err
	}
	part, err := all.For(f.Conda.Platform)
	if err != nil {
		return nil, err
	}
	if err := reachConda(r, part.Packages); err != nil {
		return nil, fmt.Errorf("%s: %w", f.conda.path, err)
	}
	return f.Conda.merge(part.Packages), nil
}

// Drift says how what r asks differs from what the lock was made for, a line for each difference: "+ " and "- " before
// what is new and what is gone. No lines: the lock holds.
func (f *Files) Drift(r *recipe.Recipe) ([]string, error) {
	now, err := InputsOf(r)
	if err != nil {
		return nil, err
	}
	drift := append(f.Inputs.diff(now), f.movedBase(r)...)
	if f.Platform != r.Target.Platform {
		drift = append(drift, "- target.platform "+f.Platform, "+ target.platform "+r.Target.Platform)
	}
	if f.Conda != nil && r.Conda.Asked() && !f.conda.own {
		if gone, err := f.conda.drift(f.Conda.File, f.Conda.Digest); err != nil || len(gone) > 0 {
			return append(drift, gone...), err
		}
	}
	if f.Python == nil {
		return drift, nil
	}
	gone, err := f.pylock.drift(f.Python.File, f.Python.Digest)
	if err != nil {
		return nil, err
	}
	if drift = append(drift, gone...); len(drift) > 0 || f.pylock.own {
		return drift, nil
	}
	asked, err := requested(r)
	if err != nil {
		return nil, err
	}
	for _, text := range f.Python.unmet(r, asked, f.pylock.text) {
		drift = append(drift, "+ "+text)
	}
	return drift, nil
}

const header = "# What sconce.toml means, pinned. Written by `sconce lock`; commit it beside the recipe.\n\n"

// Write writes the files into a directory, each whole or not at all, but for the user's own. sconce.lock, which holds the digests of the others,
// comes last: a process killed in between leaves a lock that does not fit, and the next one locks again, keeping the versions.
func (f *Files) Write(dir string) error {
	for _, l := range []listing{f.conda, f.pylock} {
		if l.path == "" || l.own {
			continue
		}
		if err := writeListing(filepath.Join(dir, filepath.Base(l.path)), l.text); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, f.name)
	var b bytes.Buffer
	b.WriteString(header)
	if err := toml.NewEncoder(&b).SetIndentTables(false).Encode(f.Lock); err != nil {
		return fmt.Errorf("write lock %s: %w", path, err)
	}
	return writeListing(path, b.Bytes())
}

// writeListing writes a file of the lock, which people read in reviews: a name of an index or a mirror that would mislead them is refused.
func writeListing(path string, text []byte) error {
	for line := range bytes.Lines(text) {
		if bytes.ContainsFunc(line, quote.HarmfulInLines) || !utf8.Valid(line) {
			return fmt.Errorf("write lock %s: a name or an address holds a character that nobody sees: %q", path, bytes.TrimSpace(line))
		}
	}
	return writeFile(path, text)
}
