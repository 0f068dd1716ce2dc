package python

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// Lock is a lock file of Python packages in the standard format, pylock.toml (PEP 751; packaging.python.org, "pylock.toml
// Specification"). Keys that the specification does not know are passed over, as it asks.
type Lock struct {
	// Dir is where relative paths in the lock start: the directory of the file. Without it, they are errors.
	Dir string

	RequiresPython Specifiers
	Environments   []Marker // at least one must hold; none: any environment
	Extras         []string // that may be chosen
	Groups         []string // dependency groups that may be chosen
	DefaultGroups  []string // those chosen when nothing is said

	packages []lockedPackage
}

// Package is one package to lay down, with the wheel for the environment it was selected for.
type Package struct {
	Name      string // as the lock spells it, which is normalised
	Version   string // the lock's, else that of the wheel's file name
	Wheel     WheelRef
	Source    *Source    // instead of Wheel: what a wheel is to be built from; see [Lock.SelectSources]
	Requested bool       // the user asked for it; the lock does not know, whoever reads it sets this
	DirectURL *DirectURL // where it came from when that was no index (PEP 610)
}

// WheelRef is where a wheel is and what it must be.
type WheelRef struct {
	Name   string // the file's name
	URL    string // where to get it; empty when there is only a Path
	Path   string // absolute, of a file on this machine; empty when there is only a URL
	Digest store.Digest
	Size   int64 // in bytes, 0 when the lock does not say
}

// Limits on a lock file: a hundred times the largest known.
const (
	maxLock         = 128 << 20 // bytes
	maxLockPackages = 100_000
	maxLockWheels   = 10_000 // of one package
)

// The parts of the file, as TOML has them.
type (
	lockFile struct {
		LockVersion      *string         `toml:"lock-version"`
		CreatedBy        *string         `toml:"created-by"`
		RequiresPython   string          `toml:"requires-python"`
		Environments     []string        `toml:"environments"`
		Extras           []string        `toml:"extras"`
		DependencyGroups []string        `toml:"dependency-groups"`
		DefaultGroups    []string        `toml:"default-groups"`
		Packages         *[]lockFileItem `toml:"packages"`
	}
	lockFileItem struct {
		Name           string          `toml:"name"`
		Version        string          `toml:"version"`
		Marker         string          `toml:"marker"`
		RequiresPython string          `toml:"requires-python"`
		Index          string          `toml:"index"`
		Wheels         []lockArtifact  `toml:"wheels"`
		Sdist          *lockArtifact   `toml:"sdist"`
		Archive        *lockArtifact   `toml:"archive"`
		VCS            *map[string]any `toml:"vcs"`
		Directory      *map[string]any `toml:"directory"`
	}
	lockArtifact struct {
		Name         string            `toml:"name"`
		URL          string            `toml:"url"`
		Path         string            `toml:"path"`
		Size         int64             `toml:"size"`
		Hashes       map[string]string `toml:"hashes"`
		Subdirectory string            `toml:"subdirectory"`
	}
)

// lockedPackage is an entry of the lock, its conditions parsed.
type lockedPackage struct {
	lockFileItem
	marker         *Marker
	requiresPython Specifiers
}

// ReadLock reads a lock file. The caller sets Dir if it wants relative paths to work.
func ReadLock(r io.Reader) (*Lock, error) {
	data, err := ctxio.ReadAtMost(r, maxLock)
	if err != nil {
		return nil, err
	}
	var f lockFile
	if err := toml.Unmarshal(data, &f); err != nil {
		return nil, lockSyntax(err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.parse()
}

// lockSyntax gives an error of the TOML decoder its place.
func lockSyntax(err error) error {
	var de *toml.DecodeError
	if !errors.As(err, &de) {
		return err
	}
	line, column := de.Position()
	return fmt.Errorf("line %d, column %d: %s", line, column, strings.TrimPrefix(de.Error(), "toml: "))
}

func (f *lockFile) check() error {
	switch {
	case f.LockVersion == nil:
		return fault.Hint(errors.New("it has no lock-version"), "a lock of Python packages is a pylock.toml (PEP 751); `uv export --format pylock.toml` writes one")
	case !isLockVersion1(*f.LockVersion):
		return fault.Hint(fmt.Errorf("its lock-version is %q; only 1.x is known", *f.LockVersion), "lock again with a tool that writes version 1.0")
	case f.CreatedBy == nil:
		return errors.New("it has no created-by, which the format demands")
	case f.Packages == nil:
		return errors.New("it has no packages, which the format demands")
	case len(*f.Packages) > maxLockPackages:
		return fmt.Errorf("it has more than %d packages", maxLockPackages)
	}
	return nil
}

func isLockVersion1(s string) bool {
	v, err := ParseVersion(s)
	return err == nil && v.epoch == "" && v.part(0) == "1"
}

func (f *lockFile) parse() (*Lock, error) {
	l := &Lock{Extras: f.Extras, Groups: f.DependencyGroups, DefaultGroups: f.DefaultGroups}
	var err error
	if l.RequiresPython, err = ParseSpecifiers(f.RequiresPython); err != nil {
		return nil, fmt.Errorf("requires-python: %w", err)
	}
	for _, text := range f.Environments {
		m, err := ParseMarker(text)
		if err != nil {
			return nil, fmt.Errorf("environments: %w", err)
		}
		l.Environments = append(l.Environments, m)
	}
	for i, item := range *f.Packages {
		p, err := item.parse()
		if err != nil {
			return nil, fmt.Errorf("package %d (%q): %w", i+1, item.Name, err)
		}
		l.packages = append(l.packages, p)
	}
	return l, nil
}

func (item lockFileItem) parse() (lockedPackage, error) {
	p := lockedPackage{lockFileItem: item}
	if !validName(item.Name) {
		return p, fmt.Errorf("%q is not the name of a package", item.Name)
	}
	if item.Marker != "" {
		m, err := ParseMarker(item.Marker)
		if err != nil {
			return p, err
		}
		p.marker = &m
	}
	var err error
	if p.requiresPython, err = ParseSpecifiers(item.RequiresPython); err != nil {
		return p, fmt.Errorf("requires-python: %w", err)
	}
	if item.Version != "" {
		if _, err := ParseVersion(item.Version); err != nil {
			return p, err
		}
	}
	return p, item.checkSources()
}

// checkSources: a package comes from one kind of source; only sdist and wheels go together ("packages" of the
// specification).
func (item lockFileItem) checkSources() error {
	var kinds []string
	if item.VCS != nil {
		kinds = append(kinds, "vcs")
	}
	if item.Directory != nil {
		kinds = append(kinds, "directory")
	}
	if item.Archive != nil {
		kinds = append(kinds, "archive")
	}
	if item.Sdist != nil || len(item.Wheels) > 0 {
		kinds = append(kinds, "wheels or sdist")
	}
	switch {
	case len(kinds) == 0:
		return errors.New("it has no source: no wheels, sdist, archive, vcs or directory")
	case len(kinds) > 1:
		return fmt.Errorf("it has sources that exclude each other: %s", strings.Join(kinds, ", "))
	case len(item.Wheels) > maxLockWheels:
		return fmt.Errorf("it has more than %d wheels", maxLockWheels)
	}
	return nil
}

// label names the package in messages: numpy 1.26.4.
func (item lockFileItem) label() string { return strings.TrimSpace(item.Name + " " + item.Version) }

// fileName returns the artifact's name: given, or the last part of its path or address.
func (a lockArtifact) fileName() string {
	if a.Name != "" {
		return a.Name
	}
	if a.Path != "" {
		return path.Base(strings.ReplaceAll(a.Path, `\`, "/"))
	}
	u, err := url.Parse(a.URL)
	if err != nil || u.Path == "" {
		return ""
	}
	return path.Base(u.Path)
}

// ref checks the artifact and returns where it is. dir is where relative paths start.
func (a lockArtifact) ref(dir string) (WheelRef, error) {
	w := WheelRef{Name: a.fileName(), Size: a.Size}
	if a.Size < 0 {
		return w, fmt.Errorf("%s: its size is %d", w.Name, a.Size)
	}
	var err error
	if w.Digest, err = a.digest(w.Name); err != nil {
		return w, err
	}
	if w.URL, w.Path, err = a.location(dir); err != nil {
		return w, fmt.Errorf("%s: %w", w.Name, err)
	}
	return w, nil
}

func (a lockArtifact) digest(name string) (store.Digest, error) {
	sum, ok := a.Hashes["sha256"]
	if !ok {
		return "", fault.Hint(fmt.Errorf("%s: the lock gives no sha256 for it, and nothing is believed without", name),
			"lock again with a tool that writes sha256 hashes")
	}
	d, err := store.ParseDigest("sha256:" + strings.ToLower(sum))
	if err != nil {
		return "", fmt.Errorf("%s: %q is not a sha256", name, sum)
	}
	return d, nil
}

// location returns the artifact's address and path, one of which may be empty.
func (a lockArtifact) location(dir string) (address, file string, err error) {
	if a.Path != "" {
		if file, err = lockPath(dir, a.Path); err != nil {
			return "", "", err
		}
	}
	if a.URL == "" {
		if file == "" {
			return "", "", errors.New("the lock gives neither a url nor a path for it")
		}
		return "", file, nil
	}
	u, err := url.Parse(a.URL)
	if err != nil {
		return "", "", errors.New("its url cannot be read")
	}
	switch scheme := strings.ToLower(u.Scheme); {
	case scheme == "http" || scheme == "https":
		return a.URL, file, nil
	case scheme == "file":
		if u.Host != "" && u.Host != "localhost" || !path.IsAbs(u.Path) {
			return "", "", fmt.Errorf("%s does not name a file of this machine", u.Redacted())
		}
		return "", path.Clean(u.Path), nil
	case scheme == "" && u.Host == "":
		file, err = lockPath(dir, u.Path)
		return "", file, err
	default:
		return "", "", fmt.Errorf("nothing can be fetched from %q", u.Redacted())
	}
}

func lockPath(dir, file string) (string, error) {
	switch {
	case strings.ContainsRune(file, 0):
		return "", errors.New("its path holds a zero byte")
	case filepath.IsAbs(file):
		return filepath.Clean(file), nil
	case dir == "":
		return "", fmt.Errorf("the path %q is relative, and the lock's directory is not known", file)
	default:
		return filepath.Join(dir, filepath.FromSlash(file)), nil
	}
}
