package sbom

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/rpmdb"
)

// dpkg reads a status file: paragraphs of the packages that dpkg knows (dpkg(1)).
func (r *reader) dpkg(name string) {
	for paragraphs := debian.NewReader(bytes.NewReader(r.read(name))); ; {
		p, err := paragraphs.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			r.unread(name + ": " + err.Error())
			return
		}
		status := p.Get("Status")
		if installed := status == "" || strings.HasSuffix(status, " installed"); installed && p.Get("Package") != "" && p.Get("Version") != "" {
			r.addDebian(p, name)
		}
	}
}

func (r *reader) addDebian(p debian.Paragraph, found string) {
	name, version := p.Get("Package"), p.Get("Version")
	r.list.Components = append(r.list.Components, Component{
		Name: name, Version: version, Found: found, Licenses: r.debianLicenses(name),
		PURL: PURL("deb/"+url.PathEscape(r.id), name, version, url.Values{"arch": {p.Get("Architecture")}, "distro": {r.distro}}),
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

// apk reads the list of what Alpine's package manager has installed: fields of one letter, and an empty line behind each package
// (https://wiki.alpinelinux.org/wiki/Apk_spec).
func (r *reader) apk(name string) {
	var fields map[byte]string
	for line := range strings.Lines(string(r.read(name)) + "\n\n") {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			if fields != nil {
				r.addAlpine(fields, name)
			}
			fields = nil
		case len(line) > 1 && line[1] == ':':
			if fields == nil {
				fields = map[byte]string{}
			}
			fields[line[0]] = line[2:]
		}
	}
}

func (r *reader) addAlpine(fields map[byte]string, found string) {
	if fields['P'] == "" || fields['V'] == "" {
		r.unread(found + ": a package without a name or a version")
		return
	}
	c := Component{
		Name: fields['P'], Version: fields['V'], Found: found,
		PURL: PURL("apk/"+url.PathEscape(r.id), fields['P'], fields['V'], url.Values{"arch": {fields['A']}, "distro": {r.distro}}),
	}
	if fields['L'] != "" {
		c.Licenses = []string{fields['L']}
	}
	r.list.Components = append(r.list.Components, c)
}

// rpm reads the database of RPM.
func (r *reader) rpm(name string) {
	base := path.Base(name)
	if base == "rpmdb.sqlite-wal" {
		if h, err := r.root.Open("/" + name); err == nil {
			if h.Size() > 0 {
				r.unread(name + ": the latest changes of RPM's database; `rpmdb --rebuilddb` in the image puts them in it")
			}
			_ = h.Close()
		}
	}
	if base != "rpmdb.sqlite" && base != "Packages.db" && base != "Packages" {
		return
	}
	h, err := r.root.Open("/" + name)
	if err != nil {
		r.unread(name + ": " + err.Error())
		return
	}
	defer h.Close()
	all, err := rpmdb.Read(h, h.Size())
	if err != nil {
		r.unread("RPM packages (" + name + "): " + err.Error())
	}
	for _, p := range all {
		if p.Arch != "" { // no key of a signer
			r.addRPM(p, name)
		}
	}
}

func (r *reader) addRPM(p rpmdb.Package, found string) {
	version := strings.TrimSuffix(p.Version+"-"+p.Release, "-")
	c := Component{
		Name: p.Name, Version: version, Found: found,
		PURL: PURL("rpm/"+url.PathEscape(r.id), p.Name, version, url.Values{
			"arch": {p.Arch}, "epoch": {p.Epoch}, "upstream": {p.Source}, "distro": {r.distro}, "rpmmod": {p.Module},
		}),
	}
	if p.Epoch != "" {
		c.Version = p.Epoch + ":" + version
	}
	if l := cmp.Or(p.License, "(none)"); l != "(none)" {
		c.Licenses = []string{l}
	}
	r.list.Components = append(r.list.Components, c)
}
