// Package sbom lists what is installed in an image, as a CycloneDX document (ECMA-424, version 1.6): packages of Debian and its
// children, Python distributions, conda packages, with package URLs (purl), licences as they say of themselves, and the hashes that
// their own records keep. It is read from the image's files alone, and the same image under the same name gives the same bytes.
//
// What it cannot read is not left out silently: the document then says that it is incomplete.
package sbom

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

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
	Image      string // name, for people
	Digest     string // of its manifest; "" for a file system
	Components []Component
	Unread     []string // what could not be read, in words; empty: all was
}

// Of lists what is installed in an image, by package URL.
func Of(ctx context.Context, f *facts.Facts) (*List, error) {
	r := &reader{root: f.Root, list: &List{Image: f.Image, Digest: f.Digest}, owned: map[string]bool{}}
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
	case base == "METADATA" && strings.HasSuffix(dir, ".dist-info/"), base == "PKG-INFO" && strings.HasSuffix(dir, ".egg-info/"):
		r.python(name)
	case (dir == "var/lib/rpm/" || dir == "usr/lib/sysimage/rpm/") && (base == "rpmdb.sqlite" || base == "Packages" || base == "Packages.db"):
		r.unread("RPM packages (" + name + ")")
	case name == "lib/apk/db/installed":
		r.unread("Alpine packages (" + name + ")")
	}
}

// dpkg reads a status file (deb-src-control(5) has its form).
func (r *reader) dpkg(name string) {
	fields := map[string]string{}
	end := func() {
		installed := fields["Status"] == "" || strings.HasSuffix(fields["Status"], " installed")
		if fields["Package"] != "" && fields["Version"] != "" && installed {
			r.addDebian(fields, name)
		}
		clear(fields)
	}
	lines := bufio.NewScanner(bytes.NewReader(r.read(name)))
	lines.Buffer(nil, maxFile)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			end()
		} else if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' && line[0] != '\t' {
			fields[key] = strings.TrimSpace(value)
		}
	}
	end()
	if lines.Err() != nil {
		r.unread(name + ": " + lines.Err().Error())
	}
}

func (r *reader) addDebian(fields map[string]string, found string) {
	name, version := fields["Package"], fields["Version"]
	r.list.Components = append(r.list.Components, Component{
		Name: name, Version: version, Found: found, Licenses: r.debianLicenses(name),
		PURL: PURL("deb/"+url.PathEscape(r.id), name, version, url.Values{"arch": {fields["Architecture"]}, "distro": {r.distro}}),
	})
}

// maxLicenses is how many licences of a package are named.
const maxLicenses = 50

// debianLicenses reads the short names of licences from a copyright file that machines can read (DEP 5). Many are written for people.
func (r *reader) debianLicenses(name string) []string {
	if strings.ContainsAny(name, "/") {
		return nil
	}
	data, err := readFile(r.root, "usr/share/doc/"+name+"/copyright")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.unread("copyright of " + name + ": " + err.Error())
		}
		return nil
	}
	if !bytes.HasPrefix(data, []byte("Format:")) {
		return nil
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		license, ok := strings.CutPrefix(strings.TrimSpace(line), "License: ")
		if license = strings.TrimSpace(license); ok && strings.HasPrefix(line, "License:") && license != "" && len(all) < maxLicenses && !slices.Contains(all, license) {
			all = append(all, license)
		}
	}
	slices.Sort(all)
	return all
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
	for key, values := range qualifiers {
		if values[0] == "" {
			delete(qualifiers, key)
		}
	}
	text := "pkg:" + kind + "/" + escape(name) + "@" + escape(version)
	if len(qualifiers) > 0 {
		text += "?" + qualifiers.Encode()
	}
	return text
}

// escape is the percent encoding of package URLs, in which a colon stays.
func escape(s string) string {
	return strings.NewReplacer("+", "%20", "%3A", ":", "%7E", "~").Replace(url.QueryEscape(s))
}
