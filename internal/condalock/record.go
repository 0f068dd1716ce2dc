package condalock

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// record is a package as solve.py has it.
type record struct {
	conda.Package
	SHA256 string `json:"sha256"` // hexadecimal
}

func recordOf(p conda.Package) record {
	r := record{p, p.SHA256.Hex()}
	r.Depends, r.Constrains = listOf(p.Depends), listOf(p.Constrains)
	return r
}

// packagesOf checks what the solver said of packages, without the logins that may be in addresses.
func packagesOf(records []record) ([]conda.Package, error) {
	all := make([]conda.Package, 0, len(records))
	for _, r := range records {
		p := r.Package
		p.URL = withoutLogins(p.URL)
		p.Channel = withoutSubdir(strings.TrimRight(withoutLogins(p.Channel), "/"))
		if r.SHA256 != "" {
			p.SHA256 = store.Digest("sha256:" + r.SHA256)
		}
		err := check(&p)
		if named, wrong := fromURL(p.URL); err == nil && wrong == nil {
			err = named.agree(p.Name, p.Version, p.Build) // else nobody could read the lock that is written of it
		}
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", p.Channel, err)
		}
		all = append(all, p)
	}
	return all, nil
}

var (
	// CEP 26 on names, versions and build strings, as wide as packages of today use them.
	packageName    = lazyregexp.New(`^[a-z0-9_][a-z0-9_.-]*$`)
	packageVersion = lazyregexp.New(`^[A-Za-z0-9_.!+-]+$`)
	packageBuild   = lazyregexp.New(`^[A-Za-z0-9_.+]*$`)
	md5Form        = lazyregexp.New(`^[0-9a-f]{32}$`)
)

// check refuses what would be wrong or dangerous as part of a path or an address.
func check(p *conda.Package) error {
	wrong := func(what, value string) error {
		return fmt.Errorf("package %q: its %s %q is wrong", p.Name, what, value)
	}
	switch {
	case !packageName.MatchString(p.Name):
		return fmt.Errorf("%q is not the name of a package", p.Name)
	case !packageVersion.MatchString(p.Version):
		return wrong("version", p.Version)
	case !packageBuild.MatchString(p.Build):
		return wrong("build", p.Build)
	case !subdirName.MatchString(p.Subdir):
		return wrong("subdirectory", p.Subdir)
	case p.File == "" || p.File == "." || p.File == ".." || strings.ContainsAny(p.File, "/\\\x00\n"):
		return wrong("file", p.File)
	case p.MD5 != "" && !md5Form.MatchString(p.MD5):
		return wrong("MD5", p.MD5)
	case p.Size < 0:
		return fmt.Errorf("package %q: its size is negative", p.Name)
	}
	if p.SHA256 != "" {
		if _, err := store.ParseDigest(string(p.SHA256)); err != nil {
			return fmt.Errorf("package %q: %w", p.Name, err)
		}
	}
	u, err := url.Parse(p.URL)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return wrong("address", withoutLogins(p.URL))
	}
	return nil
}

var archiveName = lazyregexp.New(`^(.+)-([^-]+)-([^-]+)(\.conda|\.tar\.bz2)$`)

// fromURL makes a package of the address of its archive: CHANNEL/SUBDIR/NAME-VERSION-BUILD.conda.
func fromURL(address string) (located, error) {
	wrong := fmt.Errorf("%q is not the address of a package: CHANNEL/SUBDIR/NAME-VERSION-BUILD.conda", withoutLogins(address))
	u, err := url.Parse(withoutLogins(address))
	if err != nil || u.Scheme == "" {
		return located{}, wrong
	}
	u.Fragment, u.RawQuery, u.RawPath = "", "", ""
	dir, file := path.Split(u.Path)
	m := archiveName.FindStringSubmatch(file)
	channel, subdir, ok := cutLast(strings.TrimRight(dir, "/"), "/")
	if m == nil || !ok || !subdirName.MatchString(subdir) {
		return located{}, wrong
	}
	at := *u
	at.Path = channel
	p := conda.Package{
		Name: strings.ToLower(m[1]), Version: m[2], Build: m[3], File: file, Subdir: subdir, Channel: at.String(), URL: u.String(),
	}
	describe(&p)
	return located{p}, check(&p)
}
