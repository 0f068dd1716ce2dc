package ospackages

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// apt is the package manager of Debian and Ubuntu.
type apt struct{}

// aptName is Pinned.Manager of apt.
const aptName = "apt"

// aptResolve asks apt what an installation would fetch and remove. Its arguments are the foreign architectures, a "--", and the
// packages. Options are given on the command line, since a base's own configuration wins over APT_CONFIG.
//
// A hash is asked for because apt prints MD5 otherwise. An index that cannot be fetched is an error: apt would decide by
// an older one, or without it. With less than -q=0 it would not say which package it takes for a name that is only provided.
// Packages in the base's cache do not count: apt would not say where they come from.
const aptResolve = `set -u
umask 022
while [ "$1" != -- ]; do dpkg --add-architecture "$1" || exit 11; shift; done
shift
cd ` + workDir + `
mkdir -p archives/partial
ca=; [ ! -e ` + caFile + ` ] || ca=-oAcquire::https::CAInfo=` + workDir + `/` + caFile + `
apt() {
	command=$1; shift
	"$command" -oAPT::Sandbox::User=root -oDir::State::Lists=` + listsDir + `/ -oDir::Cache::Archives=` + workDir + `/archives/ \
		-oDir::Cache::pkgcache=` + workDir + `/packages.bin -oDir::Cache::srcpkgcache= \
		-oAcquire::Languages=none -oAcquire::GzipIndexes=true \
		-oAcquire::Retries=3 -oAPT::Update::Error-Mode=any $ca "$@"
}
apt apt-get -q update > updated 2>&1; code=$?
cat updated
[ $code = 0 ] || exit 12
ask() { apt apt-get -q=0 --yes --no-install-recommends --allow-downgrades --allow-change-held-packages -oAcquire::ForceHash=sha256 "$@"; }
if ask --print-uris install "$@" > uris 2> errors && ask --simulate install "$@" > simulated 2>> errors; then exit 0; fi
apt apt-cache pkgnames > names
for p; do apt apt-cache madison "${p%%=*}"; done > versions 2> /dev/null
exit 13
`

// aptAsked is a package as apt-get(8) takes it: NAME, NAME:ARCHITECTURE, either with =VERSION (deb-version(7)). What else apt
// would understand, as a pattern, a task or a removal, cannot be locked.
var aptAsked = lazyregexp.New(`^([a-z0-9][a-z0-9+.-]*)(?::([a-z0-9-]+))?(?:=([0-9A-Za-z][0-9A-Za-z.+~:-]*))?$`)

func (apt) name() string { return aptName }

func (apt) check(packages []string) error {
	for _, p := range packages {
		m := aptAsked.FindStringSubmatch(p)
		if m == nil || strings.HasSuffix(m[1], "-") {
			return fault.Usage(fault.Hint(fmt.Errorf("[system] packages: %q does not name a package as apt does", p),
				"write NAME, NAME=VERSION or NAME:ARCHITECTURE"))
		}
	}
	return nil
}

func (apt) question(_ string, packages []string) (script string, args []string) {
	return aptResolve, slices.Concat(foreignArchitectures(packages), []string{"--"}, packages)
}

// foreignArchitectures lists those that packages name. dpkg has nothing against one that is its own.
func foreignArchitectures(packages []string) []string {
	var all []string
	for _, p := range packages {
		if m := aptAsked.FindStringSubmatch(p); m[2] != "" && m[2] != "all" && m[2] != "any" && m[2] != "native" && !slices.Contains(all, m[2]) {
			all = append(all, m[2])
		}
	}
	return all
}

// sources are those of sources.list(5).
func (apt) sources(t *image.Tree) (string, error) {
	files, err := execop.AptSources(t)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text.WriteString(files[name] + "\n")
	}
	if !aptSource.MatchString(text.String()) {
		return "", fault.Hint(errors.New("the base names no package sources: /etc/apt/sources.list and sources.list.d have none"),
			"take another base, or install the packages in a [[step]]")
	}
	return text.String(), nil
}

// aptSource finds a line of sources.list(5), in its one-line or its deb822 form.
var aptSource = lazyregexp.New(`(?m)^(deb[ \t]|Types:.*\bdeb\b)`)

func (apt) listsError(text string) error {
	return fault.Hint(fmt.Errorf("the base's apt cannot fetch the lists of its package sources:\n%s", aptComplaints(text)),
		"the sources are those of the base, in /etc/apt; proxies are taken from http_proxy and https_proxy")
}

// aptComplaints are the lines of apt's output that say what went wrong.
func aptComplaints(text string) string {
	return complaints(text, func(line string) string {
		kind, about, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if kind != "E" && kind != "W" {
			return ""
		}
		return about
	})
}

// Sentences of apt about packages that it cannot install.
var (
	aptUnknown     = lazyregexp.New(`(?m)^E: (?:Unable to locate package (\S+)|Couldn't find any package by (?:glob|regex) '([^']+)')`)
	aptNoVersion   = lazyregexp.New(`(?m)^E: Version '[^']*' for '([^']+)' was not found`)
	aptNoCandidate = lazyregexp.New(`(?m)^E: Package '([^']+)' has no installation candidate`)
)

// explain makes an error of apt's refusal.
func (a apt) explain(q *question, packages []string) error {
	errorText, err := q.answer("errors")
	if err != nil {
		return err
	}
	said, err := q.answer("uris")
	if err != nil {
		return err
	}
	names, err := q.answer("names")
	if err != nil {
		return err
	}
	versions, err := q.answer("versions")
	if err != nil {
		return err
	}
	return aptExplain(packages, said, errorText, strings.Fields(names), versions)
}

// aptExplain makes an error of what apt said and complained of, with what it knows instead: names of packages, and the versions
// of those that were asked for, as `apt-cache madison` prints them.
func aptExplain(packages []string, said, complaints string, names []string, versions string) error {
	text := aptComplaints(complaints)
	if i := strings.Index(said, "The following packages have unmet dependencies:"); i >= 0 {
		for line := range strings.Lines(said[i:]) {
			text = strings.TrimPrefix(text+"\n  "+strings.TrimRight(line, " \n"), "\n")
		}
	}
	err := fmt.Errorf("the base's apt cannot install %s:\n%s", strings.Join(packages, ", "), text)
	if hints := aptHints(complaints, names, versions); len(hints) > 0 {
		return fault.Hint(err, strings.Join(hints, "; "))
	}
	return fault.Hint(err, "the base's own sources (/etc/apt) decide what there is; check the names under [system] packages")
}

func aptHints(complaints string, names []string, versions string) []string {
	var hints []string
	add := func(format string, args ...any) {
		if hint := fmt.Sprintf(format, args...); !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	slices.Sort(names)
	for _, m := range aptUnknown.FindAllStringSubmatch(complaints, -1) {
		name, _, _ := strings.Cut(m[1]+m[2], ":")
		if near := nearestPackage(name, names); near != "" {
			add("instead of %q, did you mean %q?", name, near)
		}
	}
	for _, m := range aptNoVersion.FindAllStringSubmatch(complaints, -1) {
		name, _, _ := strings.Cut(m[1], ":")
		if known := madison(versions, name); len(known) > 0 {
			add("the base's sources have %s %s", name, strings.Join(known, ", "))
		}
	}
	for _, m := range aptNoCandidate.FindAllStringSubmatch(complaints, -1) {
		add("%s is only a name that other packages refer to, or provide; name one of those", m[1])
	}
	return hints
}

// nearestPackage finds the package that was meant: one with two letters in the other order, the one that only adds something,
// as the number of a library's version is, or one of a similar name.
func nearestPackage(name string, names []string) string {
	for i := 1; i < len(name); i++ {
		swapped := name[:i-1] + name[i:i+1] + name[i-1:i] + name[i+1:]
		if slices.Contains(names, swapped) {
			return swapped
		}
	}
	var longer []string
	for _, n := range names {
		if strings.HasPrefix(n, name) && len(n) <= len(name)+3 {
			longer = append(longer, n)
		}
	}
	if len(longer) > 0 {
		return slices.MinFunc(longer, func(a, b string) int { return len(a) - len(b) })
	}
	return spelling.Nearest(name, names)
}

// madison reads the versions of a package from lines "NAME | VERSION | SOURCE".
func madison(text, name string) []string {
	var versions []string
	for line := range strings.Lines(text) {
		fields := strings.Split(line, "|")
		if len(fields) < 3 || strings.TrimSpace(fields[0]) != name {
			continue
		}
		if v := strings.TrimSpace(fields[1]); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	return versions
}

// read makes the pins of apt's answers.
func (a apt) read(q *question, packages []string) (*Pinned, error) {
	uris, err := q.answer("uris")
	if err != nil {
		return nil, err
	}
	simulated, err := q.answer("simulated")
	if err != nil {
		return nil, err
	}
	return aptPinned(packages, uris, simulated)
}

// aptNote is what apt says when it takes another package than the one that was named, which is only provided by others.
var aptNote = lazyregexp.New(`(?m)^Note, selecting '([^']+)' instead of '([^']+)'`)

// aptRemoval is a line of a simulation.
var aptRemoval = lazyregexp.New(`(?m)^(?:Remv|Purg) (\S+)`)

// aptPinned makes the pins of what apt printed: the addresses of packages, and a simulation.
func aptPinned(packages []string, uris, simulated string) (*Pinned, error) {
	p := &Pinned{Manager: aptName}
	instead := map[string]string{}
	for _, m := range aptNote.FindAllStringSubmatch(uris, -1) {
		instead[m[2]] = m[1]
	}
	for _, asked := range packages {
		name, _, _ := strings.Cut(asked, "=")
		if other, ok := instead[name]; ok {
			name = other
		}
		p.Asked = append(p.Asked, name)
	}
	for line := range strings.Lines(uris) {
		if !strings.HasPrefix(line, "'") {
			continue // apt's own words around the list
		}
		pkg, err := parseURI(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		p.Packages = append(p.Packages, pkg)
	}
	for _, m := range aptRemoval.FindAllStringSubmatch(simulated, -1) {
		p.Remove = append(p.Remove, m[1])
	}
	slices.Sort(p.Asked)
	p.Asked = slices.Compact(p.Asked)
	slices.Sort(p.Remove)
	slices.SortFunc(p.Packages, comparePackages)
	return p, nil
}

// parseURI reads a line of apt-get --print-uris: 'URL' FILE SIZE SHA256:HEX, where FILE is NAME_VERSION_ARCH.deb.
func parseURI(line string) (Package, error) {
	bad := func() (Package, error) {
		return Package{}, fmt.Errorf("apt-get --print-uris printed a line that is not understood: %q", line)
	}
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return bad()
	}
	name, err := url.PathUnescape(strings.TrimSuffix(fields[1], ".deb"))
	parts := strings.Split(name, "_")
	size, sizeErr := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || sizeErr != nil || size < 0 || len(parts) != 3 {
		return bad()
	}
	p := Package{Name: parts[0], Version: parts[1], Architecture: parts[2], Size: size}
	hexed, hasHash := strings.CutPrefix(fields[len(fields)-1], "SHA256:")
	if !hasHash {
		return Package{}, fmt.Errorf("the base's package source has no SHA-256 of %s %s, so that it cannot be locked", p.Name, p.Version)
	}
	if p.SHA256, err = store.ParseDigest("sha256:" + hexed); err != nil || len(fields) != 4 {
		return bad()
	}
	if p.URL, err = withoutLogin(strings.Trim(fields[0], "'")); err != nil {
		return bad()
	}
	if err := p.valid(); err != nil {
		return Package{}, err
	}
	return p, nil
}

// withoutLogin takes user and password out of an address: a lock is for everybody to read, and downloads know netrc.
func withoutLogin(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if u.User == nil {
		return address, nil
	}
	u.User = nil
	return u.String(), nil
}
