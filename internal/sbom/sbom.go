// Package sbom lists what is installed in an image, as a document of CycloneDX (ECMA-424, version 1.6) or SPDX (version 2.3):
// packages of Debian and its children, of Alpine and of RPM, Python distributions, conda packages, with package URLs (purl),
// licences as they say of themselves, and the hashes that their own records keep. It is read from the image's files alone, and the
// same image under the same name gives the same bytes.
//
//	sbom.go     the list; Python and conda      cyclonedx.go, spdx.go  the documents
//	system.go   packages of distributions       license.go             which licences SPDX knows
//
// What it cannot read is not left out silently: the document then says that it is incomplete.
package sbom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
)

// Limits on what is read.
const (
	maxFile     = 64 << 20 // bytes of a file
	maxPackages = 100_000  // in an image
)

// Component is an installed package.
type Component struct {
	Name     string
	Version  string
	PURL     string
	Licenses []string // as the package says: SPDX identifiers most often
	SHA256   string   // of the archive it was installed from, where that is known
	Found    string   // path of the record that says so, without a slash in front
}

// List is what an image holds.
type List struct {
	Image      string    // name, for people
	Digest     string    // of its manifest; "" for a file system
	Created    time.Time // as its configuration says; zero where it does not
	Components []Component
	Unread     []string // what could not be read, in words; empty: all was
}

// Format is a format of documents.
type Format string

// The formats, as they are called on the command line.
const (
	CycloneDX Format = "cyclonedx" // 1.6, in JSON
	SPDX      Format = "spdx"      // 2.3, in JSON
)

// Write writes the list as a document of a format. The version is sconce's.
func (l *List) Write(f Format, version string) ([]byte, error) {
	if f == SPDX {
		return l.spdx(version)
	}
	return l.cycloneDX(version)
}

// Of lists what is installed in an image, by package URL.
func Of(ctx context.Context, f *facts.Facts) (*List, error) {
	r := &reader{root: f.Root, list: &List{Image: f.Image, Digest: f.Digest, Created: f.Created}, owned: map[string]bool{}}
	r.release()
	// Conda first: its records name the Python distributions that are its own.
	for _, visit := range []func(string){r.conda, r.others} {
		for i := range f.Paths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if f.Paths[i].Type == layer.Regular && len(r.list.Components) < maxPackages {
				visit(f.Paths[i].Path)
			}
		}
	}
	if len(r.list.Components) >= maxPackages {
		r.unread("packages beyond the first 100000")
	}
	slices.SortFunc(r.list.Components, func(a, b Component) int {
		return cmp.Or(cmp.Compare(a.PURL, b.PURL), cmp.Compare(a.Found, b.Found))
	})
	slices.Sort(r.list.Unread)
	return r.list, nil
}

// reader reads the records of package managers.
type reader struct {
	root       facts.Root
	list       *List
	owned      map[string]bool // METADATA files of conda packages
	id, distro string          // "debian", "debian-12"
}

func (r *reader) unread(what string) {
	if !slices.Contains(r.list.Unread, what) {
		r.list.Unread = append(r.list.Unread, what)
	}
}

// read returns a file's content. What cannot be read is noted.
func (r *reader) read(name string) []byte {
	data, err := readFile(r.root, name)
	if err != nil {
		r.unread(name + ": " + err.Error())
	}
	return data
}

func readFile(root facts.Root, name string) ([]byte, error) {
	h, err := root.Open("/" + name)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if h.Size() > maxFile {
		return nil, errors.New("it is too large")
	}
	data := make([]byte, h.Size())
	_, err = io.ReadFull(io.NewSectionReader(h, 0, h.Size()), data)
	return data, err
}

// release reads which distribution it is (os-release(5)).
func (r *reader) release() {
	var data []byte
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		if found, err := readFile(r.root, name); err == nil {
			data = found
			break
		}
	}
	version := ""
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			r.id = value
		case "VERSION_ID":
			version = value
		}
	}
	r.id = cmp.Or(r.id, "linux")
	r.distro = strings.TrimSuffix(r.id+"-"+version, "-")
}

// others reads one file that may be a record of anything but conda.
func (r *reader) others(name string) {
	dir, base := path.Split(name)
	switch {
	case name == "var/lib/dpkg/status", dir == "var/lib/dpkg/status.d/" && !strings.HasSuffix(base, ".md5sums"):
		r.dpkg(name)
	case name == "lib/apk/db/installed", name == "usr/lib/apk/db/installed":
		r.apk(name)
	case dir == "var/lib/rpm/" || dir == "usr/lib/sysimage/rpm/":
		r.rpm(name)
	case base == "METADATA" && strings.HasSuffix(dir, ".dist-info/"), base == "PKG-INFO" && strings.HasSuffix(dir, ".egg-info/"):
		r.python(name)
	}
}

// python reads the metadata of a Python distribution that is no part of a conda package.
func (r *reader) python(name string) {
	if r.owned[name] {
		return
	}
	data := r.read(name)
	if data == nil {
		return
	}
	m, err := python.ParseMetadata(data)
	if err != nil {
		r.unread(name + ": " + err.Error())
		return
	}
	c := Component{Name: m.Name, Version: m.Version, Found: name, PURL: PURL("pypi", python.NormalizeName(m.Name), m.Version, nil)}
	if license, _, more := strings.Cut(m.License, "\n"); license != "" && !more && license != "UNKNOWN" {
		c.Licenses = []string{license}
	}
	r.list.Components = append(r.list.Components, c)
}

// condaRecord is what is read of conda-meta/NAME-VERSION-BUILD.json (CEP 32).
type condaRecord struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Build   string   `json:"build"`
	Channel string   `json:"channel"`
	Subdir  string   `json:"subdir"`
	License string   `json:"license"`
	SHA256  string   `json:"sha256"`
	Files   []string `json:"files"`
}

// conda reads a record of a conda package.
func (r *reader) conda(name string) {
	dir, base := path.Split(name)
	if path.Base(dir) != "conda-meta" || path.Ext(base) != ".json" {
		return
	}
	data := r.read(name)
	if data == nil {
		return
	}
	var c condaRecord
	if err := json.Unmarshal(data, &c); err != nil || c.Name == "" || c.Version == "" {
		r.unread(name + ": it is no record of a conda package")
		return
	}
	prefix := path.Dir(path.Clean(dir))
	for _, f := range c.Files {
		if base := path.Base(f); base == "METADATA" || base == "PKG-INFO" {
			r.owned[path.Join(prefix, f)] = true
		}
	}
	channel := strings.TrimSuffix(strings.TrimSuffix(c.Channel, "/"), "/"+c.Subdir)
	if u, err := url.Parse(channel); err == nil { // never the login that it may have
		u.User, u.RawQuery = nil, ""
		channel = path.Base(withoutToken(u.Path))
	}
	one := Component{
		Name: c.Name, Version: c.Version, SHA256: c.SHA256, Found: name,
		PURL: PURL("conda", c.Name, c.Version, url.Values{"build": {c.Build}, "channel": {strings.Trim(channel, "./")}, "subdir": {c.Subdir}}),
	}
	if c.License != "" {
		one.Licenses = []string{c.License}
	}
	r.list.Components = append(r.list.Components, one)
}

// withoutToken takes the token out of a channel's path: /t/TOKEN/NAME.
func withoutToken(p string) string {
	if rest, ok := strings.CutPrefix(p, "/t/"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		return "/" + rest
	}
	return p
}

// PURL writes a package URL (ECMA-427): qualifiers by name, empty ones left out.
func PURL(kind, name, version string, qualifiers url.Values) string {
	text := "pkg:" + kind + "/" + escape(name) + "@" + escape(version)
	sign := "?"
	for _, key := range slices.Sorted(maps.Keys(qualifiers)) {
		if value := qualifiers.Get(key); value != "" {
			text += sign + key + "=" + escape(value)
			sign = "&"
		}
	}
	return text
}

// escape is the percent encoding of package URLs, in which a colon stays.
func escape(s string) string {
	return strings.NewReplacer("+", "%20", "%3A", ":", "%7E", "~").Replace(url.QueryEscape(s))
}
