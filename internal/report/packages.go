package report

import (
	"bufio"
	"encoding/csv"
	"errors"
	"io"
	"path"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// pkg is a Python package, or a name in a site directory that no package lists.
type pkg struct {
	Name    string
	Version string // "" for what is no package
	Site    int    // index in owners.sites
	Size    int64  // bytes
	Files   int
}

// owners know which Python package a file belongs to.
type owners struct {
	sites    []string // directories of installed packages
	siteOf   map[string]int
	packages []pkg // the first stands for no package
	byName   map[ownerKey]int
	files    map[string]int // path → index in packages, from the lists of installed files
	dirs     map[string]int // the same for a directory: of one of its files that is listed
}

type ownerKey struct {
	site int
	name string
}

const (
	maxPackages = 5000
	maxRecord   = 16 << 20 // bytes of one list of installed files; torch's has 2 MB
	maxRecords  = 1 << 20  // lines of all lists together

	// recordBuffer is more than what an image remembers of a read for the sake of its rules, in bytes.
	recordBuffer = 256 << 10
)

// newOwners reads the lists of installed files (Python packaging specifications, "Recording installed projects"). One that is
// missing or damaged leaves the files to their directory's name.
func newOwners(f *facts.Facts) *owners {
	o := &owners{packages: make([]pkg, 1), siteOf: map[string]int{}, byName: map[ownerKey]int{}, files: map[string]int{}, dirs: map[string]int{}}
	for i := range f.Pythons {
		p := &f.Pythons[i]
		site := len(o.sites)
		o.sites = append(o.sites, p.Dir)
		o.siteOf[p.Dir] = site
		for j := range p.Distributions {
			d := &p.Distributions[j]
			key := ownerKey{site, d.Name}
			if _, twice := o.byName[key]; twice {
				continue
			}
			n := o.add(key, d.Version)
			o.dirs[d.Dir] = n
			o.readRecord(f.Root, p.Dir, d.Dir, n)
		}
	}
	return o
}

// add returns the index of a new package; 0 when there are too many.
func (o *owners) add(key ownerKey, version string) int {
	n := len(o.packages)
	if n == maxPackages {
		return 0
	}
	o.byName[key] = n
	o.packages = append(o.packages, pkg{Name: key.name, Version: version, Site: key.site})
	return n
}

// readRecord takes the paths of a package's RECORD, which start at the site directory or are absolute.
func (o *owners) readRecord(root facts.Root, site, metadata string, n int) {
	if root == nil {
		return
	}
	name := "/" + metadata + "/RECORD"
	info, err := root.Stat(name)
	if err != nil || info.Size > maxRecord {
		return
	}
	h, err := root.Open(name)
	if err != nil {
		return
	}
	defer h.Close()
	r := csv.NewReader(bufio.NewReaderSize(io.NewSectionReader(h, 0, info.Size), recordBuffer))
	r.FieldsPerRecord, r.ReuseRecord, r.LazyQuotes = -1, true, true
	for len(o.files) < maxRecords {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil || len(row) == 0 || row[0] == "" {
			return
		}
		p := strings.TrimPrefix(path.Join("/", site, row[0]), "/")
		if path.IsAbs(row[0]) {
			p = strings.TrimPrefix(path.Clean(row[0]), "/")
		}
		if _, taken := o.files[p]; taken {
			continue
		}
		o.files[p] = n
		if dir := path.Dir(p); strings.HasPrefix(dir, site+"/") {
			if _, taken := o.dirs[dir]; !taken {
				o.dirs[dir] = n
			}
		}
	}
}

// of returns the package of a file as an index, 0 for none.
func (o *owners) of(p string) int {
	if n, ok := o.files[p]; ok {
		return n
	}
	for dir := path.Dir(p); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if n, ok := o.dirs[dir]; ok {
			return n
		}
		if site, ok := o.siteOf[dir]; ok {
			return o.named(site, p[len(dir)+1:])
		}
	}
	return 0
}

// suffixes are what follows the name of a package or module in names beside it: the directories that wheels and setuptools
// make, those that auditwheel puts libraries in, and the ends of modules.
var suffixes = lazyregexp.New(`(-[^-]+)?\.(dist-info|egg-info|egg-link|data|pth)$|(\.libs|\.py|\.pyi|\.so|\.[a-z0-9_-]+\.so|\.[a-z0-9_-]+\.pyc)$`)

// named is the package of a file that no list has, by the first name below the site directory.
func (o *owners) named(site int, rest string) int {
	first, below, inside := strings.Cut(rest, "/")
	if first == "__pycache__" && inside {
		first = below
	}
	first = suffixes.ReplaceAllString(first, "")
	key := ownerKey{site, python.NormalizeName(first)}
	if n, ok := o.byName[key]; ok {
		return n
	}
	key.name = first
	if n, ok := o.byName[key]; ok {
		return n
	}
	return o.add(key, "")
}
