package deffile

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Bootstrap is what a header says of a base from a distribution's packages: Debian's or Ubuntu's, by Suite, or RPM's, by Repositories. One
// of the two is set.
type Bootstrap struct {
	Line int // where the file begins to say so

	Suite        string
	Mirror       string   // URL, with Suite; "": the distribution's own
	Repositories []string // URLs of the directories in which repodata is
	Packages     []string
	Keys         string // file, or https URL, with the keys that sign; "": those that are known
}

// debianAgent is the bootstrap of Debian's and Ubuntu's packages.
const debianAgent = "debootstrap"

// rpmAgents are the bootstraps of RPM packages, and what each takes without being told, beside what every base has. Since Apptainer knows a
// yum from a dnf by what the machine has, they mean the same.
var rpmAgents = map[string][]string{"dnf": nil, "yum": nil, "zypper": {"aaa_base"}}

// noRegistration is what to do without SUSE's registration.
const noRegistration = "name the repositories of a mirror, such as your site's, by MirrorURL and OtherURL0, and the key that signs them by GPG; " +
	"or write Bootstrap: docker, From: registry.suse.com/bci/bci-base:15.6"

// refused are headers of the bootstraps of RPM packages that cannot be obeyed: why, and what to do instead.
var refused = []struct{ header, why, hint string }{
	{"Product", "nothing is registered with SUSE here", noRegistration},
	{"User", "nothing is registered with SUSE here", noRegistration},
	{"Regcode", "nothing is registered with SUSE here", noRegistration},
	{"RegisterURL", "nothing is registered with SUSE here", noRegistration},
	{"Modules", "nothing is registered with SUSE here", noRegistration},
	{"ProductPGP", "keys are read from files", "write the key into a file, and its name behind GPG:"},
	{"Setopt", "no dnf of this machine takes part that would have options", "leave the line out; Include says what is installed, and what is only recommended is not"},
}

// packages is the reference of a base that a distribution's packages make.
func (e *evaluator) packages(s *stage, agent string) (string, error) {
	b := Bootstrap{Line: s.header["bootstrap"].line, Packages: strings.FieldsFunc(s.header["include"].value, func(c rune) bool { return c == ',' || unicode.IsSpace(c) })}
	fill := e.suite
	if agent != debianAgent {
		fill = e.repositories
	}
	if err := fill(s, agent, &b); err != nil {
		return "", err
	}
	var err error
	if b.Keys, err = e.keys(s); err != nil {
		return "", err
	}
	return e.options.Bootstrap(b), nil
}

func (e *evaluator) suite(s *stage, agent string, b *Bootstrap) (err error) {
	b.Suite = s.header["osversion"].value
	if b.Suite == "" {
		return e.file.wrong(b.Line, "add a line OSVersion: bookworm", "Bootstrap: %s without OSVersion", agent)
	}
	if s.header["mirrorurl"].value != "" {
		b.Mirror, err = e.address(s, "MirrorURL", func(text string, _ int) (string, error) { return text, nil })
	}
	return err
}

func (e *evaluator) repositories(s *stage, agent string, b *Bootstrap) error {
	for _, r := range refused {
		if h, ok := s.header[strings.ToLower(r.header)]; ok {
			return e.file.wrong(h.line, r.hint, "%s: %s", r.header, r.why)
		}
	}
	if s.header["mirrorurl"].value == "" {
		return e.file.wrong(b.Line, "add a line MirrorURL: http://…, with the address of a repository: that of the directory in which repodata is", "Bootstrap: %s without MirrorURL", agent)
	}
	for _, header := range s.addresses() {
		address, err := e.address(s, header, func(text string, line int) (string, error) { return e.variables(s, text, line) })
		if err != nil {
			return err
		}
		b.Repositories = append(b.Repositories, strings.TrimRight(address, "/"))
	}
	for _, name := range b.Packages {
		if !rpmName.MatchString(name) {
			return e.file.wrong(s.header["include"].line, "name the packages of a group, or those that a pattern means, one by one; a version is asked for by NAME=VERSION",
				"Include: %q is not the name of a package", name)
		}
	}
	b.Packages = slices.Concat(rpmAgents[agent], b.Packages)
	return nil
}

// rpmName is the name of an RPM package, with a version, or a file in one.
var rpmName = lazyregexp.New(`^(?:[A-Za-z0-9][A-Za-z0-9+._-]*(?:=[A-Za-z0-9.+:~^_-]+)?|/[^\s*?\[\]]+)$`)

// otherURL are the headers with addresses of further repositories.
var otherURL = lazyregexp.New(`^otherurl([0-9]+)$`)

// addresses are the headers with addresses of repositories that the stage has.
func (st *stage) addresses() []string {
	all := []string{"MirrorURL"}
	if st.header["updateurl"].value != "" {
		all = append(all, "UpdateURL")
	}
	var others []string
	for key := range st.header {
		if m := otherURL.FindStringSubmatch(key); m != nil {
			others = append(others, "OtherURL"+m[1])
		}
	}
	number := func(header string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(header, "OtherURL")) // one that is too large is the last
		return n
	}
	slices.SortFunc(others, func(a, b string) int { return cmp.Or(number(a)-number(b), cmp.Compare(a, b)) })
	return append(all, others...)
}

var osVersion = lazyregexp.New(`(?i)%\{OSVERSION\}`)

// address is what a header says where something is, with the version in it. variables puts in what else stands for something.
func (e *evaluator) address(s *stage, header string, variables func(text string, line int) (string, error)) (string, error) {
	h, version := s.header[strings.ToLower(header)], s.header["osversion"].value
	if osVersion.MatchString(h.value) && version == "" {
		return "", e.file.wrong(h.line, "add a line OSVersion: 9", "%s has %%{OSVERSION}, and there is no OSVersion", header)
	}
	text, err := variables(osVersion.Regexp().ReplaceAllLiteralString(h.value, version), h.line)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil:
		return "", e.file.wrong(h.line, "~/.netrc has them", "%s must not hold a user or password: it would end up in the image", header)
	case err != nil || !slices.Contains([]string{"http", "https", "file"}, u.Scheme) || u.Host+u.Path == "" || strings.ContainsFunc(text, unicode.IsSpace):
		return "", e.file.wrong(h.line, "write http://…, https://… or file://…, and one alone", "%s is not the address of a mirror", header)
	}
	return text, nil
}

// machines are rpm's names of architectures.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// variable is one of yum.conf(5) or zypper's.
var variable = lazyregexp.New(`\$(?:\{(\w+)\}|(\w+))`)

// variables puts in what yum, dnf and zypper put in. The version is the release, as Apptainer has it.
func (e *evaluator) variables(s *stage, text string, line int) (string, error) {
	version := s.header["osversion"].value
	major, minor, _ := strings.Cut(version, ".")
	machine := cmp.Or(machines[e.options.Platform.Architecture], e.options.Platform.Architecture)
	known := map[string]string{"arch": machine, "basearch": machine, "releasever": version, "releasever_major": major, "releasever_minor": minor}
	var err error
	text = variable.ReplaceAllStringFunc(text, func(v string) string {
		m := variable.FindStringSubmatch(v)
		name := m[1] + m[2]
		value, ok := known[name]
		switch {
		case err != nil:
		case !ok:
			err = e.file.wrong(line, "write what it stands for; those that are known are $"+strings.Join(slices.Sorted(maps.Keys(known)), ", $"), "nothing is known here that %s stands for", v)
		case version == "" && strings.HasPrefix(name, "releasever"):
			err = e.file.wrong(line, "add a line OSVersion: 9", "%s is the version, and there is no OSVersion", v)
		}
		return value
	})
	return text, err
}

// keys is the file, or the address, of the keys that sign.
func (e *evaluator) keys(s *stage) (string, error) {
	gpg, keyring := s.header["gpg"], s.header["keyring"]
	scheme, name, isAddress := strings.Cut(gpg.value, "://")
	u, err := url.Parse(gpg.value)
	switch {
	case gpg.value == "":
		return keyring.value, nil
	case keyring.value != "":
		return "", e.file.wrong(max(gpg.line, keyring.line), "keep one of them", "GPG and Keyring both say who signs")
	case scheme == "file" && isAddress:
		return name, nil
	case isAddress && scheme != "https":
		return "", e.file.wrong(gpg.line, "write https://…, or download the key, compare its fingerprint, and name the file",
			"GPG: a key that comes by %s could be anybody's", scheme)
	case isAddress && (err != nil || u.Host == "" || u.User != nil):
		return "", e.file.wrong(gpg.line, "write https://HOST/PATH; ~/.netrc has users and passwords", "GPG: this is no address of a key")
	}
	return gpg.value, nil
}

// agentNames lists all bootstraps that there are.
func agentNames() string {
	all := slices.Concat(imageAgents, []string{debianAgent, "scratch"}, slices.Collect(maps.Keys(rpmAgents)))
	slices.Sort(all)
	return strings.Join(all, ", ")
}
