package debian

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Package is what an index says of a package, as far as an installation is decided by it.
type Package struct {
	Name         string
	Version      string
	Architecture string
	Essential    bool
	Priority     string // required, important, standard, optional, extra
	Depends      string // Pre-Depends and Depends
	Conflicts    string // Conflicts and Breaks
	Provides     string
	Filename     string // relative to the archive
	Size         int64  // bytes
	SHA256       string // hexadecimal
	Archive      int    // as [Universe.Read] was told
}

// Universe is all packages that can be had.
type Universe struct {
	architecture string
	byName       map[string][]*Package // the highest version first
	providers    map[string][]provider
}

type provider struct {
	pkg     *Package
	version string // "" of a name that is provided without one
}

// NewUniverse returns an empty one for an architecture, by dpkg's name.
func NewUniverse(architecture string) *Universe {
	return &Universe{architecture: architecture, byName: map[string][]*Package{}, providers: map[string][]provider{}}
}

// maxPackages bounds an index. Debian has 70,000.
const maxPackages = 1 << 20

// Read adds the packages of an index, a Packages file. archive says where they are from, as the caller numbers archives.
func (u *Universe) Read(r io.Reader, archive int) error {
	in := NewReader(r)
	for range maxPackages {
		p, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		pkg, err := NewPackage(p)
		if err != nil {
			return err
		}
		if pkg.Architecture != u.architecture && pkg.Architecture != "all" {
			continue
		}
		if err := pkg.located(p); err != nil {
			return err
		}
		pkg.Archive = archive
		if err := u.Add(pkg); err != nil {
			return err
		}
	}
	return errors.New("the index has too many packages")
}

// NewPackage reads a package's control fields.
func NewPackage(p Paragraph) (*Package, error) {
	pkg := &Package{
		Name: p.Get("Package"), Version: p.Get("Version"), Architecture: p.Get("Architecture"),
		Essential: p.Get("Essential") == "yes", Priority: p.Get("Priority"), Provides: p.Get("Provides"),
		Depends: join(p.Get("Pre-Depends"), p.Get("Depends")), Conflicts: join(p.Get("Conflicts"), p.Get("Breaks")),
	}
	if !IsName(pkg.Name) || !IsName(pkg.Architecture) {
		return nil, fmt.Errorf("%.80q for %.80q cannot be a package", pkg.Name, pkg.Architecture)
	}
	if err := CheckVersion(pkg.Version); err != nil {
		return nil, fmt.Errorf("package %s: %w", pkg.Name, err)
	}
	return pkg, nil
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// located reads where the package's file is.
func (pkg *Package) located(p Paragraph) (err error) {
	pkg.Filename = strings.TrimPrefix(p.Get("Filename"), "./")
	pkg.SHA256 = p.Get("SHA256")
	pkg.Size, err = strconv.ParseInt(p.Get("Size"), 10, 64)
	sum, hexErr := hex.DecodeString(pkg.SHA256)
	if err != nil || pkg.Size <= 0 || hexErr != nil || len(sum) != 32 || !fs.ValidPath(pkg.Filename) {
		return fmt.Errorf("the index does not say of package %s what its file is: name, size and SHA-256", pkg.Name)
	}
	return nil
}

// Add adds a package.
func (u *Universe) Add(pkg *Package) error {
	provided, err := ParseRelations(pkg.Provides)
	if err != nil {
		return fmt.Errorf("package %s: %w", pkg.Name, err)
	}
	for _, group := range provided {
		for _, r := range group {
			u.providers[r.Name] = append(u.providers[r.Name], provider{pkg, r.Version})
		}
	}
	same := u.byName[pkg.Name]
	at := 0
	for at < len(same) && CompareVersions(same[at].Version, pkg.Version) >= 0 {
		at++
	}
	u.byName[pkg.Name] = slices.Insert(same, at, pkg)
	return nil
}

// Names returns the names of all packages, in no order.
func (u *Universe) Names() []string {
	names := make([]string, 0, len(u.byName))
	for name := range u.byName {
		names = append(names, name)
	}
	return names
}

// Versions returns the versions of a package, the highest first.
func (u *Universe) Versions(name string) []string {
	var versions []string
	for _, pkg := range u.byName[name] {
		if !slices.Contains(versions, pkg.Version) {
			versions = append(versions, pkg.Version)
		}
	}
	return versions
}

// Has reports whether there is a package of a name.
func (u *Universe) Has(name string) bool { return len(u.byName[name]) > 0 }

// Where returns the names of the packages whose newest version fulfills a condition, sorted.
func (u *Universe) Where(is func(*Package) bool) []string {
	var names []string
	for name, versions := range u.byName {
		if is(versions[0]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
