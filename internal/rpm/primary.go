package rpm

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unique"
)

// Limits of a list of packages. The largest, Fedora's, has 70,000, and a kernel's debugging package 30,000 relations.
const (
	maxPackages  = 1_000_000
	maxRelations = 200_000
	maxListed    = 1_000_000 // files of one package
	maxText      = 64 << 10  // bytes of a value
)

// scanner goes through the elements of a list, which is too long to be kept.
type scanner struct {
	decoder *xml.Decoder
	text    strings.Builder
}

func newScanner(r io.Reader) *scanner {
	d := xml.NewDecoder(r)
	d.Strict = true
	return &scanner{decoder: d}
}

// run calls start at the beginning of each element, and end at its end with the text in it.
func (s *scanner) run(start func(xml.StartElement) error, end func(name, text string) error) error {
	for {
		token, err := s.decoder.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is damaged: %w", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			s.text.Reset()
			err = start(token)
		case xml.EndElement:
			err = end(token.Name.Local, strings.TrimSpace(s.text.String()))
			s.text.Reset()
		case xml.CharData:
			if s.text.Len()+len(token) <= maxText {
				s.text.Write(token)
			}
		}
		if err != nil {
			return err
		}
	}
}

// intern keeps one copy of a text that a list repeats.
func intern(s string) string { return unique.Make(s).Value() }

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// primary is a list of packages while it is read.
type primary struct {
	add       func(*Package) error
	p         *Package
	checksum  string // its type, of the package that is read
	into      *[]Relation
	suggests  bool
	relations int
	packages  int
}

// ReadPrimary calls add with each package of a list, primary.xml, uncompressed. What a package recommends and suggests is kept by
// name alone.
func ReadPrimary(r io.Reader, add func(*Package) error) error {
	x := &primary{add: add}
	return newScanner(r).run(x.start, x.end)
}

func (x *primary) start(e xml.StartElement) error {
	if e.Name.Local == "package" {
		if x.packages++; x.packages > maxPackages {
			return fmt.Errorf("it has more than %d packages", maxPackages)
		}
		*x = primary{add: x.add, packages: x.packages, p: &Package{}}
		return nil
	}
	if x.p == nil {
		return nil
	}
	switch e.Name.Local {
	case "version":
		x.p.Version = versionOf(e)
	case "checksum":
		x.checksum = attribute(e, "type")
	case "size":
		var err error
		if x.p.Size, err = strconv.ParseInt(attribute(e, "package"), 10, 64); err != nil || x.p.Size < 0 {
			return fmt.Errorf("package %.80q has the size %.40q", x.p.Name, attribute(e, "package"))
		}
	case "location":
		x.p.Location = attribute(e, "href")
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

func versionOf(e xml.StartElement) Version {
	v := Version{Epoch: intern(attribute(e, "epoch")), Version: intern(attribute(e, "ver")), Release: intern(attribute(e, "rel"))}
	if v.Epoch == "0" {
		v.Epoch = ""
	}
	return v
}

func (x *primary) entry(e xml.StartElement) error {
	if x.relations++; x.relations > maxRelations {
		return fmt.Errorf("package %.80q has more than %d relations", x.p.Name, maxRelations)
	}
	name := attribute(e, "name")
	if x.suggests {
		x.p.Suggests = append(x.p.Suggests, intern(name))
		return nil
	}
	if x.into == nil {
		return nil
	}
	r := Relation{Name: intern(name), sense: senses[attribute(e, "flags")]}
	if strings.HasPrefix(name, "(") {
		var err error
		if r, err = ParseRelation(name); err != nil {
			return fmt.Errorf("package %.80q: %w", x.p.Name, err)
		}
	} else if r.sense != 0 {
		r.version = versionOf(e)
	}
	*x.into = append(*x.into, r)
	return nil
}

func (x *primary) end(name, text string) error {
	if x.p == nil {
		return nil
	}
	switch name {
	case "name":
		x.p.Name = intern(text)
	case "arch":
		x.p.Arch = intern(text)
	case "checksum":
		x.p.SHA256 = text
	case "provides", "requires", "conflicts", "obsoletes", "recommends", "suggests":
		x.into, x.suggests = nil, false
	case "file":
		if len(x.p.Files) >= maxListed {
			return fmt.Errorf("package %.80q has more than %d files", x.p.Name, maxListed)
		}
		x.p.Files = append(x.p.Files, intern(text))
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
	return newScanner(r).run(func(e xml.StartElement) error {
		if e.Name.Local == "package" {
			id = attribute(e, "pkgid")
		}
		return nil
	}, func(name, text string) error {
		if name == "file" && wanted[text] {
			add(id, text)
		}
		return nil
	})
}
