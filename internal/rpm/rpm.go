// Package rpm reads what distributions of RPM packages publish: package files and signed repositories, and decides which packages a
// system takes.
//
//	file.go       a package file: its parts, its header, its signature
//	cpio.go       the files in it
//	repomd.go     a repository's index of indices
//	primary.go    its lists of packages, and of their files
//	relation.go   what packages provide and require, expressions included
//	version.go    the order of versions
//	universe.go   all packages there are        closure.go  those that a system takes
//
// All of it may be anybody's, so everything has limits. Whether it is to be believed is asked of [File.Verify], and of
// debian.Keyring for an index.
package rpm

import "strings"

// Package is a package of a repository.
type Package struct {
	Name, Arch string
	Version    Version
	Repository int    // the number that it was added with
	Location   string // of its file, relative to the repository's address
	Size       int64  // of its file, in bytes
	SHA256     string // of its file, hexadecimal

	Provides, Requires, Conflicts, Obsoletes []Relation
	Suggests                                 []string // names that it goes best with: they decide between several that would do
	Files                                    []string // those that a list of packages names, with a slash first
}

// String names the package as rpm does.
func (p *Package) String() string { return p.Name + "-" + p.Version.String() + "." + p.Arch }

// modular reports whether the package belongs to a stream of a module. Several streams have packages of the same names, of which the
// newest is not the one that is wanted.
func (p *Package) modular() bool {
	return strings.Contains(p.Version.Release, ".module+") || strings.Contains(p.Version.Release, ".module_")
}

// matches reports whether the package alone is what a relation is about.
func (p *Package) matches(r Relation) bool {
	if r.rich != nil {
		return r.rich.matchedBy(p)
	}
	for _, provided := range p.Provides {
		if provided.Name == r.Name && provided.overlaps(r) {
			return true
		}
	}
	if strings.HasPrefix(r.Name, "/") {
		for _, name := range p.Files {
			if name == r.Name {
				return true
			}
		}
	}
	return false
}

func (x *rich) matchedBy(p *Package) bool {
	switch x.op {
	case "with", "and":
		for _, o := range x.operands {
			if !p.matches(o) {
				return false
			}
		}
		return true
	case "or":
		for _, o := range x.operands {
			if p.matches(o) {
				return true
			}
		}
	case "without":
		return p.matches(x.operands[0]) && !p.matches(x.operands[1])
	}
	return false
}
