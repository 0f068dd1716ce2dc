// Package bootstrap makes a base from a distribution's own packages, Debian's, Ubuntu's or those of RPM, without a registry, root or
// subuid, and without any program of this machine.
//
// It works in two halves, so that the second needs no network but for files whose hashes are known:
//
//   - [Resolve] reads the signed indices of the distribution's archives and pins each package that a suite needs today by URL, size
//     and SHA-256. This is what a lock keeps.
//   - [Build] downloads exactly those packages, lays the files of those down that every system has, and lets the new system's
//     own dpkg and apt do the rest in the sandbox. The root file system becomes a layer.
//
// What a signature says goes down to the last byte: InRelease is signed, names the indices by hash, and they name the packages.
//
//	archives.go  where packages come from       build.go    from pinned packages to a layer
//	resolve.go   which packages are needed      unpack.go   files of packages into a directory
//	index.go     an archive's signed indices    database.go what dpkg knows of them
//	                                            install.sh  what the new system does itself
//
// RPM packages go the same way. A repository's index is signed, or each package is; and rpm installs into a root of its own, for which
// it runs in a first small root.
//
//	rpmarchives.go  where packages come from       rpmbuild.go   from pinned packages to a layer
//	rpmresolve.go   which packages are needed      rpmunpack.go  files of packages into the first root
//	rpmindex.go     a repository's indices         rpm-install.sh, rpm-database.sh  what rpm does there
//	rpmkeys.go      who may sign
package bootstrap

import (
	"time"

	"sconce.dev/sconce/internal/store"
)

// Request is what a recipe asks for.
type Request struct {
	Suite        string   // "bookworm", "noble", …
	Dnf          string   // instead of Suite: a release such as "rocky:9", or the address of a repository of RPM packages
	Packages     []string // beside the essential and required ones: NAME or NAME=VERSION
	Mirror       string   // URL; "" for the distribution's own, as this machine or its configuration names it
	Sources      []string // further archives: URL SUITE COMPONENT…; with Dnf, addresses of repositories
	Components   []string // none for main
	Variant      string   // apt, minbase (also when empty), important, standard, …
	Architecture string   // Debian's name: amd64, arm64

	Keys    []string  // files, or addresses, with the keys that sign; none for those that sconce and this machine have
	Trusted bool      // no signature is asked for
	Beside  bool      // the repositories of RPM packages that Dnf and Sources name stand in the image beside those that its packages bring, which are switched off else
	Now     time.Time // zero: the time it is
}

// Package is one pinned .deb file.
type Package struct {
	Name         string       `toml:"name"`
	Version      string       `toml:"version"`
	Architecture string       `toml:"architecture"`
	URL          string       `toml:"url"`
	Size         int64        `toml:"size"` // bytes
	SHA256       store.Digest `toml:"sha256"`
}

// Pinned is a request resolved: everything that decides the root file system.
type Pinned struct {
	Manager      string    `toml:"manager,omitempty" json:",omitempty"` // rpm; "" for Debian's
	Suite        string    `toml:"suite"`                               // of RPM packages what Request.Dnf says
	Architecture string    `toml:"architecture"`
	Sources      string    `toml:"sources,multiline"`                          // sources.list(5) of the finished image; of RPM packages a .repo file, "" for the distribution's own
	Keys         string    `toml:"keys,multiline,omitempty" json:",omitempty"` // OpenPGP, armored: whose signatures the image's package manager believes
	Beside       bool      `toml:"-" json:",omitempty"`                        // Sources stand beside those that packages bring; no recipe, and so no lock, asks for that
	Epoch        time.Time `toml:"epoch"`                                      // newest Release file's date: no file of the image is younger
	Packages     []Package `toml:"packages"`
}
