package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/slim"
)

// Sizes says where the room in an image goes: of its files as they are unpacked, each counted once whatever names it has.
type Sizes struct {
	Stored      int64  `json:"stored"` // bytes: all layers as they are stored, or the file
	Size        int64  `json:"size"`   // bytes of all files
	Files       int    `json:"files"`
	Packages    []Part `json:"packages"`    // by size; one without a kind is what no package lists
	Directories []Part `json:"directories"` // those that say something, by size
	Removable   []Part `json:"removable"`   // what `sconce slim` takes out when it is asked to, by size
}

// Part is a part of an image.
type Part struct {
	Name    string `json:"name"`              // of a package, or a path
	Kind    string `json:"kind,omitempty"`    // of a package: "python", "conda", "debian"
	Version string `json:"version,omitempty"` // of a package, where it is known
	Flags   string `json:"flags,omitempty"`   // of what can be removed: how `sconce slim` is told
	Size    int64  `json:"size"`              // bytes
	Files   int    `json:"files"`
}

func (p *Part) add(size int64) { p.Size, p.Files = p.Size+max(size, 0), p.Files+1 }

// Sizes adds up the files of the report. Of the facts it needs the root, the paths and the packages.
func (r *Report) Sizes() *Sizes {
	s := &Sizes{Stored: r.Stored, Packages: []Part{}, Directories: []Part{}, Removable: []Part{}}
	o := newOwners(r.Facts)
	listed := newListed(r.Facts)
	goes := make([]Part, len(removable))
	for i := range r.Files {
		f := &r.Files[i]
		s.Size, s.Files = s.Size+max(f.Size, 0), s.Files+1
		if n := o.of(f.Path); n != 0 {
			o.packages[n].Size, o.packages[n].Files = o.packages[n].Size+max(f.Size, 0), o.packages[n].Files+1
		} else {
			listed.of(f.Path).add(f.Size)
		}
		for j := range removable {
			if removable[j].has(f.Path) {
				goes[j].add(f.Size)
				break
			}
		}
	}
	for _, p := range o.packages[1:] {
		s.Packages = append(s.Packages, Part{Name: p.Name, Version: p.Version, Kind: "python", Size: p.Size, Files: p.Files})
	}
	for _, p := range listed.parts {
		s.Packages = append(s.Packages, *p)
	}
	for j := range goes {
		goes[j].Name, goes[j].Flags = removable[j].name, removable[j].flags
		s.Removable = append(s.Removable, goes[j])
	}
	s.Packages, s.Removable = bySize(s.Packages), bySize(s.Removable)
	s.Directories = bySize(telling(treeOf(r.Files, &owners{packages: make([]pkg, 1)}, kindsOf{}), "", s.Size, nil))
	return s
}

// bySize puts parts in order, the largest first, and leaves out those that take no room.
func bySize(parts []Part) []Part {
	parts = slices.DeleteFunc(parts, func(p Part) bool { return p.Size == 0 })
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	return parts
}

const (
	leastShare  = 100  // a directory below one part in so many of an image is left out
	mostOfAbove = 0.95 // one that holds more than this of the directory above it stands for it
)

// telling are the directories that are large, without those of which nearly all is in one directory below.
func telling(d *dir, at string, total int64, into []Part) []Part {
	for _, below := range d.dirs {
		if below.size*leastShare < total || below.size == 0 {
			break // the largest come first
		}
		p := at + "/" + below.name
		if len(below.dirs) == 0 || float64(below.dirs[0].size) < mostOfAbove*float64(below.size) {
			into = append(into, Part{Name: p, Size: below.size, Files: below.count})
		}
		into = telling(below, p, total, into)
	}
	return into
}

// removable is what no program needs to run, and how `sconce slim` is asked to take it out.
var removable = []struct {
	name, flags string
	has         func(path string) bool
}{
	{"package caches", "--package-caches", func(p string) bool { return slim.CacheOf(p) != "" }},
	{"documentation", "--remove '/usr/share/doc/**' --remove '/usr/share/info/**'", lazyregexp.New(`^usr/share/(doc|info)/`).MatchString},
	{"manual pages", "--remove '/usr/share/man/**'", lazyregexp.New(`^usr/share/man/`).MatchString},
	{"translations", "--remove '/usr/share/locale/**'", lazyregexp.New(`^usr/share/locale/`).MatchString},
	{"static libraries", "--remove '*.a'", lazyregexp.New(`\.a$`).MatchString},
}

// listed knows the packages that a distribution's package manager and conda keep lists of files of.
type listed struct {
	parts []*Part          // the first stands for no package
	owner map[string]*Part // by path
}

func newListed(f *facts.Facts) *listed {
	l := &listed{parts: []*Part{{Name: "in no package"}}, owner: map[string]*Part{}}
	if f.Root == nil {
		return l
	}
	for i := range f.Conda {
		e := &f.Conda[i]
		for j := range e.Packages {
			p := &e.Packages[j]
			l.readConda(f.Root, e.Prefix, p.Record, &Part{Name: p.Name, Version: p.Version, Kind: "conda"})
		}
	}
	versions := debianVersions(f.Root)
	for _, info := range f.Paths {
		name, ok := strings.CutSuffix(path.Base(info.Path), ".list")
		if ok && path.Dir(info.Path) == "var/lib/dpkg/info" {
			name, _, _ = strings.Cut(name, ":") // of an architecture among several
			l.readDpkg(f.Root, info.Path, &Part{Name: name, Version: versions[name], Kind: "debian"})
		}
	}
	return l
}

// of returns the package of a file, or what stands for none.
func (l *listed) of(p string) *Part {
	if part := l.owner[p]; part != nil {
		return part
	}
	return l.parts[0]
}

// take notes whose a path is; the first one to list it has it.
func (l *listed) take(p string, part *Part) bool {
	if len(l.owner) >= maxRecords {
		return false
	}
	p = strings.TrimPrefix(path.Join("/", p), "/")
	if _, taken := l.owner[p]; !taken {
		l.owner[p] = part
	}
	return true
}

// mergedDirs are the directories that are links into usr today, while packages list their files by the old names (Debian's "UsrMerge").
var mergedDirs = lazyregexp.New(`^/(bin|sbin|lib|lib32|lib64|libx32)/`)

// readDpkg takes the paths of a package of Debian's, one a line.
func (l *listed) readDpkg(root facts.Root, name string, part *Part) {
	l.parts = append(l.parts, part)
	lines := bufio.NewScanner(bytes.NewReader(facts.ReadText(root, name)))
	for lines.Scan() {
		p := lines.Text()
		if !l.take(p, part) {
			return
		}
		if mergedDirs.MatchString(p) {
			l.take("/usr"+p, part)
		}
	}
}

// debianVersions reads the versions of packages from dpkg's status file, up to where it is damaged.
func debianVersions(root facts.Root) map[string]string {
	versions := map[string]string{}
	paragraphs := debian.NewReader(bytes.NewReader(facts.ReadText(root, "var/lib/dpkg/status")))
	for len(versions) < maxPackages {
		p, err := paragraphs.Next()
		if err != nil {
			break
		}
		versions[p.Get("Package")] = p.Get("Version")
	}
	return versions
}

// readConda takes the paths of a conda package from its record (CEP 32).
func (l *listed) readConda(root facts.Root, prefix, record string, part *Part) {
	l.parts = append(l.parts, part)
	var list struct {
		Files []string `json:"files"`
	}
	if json.NewDecoder(bytes.NewReader(facts.ReadText(root, record))).Decode(&list) != nil {
		return
	}
	for _, p := range list.Files {
		if !l.take(prefix+"/"+p, part) {
			return
		}
	}
}
