// Package ospackages installs packages by the base's own package manager, the same ones every time.
//
// It works in two halves, as package bootstrap does, so that the second needs no network but for files whose hashes are
// known:
//
//   - [Resolve] lets the base's own manager say, in a sandbox whose changes are thrown away, what installing some packages
//     means today, and pins each one by version, URL, size and SHA-256. This is what a lock keeps.
//   - [Layer] downloads exactly those packages and lets the manager install them, and nothing else, without a network.
//
// Packages that others only recommend are left out: images shall be small, and who needs one names it.
//
//	system.go   what is pinned                resolve.go  asking a manager in the sandbox
//	apt.go      Debian's manager              layer.go    from pinned packages to a layer
//	dnf.go      Fedora's and RHEL's manager   zypper.go   SUSE's manager
//	source.go   source packages               *.sh        how they install them
//
// A layer that apt makes is the same, byte for byte, in every run and for every user, unless a package's own script writes something
// random: the databases of Berkeley DB that postfix makes hold such a number. rpm notes the time of an installation.
package ospackages

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// The versions of the code that installs: they enter keys.
const (
	aptVersion = 2 // 2: what the installation writes is newer than the base
	rpmVersion = 3 // 3: scripts of packages run where a plugin of rpm would have shielded them
)

// Package is one pinned package file.
type Package struct {
	Name         string
	Version      string
	Architecture string
	URL          string // file: is a path within the base
	Size         int64  // bytes
	SHA256       store.Digest
}

// Pinned is what installing some packages on a base means. Neither Packages nor Remove has anything when the base has it
// all.
type Pinned struct {
	Manager  string    `toml:"manager"`                      // apt, dnf or zypper
	Asked    []string  `toml:"asked,multiline"`              // NAME or NAME:ARCHITECTURE of what was asked for by name, not by another package
	Packages []Package `toml:"packages,omitempty,multiline"` // new ones, and newer ones of the base's
	Remove   []string  `toml:"remove,omitempty,multiline"`   // packages of the base that go, because others conflict with them
}

// Request says what is wanted.
type Request struct {
	On       []layer.Descriptor // the base, lowest first
	Platform v1.Platform        // of the base
	Packages []string           // as the recipe names them: NAME, NAME=VERSION, NAME:ARCHITECTURE
	Offline  bool               // which is an error
}

func comparePackages(a, b Package) int {
	return strings.Compare(a.Name+" "+a.Architecture, b.Name+" "+b.Architecture)
}

// newPinned are the pins, none yet, of packages that somebody has asked a manager for.
func newPinned(manager string, asked []string) *Pinned {
	return &Pinned{Manager: manager, Asked: slices.Compact(slices.Sorted(slices.Values(asked)))}
}

// Empty reports whether the base has everything already, so that there is nothing to install.
func (p *Pinned) Empty() bool { return len(p.Packages) == 0 && len(p.Remove) == 0 }

// Key identifies what is installed: on equal bases, equal keys make equal layers. Where packages are downloaded from makes
// no difference.
func (p *Pinned) Key() string {
	version := rpmVersion
	if p.Manager == aptName {
		version = aptVersion
	}
	q := *p
	q.Packages = make([]Package, len(p.Packages))
	for i, pkg := range p.Packages {
		pkg.URL = "" // encoded as text, which is canonical
		q.Packages[i] = pkg
	}
	data, err := json.Marshal(struct {
		Version int
		Pinned  Pinned
	}{version, q})
	if err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	return store.DigestOf(data).Hex()
}

// A Package is written as one line, so that a lock has one line for it: NAME VERSION ARCHITECTURE SIZE SHA256 URL.

// MarshalText writes the package as one line.
func (p Package) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s %s %s %d %s %s", p.Name, p.Version, p.Architecture, p.Size, p.SHA256, p.URL), nil
}

// UnmarshalText reads what MarshalText wrote.
func (p *Package) UnmarshalText(text []byte) error {
	fields := strings.Split(string(text), " ")
	if len(fields) != 6 {
		return fmt.Errorf("%q is not a package: it has %d words, not NAME VERSION ARCHITECTURE SIZE SHA256 URL", text, len(fields))
	}
	size, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return fmt.Errorf("size of package %s: %w", fields[0], err)
	}
	*p = Package{Name: fields[0], Version: fields[1], Architecture: fields[2], Size: size, SHA256: store.Digest(fields[4]), URL: fields[5]}
	return p.valid()
}

// What a package's fields may be: its name and architecture become names of files, and the other words must not end a line.
var (
	nameForm    = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._-]*$`)
	versionForm = lazyregexp.New(`^[0-9A-Za-z][0-9A-Za-z.+~:^_-]*$`)
	urlForm     = lazyregexp.New(`^[a-z][a-z0-9+.-]*:[!-~]+$`)
)

func (p *Package) valid() error {
	if !nameForm.MatchString(p.Name) || !nameForm.MatchString(p.Architecture) {
		return fmt.Errorf("%q for %q cannot be a package", p.Name, p.Architecture)
	}
	if !versionForm.MatchString(p.Version) {
		return fmt.Errorf("package %s cannot have the version %q", p.Name, p.Version)
	}
	if !urlForm.MatchString(p.URL) || p.Size < 0 {
		return fmt.Errorf("package %s cannot come from %q with %d bytes", p.Name, p.URL, p.Size)
	}
	if _, err := store.ParseDigest(string(p.SHA256)); err != nil {
		return fmt.Errorf("package %s: %w", p.Name, err)
	}
	return nil
}
