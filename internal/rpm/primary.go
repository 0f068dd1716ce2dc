package rpm

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Limits of a list of packages. The largest, Fedora's, has 70,000, and a kernel's debugging package 30,000 relations.
const (
	maxPackages  = 1_000_000
	maxRelations = 200_000
	maxListed    = 1_000_000 // files of one package
	maxText      = 64 << 10  // bytes of a value
)

// primary is a list of packages while it is read.
type primary struct {
	add       func(*Package) error
	p         *Package
	checksum  string // its type, of the package that is read
	into      *[]Relation
	suggests  bool
	relations int
	packages  int
	texts     map[string]string
}

// ReadPrimary calls add with each package of a list, primary.xml, uncompressed. What a package recommends and suggests is kept by
// name alone.
func ReadPrimary(r io.Reader, add func(*Package) error) error {
	x := &primary{add: add, texts: map[string]string{}}
	return newScanner(r).run(x.start, x.end)
}

// intern keeps one copy of a text that the list repeats.
func (x *primary) intern(b []byte) string {
	s, ok := x.texts[string(b)]
	if !ok {
		s = string(b)
		x.texts[s] = s
	}
	return s
}

func (x *primary) start(e *tag) error {
	if e.name == "package" {
		if x.packages++; x.packages > maxPackages {
			return fmt.Errorf("it has more than %d packages", maxPackages)
		}
		*x = primary{add: x.add, packages: x.packages, texts: x.texts, p: &Package{}}
		return nil
	}
	if x.p == nil {
		return nil
	}
	switch e.name {
	case "version":
		x.p.Version = x.version(e)
	case "checksum":
		x.checksum = string(e.get("type"))
	case "size":
		var err error
		if x.p.Size, err = strconv.ParseInt(string(e.get("package")), 10, 64); err != nil || x.p.Size < 0 {
			return fmt.Errorf("package %.80q has the size %.40q", x.p.Name, e.get("package"))
		}
	case "location":
		x.p.Location = string(e.get("href"))
	case "provides":
		x.into = &x.p.Provides
	case "requires":
		x.into = &x.p.Requires
	case "conflicts":
		x.into = &x.p.Conflicts
	case "obsoletes":
		x.into = &x.p.Obsoletes
	case "recommends", "suggests":
		x.suggests = true
	case "entry":
		return x.entry(e)
	}
	return nil
}

func (x *primary) version(e *tag) Version {
	v := Version{Epoch: x.intern(e.get("epoch")), Version: x.intern(e.get("ver")), Release: x.intern(e.get("rel"))}
	if v.Epoch == "0" {
		v.Epoch = ""
	}
	return v
}

func (x *primary) entry(e *tag) error {
	if x.relations++; x.relations > maxRelations {
		return fmt.Errorf("package %.80q has more than %d relations", x.p.Name, maxRelations)
	}
	if x.into == nil && !x.suggests {
		return nil
	}
	name := x.intern(e.get("name"))
	if x.suggests {
		x.p.Suggests = append(x.p.Suggests, name)
		return nil
	}
	r := Relation{Name: name, sense: senses[string(e.get("flags"))]}
	if strings.HasPrefix(name, "(") {
		var err error
		if r, err = ParseRelation(name); err != nil {
			return fmt.Errorf("package %.80q: %w", x.p.Name, err)
		}
	} else if r.sense != 0 {
		r.version = x.version(e)
	}
	*x.into = append(*x.into, r)
	return nil
}

func (x *primary) end(name string, text []byte) error {
	if x.p == nil {
		return nil
	}
	switch name {
	case "name":
		x.p.Name = x.intern(text)
	case "arch":
		x.p.Arch = x.intern(text)
	case "checksum":
		x.p.SHA256 = string(text)
	case "provides", "requires", "conflicts", "obsoletes", "recommends", "suggests":
		x.into, x.suggests = nil, false
	case "file":
		if len(x.p.Files) >= maxListed {
			return fmt.Errorf("package %.80q has more than %d files", x.p.Name, maxListed)
		}
		x.p.Files = append(x.p.Files, x.intern(text))
	case "package":
		p := x.p
		x.p = nil
		if err := x.check(p); err != nil {
			return err
		}
		return x.add(p)
	}
	return nil
}

func (x *primary) check(p *Package) error {
	switch {
	case !IsName(p.Name) || !IsName(p.Arch) || !isVersion(p.Version):
		return fmt.Errorf("it has a package of the name %.80q, the version %.80q and the architecture %.80q", p.Name, p.Version.String(), p.Arch)
	case x.checksum != "sha256" || !isSHA256(p.SHA256):
		return fmt.Errorf("package %s has no SHA-256, but a checksum of type %.20q", p, x.checksum)
	}
	if err := checkLocation(p.Location); err != nil {
		return fmt.Errorf("the file of package %s: %w", p, err)
	}
	return nil
}

// IsName reports whether a text can be the name of a package, or an architecture's.
func IsName(s string) bool {
	return consistsOf(s, "._+-") && isLetterOrDigit(s[0])
}

func isVersion(v Version) bool {
	const marks = "._+~^"
	return consistsOf(v.Version, marks) && consistsOf(v.Release, marks) && (v.Epoch == "" || consistsOf(v.Epoch, ""))
}

func isLetterOrDigit(c byte) bool { return isDigit(c) || isLetter(c) }

func consistsOf(s, marks string) bool {
	for i := range len(s) {
		if !isLetterOrDigit(s[i]) && strings.IndexByte(marks, s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

// ReadFileLists calls add for those of the wanted files that packages of a list, filelists.xml, have: with the package's hash.
func ReadFileLists(r io.Reader, wanted map[string]bool, add func(sha256, file string)) error {
	id := ""
	return newScanner(r).run(func(e *tag) error {
		if e.name == "package" {
			id = string(e.get("pkgid"))
		}
		return nil
	}, func(name string, text []byte) error {
		if name == "file" && wanted[string(text)] {
			add(id, string(text))
		}
		return nil
	})
}
