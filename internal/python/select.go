package python

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/fault"
)

// Select returns the packages of the lock that belong in env, with the best wheel of each for tags (best first; see
// [Interpreter.Tags]), in the order of the lock. It follows "Installing" of the specification. No groups mean the lock's
// default groups; an empty list that is not nil means none.
//
// What cannot be installed is an error, of all packages at once: that no wheel fits, or that there are only sources.
func (l *Lock) Select(env MarkerEnvironment, tags, extras, groups []string) ([]Package, error) {
	return l.selectWith(env, tags, extras, groups, nil)
}

func (l *Lock) selectWith(env MarkerEnvironment, tags, extras, groups []string, fromSource func(string) bool) ([]Package, error) {
	if groups == nil {
		groups = l.DefaultGroups
	}
	env.Extras, env.Groups = extras, groups
	if err := l.checkEnvironment(env); err != nil {
		return nil, err
	}
	chosen, err := l.choose(env)
	if err != nil {
		return nil, err
	}
	s := selector{dir: l.Dir, best: bestTag(tags), ranks: map[string]int{}, fromSource: fromSource}
	for i, t := range tags {
		if _, ok := s.ranks[t]; !ok {
			s.ranks[t] = i
		}
	}
	return s.all(chosen)
}

// checkEnvironment checks what the lock as a whole demands.
func (l *Lock) checkEnvironment(env MarkerEnvironment) error {
	if err := known(env.Extras, l.Extras, "extra"); err != nil {
		return err
	}
	if err := known(env.Groups, slices.Concat(l.Groups, l.DefaultGroups), "dependency group"); err != nil {
		return err
	}
	if err := l.RequiresPython.allow(env); err != nil {
		return fault.Hint(fmt.Errorf("the lock %w", err), "lock again for this Python, or use a base with another one")
	}
	if len(l.Environments) == 0 {
		return nil
	}
	var wanted []string
	for _, m := range l.Environments {
		ok, err := m.Evaluate(env)
		if err != nil {
			return fmt.Errorf("environments: %w", err)
		}
		if ok {
			return nil
		}
		wanted = append(wanted, m.String())
	}
	return fault.Hint(fmt.Errorf("the lock is not for this environment (Python %s on %s), but for: %s",
		env.Variables["python_full_version"], env.Variables["platform_machine"], abridge(wanted)), "lock again for the image's Python and platform")
}

// known checks that what was chosen can be chosen. A lock that offers nothing was made for one choice, as uv makes them,
// and takes any.
func known(chosen, offered []string, what string) error {
	if len(offered) == 0 {
		return nil
	}
	for _, name := range chosen {
		if slices.ContainsFunc(offered, func(o string) bool { return NormalizeName(o) == NormalizeName(name) }) {
			continue
		}
		return fmt.Errorf("the lock has no %s %q; it has: %s", what, name, abridge(offered))
	}
	return nil
}

// allow checks a requires-python.
func (ss Specifiers) allow(env MarkerEnvironment) error {
	text := env.Variables["python_full_version"]
	v, err := ParseVersion(strings.TrimSuffix(text, "+"))
	if err != nil {
		return fmt.Errorf("the interpreter: %w", err)
	}
	if !ss.Contains(v) {
		return fmt.Errorf("requires Python %s, and this is %s", ss, text)
	}
	return nil
}

// choose returns the entries whose marker holds, each name once.
func (l *Lock) choose(env MarkerEnvironment) ([]lockedPackage, error) {
	var chosen []lockedPackage
	seen := map[string]lockedPackage{}
	for _, p := range l.packages {
		if p.marker != nil {
			ok, err := p.marker.Evaluate(env)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.label(), err)
			}
			if !ok {
				continue
			}
		}
		if err := p.requiresPython.allow(env); err != nil {
			return nil, fmt.Errorf("%s %w", p.label(), err)
		}
		name := NormalizeName(p.Name)
		if other, twice := seen[name]; twice {
			return nil, fault.Hint(fmt.Errorf("the lock is ambiguous: %s and %s both apply here", other.label(), p.label()), "lock again for one platform and one Python")
		}
		seen[name] = p
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// selector picks wheels.
type selector struct {
	dir   string
	ranks map[string]int // by tag; lower is better
	best  string         // for messages: what this environment is

	fromSource func(name string) bool // what is built even where a wheel fits; nil: nothing is built at all
}

// maxSelectErrors bounds how many packages are complained about.
const maxSelectErrors = 10

func (s selector) all(chosen []lockedPackage) ([]Package, error) {
	var packages []Package
	var errs []error
	for _, locked := range chosen {
		p, err := s.one(locked)
		if err == nil {
			packages = append(packages, p)
		} else if errs = append(errs, err); len(errs) == maxSelectErrors {
			break
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return packages, nil
}

func (s selector) one(p lockedPackage) (Package, error) {
	source, err := s.source(p)
	if err != nil {
		return Package{}, err
	}
	switch {
	case source != nil:
		return Package{Name: p.Name, Version: p.Version, Source: source, DirectURL: source.DirectURL()}, nil
	case p.VCS != nil:
		return Package{}, onlySource(p, "a repository")
	case p.Directory != nil:
		return Package{}, fault.Hint(onlySource(p, "a directory"), "leave it out of the lock, as `uv export --no-emit-project` does, or build a wheel of it and name that in the recipe")
	case p.Archive != nil:
		return s.archive(p)
	default:
		return s.wheel(p)
	}
}

func onlySource(p lockedPackage, from string) error {
	return fault.Hint(fmt.Errorf("%s: it comes from %s, and only wheels are laid down", p.label(), from),
		"build a wheel of it and name that in the recipe: "+p.Name+" @ file:///path/to/the.whl")
}

// archive takes a package that was asked for by address.
func (s selector) archive(p lockedPackage) (Package, error) {
	if !strings.HasSuffix(p.Archive.fileName(), ".whl") {
		return Package{}, onlySource(p, "the source archive "+strconv.Quote(p.Archive.fileName()))
	}
	w, err := parseWheelName(p.Archive.fileName())
	if err != nil {
		return Package{}, fmt.Errorf("%s: %w", p.label(), err)
	}
	if _, ok := s.rank(w); !ok {
		return Package{}, s.noWheel(p, []lockArtifact{*p.Archive})
	}
	made, err := s.make(p, *p.Archive, w)
	if err != nil {
		return made, err
	}
	address := made.Wheel.URL
	if address == "" {
		address = (&url.URL{Scheme: "file", Path: made.Wheel.Path}).String()
	}
	made.DirectURL = &DirectURL{
		URL: withoutCredentials(address), Subdirectory: p.Archive.Subdirectory,
		ArchiveInfo: &ArchiveInfo{Hashes: map[string]string{"sha256": made.Wheel.Digest.Hex()}},
	}
	return made, nil
}

// withoutCredentials removes user and password, which must not enter an image (PEP 610, "Specification": url).
func withoutCredentials(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

// wheel takes the best of the package's wheels: by tag, then by build number, then as the lock lists them. A name that is
// no wheel's fits nowhere.
func (s selector) wheel(p lockedPackage) (Package, error) {
	type candidate struct {
		artifact lockArtifact
		name     wheelName
		rank     int
	}
	var fitting []candidate
	for _, a := range p.Wheels {
		name, err := parseWheelName(a.fileName())
		if err != nil {
			continue
		}
		if rank, ok := s.rank(name); ok {
			fitting = append(fitting, candidate{a, name, rank})
		}
	}
	if len(fitting) == 0 {
		return Package{}, s.noWheel(p, p.Wheels)
	}
	best := slices.MinFunc(fitting, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), b.name.build.compare(a.name.build))
	})
	return s.make(p, best.artifact, best.name)
}

func (s selector) make(p lockedPackage, a lockArtifact, name wheelName) (Package, error) {
	version := cmp.Or(p.Version, name.version)
	if NormalizeName(name.name) != NormalizeName(p.Name) || !sameVersion(version, name.version) {
		return Package{}, fmt.Errorf("%s: the wheel %s is of something else", p.label(), name.file)
	}
	ref, err := a.ref(s.dir)
	if err != nil {
		return Package{}, fmt.Errorf("%s: %w", p.label(), err)
	}
	return Package{Name: p.Name, Version: version, Wheel: ref}, nil
}

// rank returns the place of the wheel's best tag, and whether any fits.
func (s selector) rank(w wheelName) (int, bool) {
	best, found := 0, false
	for tag := range w.tags {
		if r, ok := s.ranks[tag]; ok && (!found || r < best) {
			best, found = r, true
		}
	}
	return best, found
}

// noWheel says what was looked for and what there is.
func (s selector) noWheel(p lockedPackage, there []lockArtifact) error {
	var have []string
	for _, a := range there {
		have = append(have, printable(strings.TrimSuffix(a.fileName(), ".whl")))
	}
	what := "only a source distribution"
	switch {
	case len(have) > 0 && p.Sdist != nil:
		what = abridge(have) + "; and a source distribution"
	case len(have) > 0:
		what = abridge(have)
	}
	hint := "lock again for this Python and platform, or ask for a version that has such a wheel"
	if len(have) == 0 {
		hint = "ask for a version that has a wheel, or build one and name it in the recipe: " + p.Name + " @ file:///path/to/the.whl"
	}
	return fault.Hint(fmt.Errorf("%s: no wheel for %s; the lock has: %s", p.label(), s.best, what), hint)
}

// bestTag names an environment by its best tag that says a libc: "cp311 manylinux_2_36_x86_64".
func bestTag(tags []string) string {
	for _, t := range tags {
		python, rest, _ := strings.Cut(t, "-")
		_, platform, _ := strings.Cut(rest, "-")
		if strings.Contains(platform, "linux_") && !strings.HasPrefix(platform, "linux_") {
			return python + " " + platform
		}
	}
	if len(tags) > 0 {
		return tags[0]
	}
	return "an unknown interpreter"
}

// printable makes a name out of a lock harmless to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// abridge lists the first few.
func abridge(list []string) string {
	const few = 6
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}

// wheelName is what the name of a wheel's file says (packaging.python.org, "Binary distribution format", file name
// convention).
type wheelName struct {
	file    string
	name    string
	version string
	build   buildTag
	tags    map[string]bool // every python-abi-platform
}

// buildTag decides between wheels that are otherwise alike: a number, then the text after it.
type buildTag struct {
	number number
	rest   string
}

func (a buildTag) compare(b buildTag) int {
	return cmp.Or(a.number.compare(b.number), strings.Compare(a.rest, b.rest))
}

// maxWheelTags bounds how many tags one file name may stand for: three dots in each of three places give 64.
const maxWheelTags = 4096

func parseWheelName(file string) (wheelName, error) {
	w := wheelName{file: file, tags: map[string]bool{}}
	parsed, err := parseFileName(file)
	if err != nil {
		return w, fmt.Errorf("%q: %w", file, err)
	}
	w.name, w.version = parsed.name, strings.ReplaceAll(parsed.version, "_", "-")
	if _, err := ParseVersion(w.version); err != nil || !validName(w.name) {
		return w, fmt.Errorf("%q is not the name of a wheel", file)
	}
	parts := strings.Split(strings.TrimSuffix(file, ".whl"), "-")
	if len(parts) == 6 {
		rest := strings.TrimLeft(parts[2], "0123456789")
		if len(rest) == len(parts[2]) {
			return w, fmt.Errorf("%q: the build tag %q does not start with a number", file, parts[2])
		}
		w.build = buildTag{parseNumber(strings.TrimSuffix(parts[2], rest)), rest}
	}
	return w, w.expand(parts[len(parts)-3:])
}

// expand multiplies compressed tag sets out (PEP 425).
func (w wheelName) expand(sets []string) error {
	pythons, abis, platforms := strings.Split(sets[0], "."), strings.Split(sets[1], "."), strings.Split(sets[2], ".")
	if len(pythons)*len(abis)*len(platforms) > maxWheelTags {
		return fmt.Errorf("%q stands for more than %d tags", w.file, maxWheelTags)
	}
	for _, python := range pythons {
		for _, abi := range abis {
			for _, platform := range platforms {
				w.tags[strings.ToLower(python+"-"+abi+"-"+platform)] = true
			}
		}
	}
	return nil
}
