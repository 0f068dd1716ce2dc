package ospackages

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/rpm"
)

// zypper is the package manager of openSUSE and SUSE Linux Enterprise.
type zypper struct{}

// zypperName is Pinned.Manager of zypper.
const zypperName = "zypper"

// zypperResolve lets zypper download what an installation would fetch. Its arguments are files of keys, a "--", and the packages.
//
// Without a terminal zypper answers itself what it would ask, and never in favour of a key that it does not know, of an index or a
// package whose signature is missing or wrong, or of a file with another hash. The keys are those that the base has, and those that
// its repositories name as files of the base: without them zypper would ask.
//
// What it has noted of the installed packages in an earlier question was with other keys, and is not kept.
//
// libcurl takes no file of certificates from zypper: it looks where the distribution has told it to.
const zypperResolve = `set -u
umask 022
cd ` + workDir + `
if [ -e ` + caFile + ` ]; then
	for bundle in /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem; do
		mkdir -p "${bundle%/*}" && rm -f "$bundle" && cp ` + caFile + ` "$bundle"
	done
fi
while [ "$1" != -- ]; do rpm --import "$1"; shift; done
shift
rm -rf ` + listsDir + `/solv/@System
ask() { zypper --non-interactive --cache-dir=` + listsDir + ` "$@"; }
ask refresh --services > updated 2>&1; code=$?
cat updated
[ $code = 0 ] || exit 12
ask() { zypper --non-interactive --no-refresh --cache-dir=` + listsDir + ` --pkg-cache-dir=` + workDir + `/packages "$@"; }
if ! ask install --no-recommends --oldpackage --download-only -- "$@" > said 2>&1; then
	cat said
	ask --xmlout search --details --type package | sed -n 's/.* name="\([^"]*\)".* edition="\([^"]*\)".*/\1 \2/p' > names
	exit 13
fi
cat said
ask --xmlout repos --details > repositories || exit 14
`

// zypperAsked is a package as zypper(8) takes it: NAME, NAME=VERSION or NAME.ARCHITECTURE. What else zypper would understand, as a
// pattern, a repository's package or a removal, cannot be locked.
var zypperAsked = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._~^-]*(=[0-9A-Za-z][0-9A-Za-z+._:~^-]*)?$`)

func (zypper) name() string { return zypperName }

func (zypper) check(packages []string) error {
	for _, p := range packages {
		if !zypperAsked.MatchString(p) || strings.HasSuffix(p, ".rpm") { // which is a file
			return fault.Usage(fault.Hint(fmt.Errorf("[system] packages: %q does not name a package as zypper does", p),
				"write NAME, NAME=VERSION or NAME.ARCHITECTURE"))
		}
	}
	return nil
}

func (zypper) sources(t *image.Tree) (string, error) {
	return sourceFiles(t, "etc/zypp/repos.d/*.repo", "etc/zypp/services.d/*.service")
}

func (zypper) question(sources string, packages []string) (script string, args []string) {
	return zypperResolve, slices.Concat(keysOfRepositories(sources), []string{"--"}, packages)
}

// keysOfRepositories lists the files of the base in which repositories that are switched on, in the text of .repo files, say that their
// keys are. Keys at other addresses are nobody's that the base vouches for.
func keysOfRepositories(text string) []string {
	var keys, of []string // of: those of the repository that is read
	enabled, key := true, ""
	end := func() {
		if enabled {
			keys = append(keys, of...)
		}
		of, enabled, key = nil, true, ""
	}
	for line := range strings.Lines(text) {
		value := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(value, "["):
			end()
			continue
		case value == "" || strings.HasPrefix(value, "#"):
			continue
		case line[0] != ' ' && line[0] != '\t': // else it goes on with what the line above says
			key, value, _ = strings.Cut(value, "=")
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		}
		switch key {
		case "enabled":
			enabled = !slices.Contains([]string{"0", "no", "false", "off", "never"}, strings.ToLower(value))
		case "gpgkey":
			of = append(of, keyFiles(value)...)
		}
	}
	end()
	slices.Sort(keys)
	return slices.Compact(keys)
}

// keyFiles takes the paths out of addresses that are separated by commas or spaces.
func keyFiles(addresses string) []string {
	var files []string
	for _, address := range strings.FieldsFunc(addresses, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		if u, err := url.Parse(address); err == nil && u.Scheme == "file" && u.Host == "" && path.IsAbs(u.Path) {
			files = append(files, path.Clean(u.Path))
		}
	}
	return files
}

// zypperNoise finds lines of zypper's that say nothing of what went wrong: its progress, and what it explains at length.
var zypperNoise = lazyregexp.New(`^(    |Loading repository data|Reading installed packages|Resolving package dependencies|Retrieving|Building repository|` +
	`Looking for gpg key|All services|Refreshing service|Note:|Choose from above|Continue\?|Abort, retry|Unblock or discard|Do you want to|` +
	`Please |Problem occurred during|error\]|However if|.* seems to be corrupted during transfer)`)

func zypperComplaints(text string) string {
	return complaints(text, func(line string) string {
		if line = strings.TrimRight(line, " \n"); zypperNoise.MatchString(line) {
			return ""
		}
		return line
	})
}

func (zypper) listsError(text string) error {
	err := fmt.Errorf("the base's zypper cannot fetch the lists of its repositories:\n%s", zypperComplaints(text))
	if strings.Contains(text, "signed with an unknown key") {
		return fault.Hint(err, "the base must know the key already: `rpm --import` it there, or name a file of the base: gpgkey=file:///etc/pki/… in /etc/zypp/repos.d")
	}
	return fault.Hint(err, "the repositories are those of the base, in /etc/zypp/repos.d; proxies are taken from http_proxy and https_proxy")
}

// zypperUnknown is zypper's sentence about a name that it does not know, or a version.
var zypperUnknown = lazyregexp.New(`(?m)^No provider of '([^'=]+)(=?)[^']*' found\.$`)

func (zypper) explain(q *question, packages []string) error {
	said, err := q.answer("said")
	if err != nil {
		return err
	}
	known, err := q.answer("names")
	if err != nil {
		return err
	}
	var names []string
	versions := map[string][]string{}
	for line := range strings.Lines(known) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			names = append(names, name)
			versions[name] = append(versions[name], version)
		}
	}
	slices.Sort(names)
	var hints []string
	for _, m := range zypperUnknown.FindAllStringSubmatch(said, -1) {
		if name := m[1]; m[2] != "" && len(versions[name]) > 0 {
			hints = append(hints, fmt.Sprintf("the base's repositories have %s %s", name, strings.Join(slices.Compact(versions[name]), ", ")))
		} else if near := nearestPackage(name, names); near != "" {
			hints = append(hints, fmt.Sprintf("instead of %q, did you mean %q?", name, near))
		}
	}
	if len(hints) == 0 {
		hints = []string{"the base's own repositories (/etc/zypp/repos.d) decide what there is; check the names under [system] packages"}
	}
	return fault.Hint(fmt.Errorf("the base's zypper cannot install %s:\n%s", strings.Join(packages, ", "), zypperComplaints(said)), strings.Join(hints, "; "))
}

// read makes the pins of what zypper has downloaded, and puts the files into the store.
func (z zypper) read(q *question, packages []string) (*Pinned, error) {
	p := newPinned(zypperName, packages)
	text, err := q.answer("repositories")
	if err != nil {
		return nil, err
	}
	addresses, err := zypperAddresses(text)
	if err != nil {
		return nil, err
	}
	files, err := downloaded(q.work)
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		pkg, err := z.pin(q, name, addresses)
		if err != nil {
			return nil, fmt.Errorf("package %s, which zypper has downloaded: %w", path.Base(name), err)
		}
		p.Packages = append(p.Packages, pkg)
	}
	slices.SortFunc(p.Packages, comparePackages)
	return p, nil
}

// downloaded lists the package files that are in work: packages/REPOSITORY/PATH.
func downloaded(work string) ([]string, error) {
	root, err := os.OpenRoot(work) // a base may be hostile: no link leads out
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var files []string
	err = fs.WalkDir(root.FS(), "packages", func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && path.Ext(name) == ".rpm" {
			files = append(files, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the base has it all
	}
	return files, err
}

// zypperAddresses reads where repositories are, by the names that their directories of downloads have, from what zypper repos prints.
func zypperAddresses(text string) (map[string]*url.URL, error) {
	var stream struct {
		Repositories []struct {
			Alias     string   `xml:"alias,attr"`
			Addresses []string `xml:"url"`
		} `xml:"repo-list>repo"`
	}
	if err := xml.Unmarshal([]byte(text), &stream); err != nil {
		return nil, fmt.Errorf("zypper's list of repositories cannot be read: %w", err)
	}
	addresses := map[string]*url.URL{}
	for _, r := range stream.Repositories {
		if len(r.Addresses) == 0 {
			continue // it has a list of mirrors
		}
		u, err := url.Parse(strings.TrimSpace(r.Addresses[0]))
		if err != nil {
			return nil, fmt.Errorf("repository %s: %w", r.Alias, err)
		}
		if u.Scheme == "dir" {
			u.Scheme = "file"
		}
		// Options of zypper's own, and tokens that are as secret as a password.
		u.RawQuery, u.Fragment, u.User = "", "", nil
		addresses[strings.ReplaceAll(r.Alias, "/", "_")] = u
	}
	return addresses, nil
}

// pin puts a package file into the store, and says what it is and where it came from.
func (zypper) pin(q *question, name string, addresses map[string]*url.URL) (Package, error) {
	var pkg Package
	repository, location, _ := strings.Cut(strings.TrimPrefix(name, "packages/"), "/")
	u := addresses[repository]
	if u == nil {
		return pkg, fault.Hint(fmt.Errorf("zypper does not say where repository %s is", repository),
			"give the repository an address, baseurl=…, instead of a list of mirrors")
	}
	if err := q.keep(filepath.FromSlash(name), &pkg); err != nil {
		return pkg, err
	}
	in, err := q.store.OpenBlob(pkg.SHA256)
	if err != nil {
		return pkg, err
	}
	defer in.Close()
	f, err := rpm.Open(in)
	if err != nil {
		return pkg, err
	}
	pkg.Name, pkg.Version, pkg.Architecture = f.Name, f.Package.Version+"-"+f.Release, f.Arch
	if f.Epoch != "" {
		pkg.Version = f.Epoch + ":" + pkg.Version // rpm writes an epoch of 0, too
	}
	parts := strings.Split(location, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	pkg.URL = u.JoinPath(parts...).String()
	return pkg, pkg.valid()
}
