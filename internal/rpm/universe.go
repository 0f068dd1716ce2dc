package rpm

import (
	"maps"
	"slices"
	"strings"
)

// Universe is all packages that a system may take, of one architecture.
type Universe struct {
	arch     string
	byName   map[string][]*Package
	bySum    map[string][]*Package
	provides map[string][]*Package
	files    map[string][]*Package
	required map[string]bool // files that packages require
	lists    bool            // what lists of files say of those is known
}

// NewUniverse returns one for an architecture by rpm's name: x86_64, aarch64.
func NewUniverse(arch string) *Universe {
	return &Universe{
		arch: arch, byName: map[string][]*Package{}, bySum: map[string][]*Package{}, provides: map[string][]*Package{},
		files: map[string][]*Package{}, required: map[string]bool{},
	}
}

// Add adds a package, unless it is for another architecture or of a module's stream.
func (u *Universe) Add(p *Package) {
	if p.Arch != u.arch && p.Arch != "noarch" || p.modular() {
		return
	}
	u.byName[p.Name] = append(u.byName[p.Name], p)
	u.bySum[p.SHA256] = append(u.bySum[p.SHA256], p)
	for _, r := range p.Provides {
		if all := u.provides[r.Name]; len(all) == 0 || all[len(all)-1] != p {
			u.provides[r.Name] = append(all, p)
		}
	}
	for _, f := range p.Files {
		u.files[f] = append(u.files[f], p)
	}
	for _, r := range p.Requires {
		u.require(r)
	}
}

func (u *Universe) require(r Relation) {
	if strings.HasPrefix(r.Name, "/") {
		u.required[r.Name] = true
	}
	if r.rich == nil {
		return
	}
	for _, o := range r.rich.operands {
		u.require(o)
	}
	if r.rich.other != nil {
		u.require(*r.rich.other)
	}
}

// RequiredFiles are those that packages require and that no list of packages has: lists of files are asked for them.
func (u *Universe) RequiredFiles() map[string]bool {
	missing := map[string]bool{}
	for name := range u.required {
		if len(u.files[name]) == 0 && len(u.provides[name]) == 0 {
			missing[name] = true
		}
	}
	return missing
}

// AddFile says that the package of a hash has a file.
func (u *Universe) AddFile(sha256, name string) {
	for _, p := range u.bySum[sha256] {
		p.Files = append(p.Files, name)
		u.files[name] = append(u.files[name], p)
	}
}

// FilesKnown says that all lists of files have been asked.
func (u *Universe) FilesKnown() { u.lists = true }

// Has reports whether there is a package of a name.
func (u *Universe) Has(name string) bool { return len(u.byName[name]) > 0 }

// Provided reports whether a package provides a name.
func (u *Universe) Provided(name string) bool { return len(u.provides[name]) > 0 }

// Len returns how many names packages have.
func (u *Universe) Len() int { return len(u.byName) }

// Names returns the names of all packages, in order.
func (u *Universe) Names() []string { return slices.Sorted(maps.Keys(u.byName)) }

// Versions returns the versions of a package that there are, the newest first.
func (u *Universe) Versions(name string) []string {
	all := slices.Clone(u.byName[name])
	slices.SortFunc(all, func(a, b *Package) int { return b.Version.Compare(a.Version) })
	var versions []string
	for _, p := range all {
		versions = append(versions, p.Version.String())
	}
	return slices.Compact(versions)
}

// candidates are the packages each of which alone is what a relation asks for.
func (u *Universe) candidates(r Relation) []*Package {
	if r.rich != nil {
		var all []*Package
		for _, o := range r.rich.operands {
			all = append(all, u.candidates(o)...)
			if r.rich.op == "with" || r.rich.op == "without" {
				break // those of the first are all that can be
			}
		}
		return slices.DeleteFunc(all, func(p *Package) bool { return !p.matches(r) })
	}
	var all []*Package
	for _, p := range u.provides[r.Name] {
		if p.matches(r) {
			all = append(all, p)
		}
	}
	for _, p := range u.files[r.Name] {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
