package facts

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// Environment is what one Python of an image imports from.
type Environment struct {
	Prefix  string // without a slash in front
	Version string // "3.11", "" when nothing tells
	full    string // "3.11.9", "" when nothing tells
	venv    bool
	runs    bool      // its interpreter is in the image, as far as it has to be
	Whole   bool      // everything on the path is in the image
	Own     []*Python // its own site directories
	Path    []*Python // all that it imports from, first first: PYTHONPATH, its own, the user's, the base's
	pth     []*Python // those of path that a .pth file adds
}

// Label names the environment in a message.
func (e *Environment) Label() string {
	switch {
	case e.venv:
		return "the virtual environment /" + e.Prefix
	case e.Version == "":
		return "PYTHONPATH"
	}
	return "Python " + e.Version + " in /" + e.Prefix
}

// Find returns the distribution that an import would find, by normalised name. There are several when a directory has the
// metadata of more than one, the rest of a bad update.
func (e *Environment) Find(name string) []*Distribution {
	for _, p := range e.Path {
		if found := p.Find(name); len(found) > 0 {
			return found
		}
	}
	return nil
}

// Find returns the distributions of a name, normalised, that the directory has.
func (p *Python) Find(name string) []*Distribution {
	byName := func(d Distribution, name string) int { return cmp.Compare(d.Name, name) }
	i, ok := slices.BinarySearchFunc(p.Distributions, name, byName)
	if !ok {
		return nil
	}
	var found []*Distribution
	for ; i < len(p.Distributions) && p.Distributions[i].Name == name; i++ {
		found = append(found, &p.Distributions[i])
	}
	return found
}

// SiteOf returns the directory of those it imports from that has a distribution.
func (e *Environment) SiteOf(d *Distribution) *Python {
	for _, p := range e.Path {
		if path.Dir(d.Dir) == p.Dir {
			return p
		}
	}
	return nil
}

// Visible calls visit for every distribution that is not hidden by another one in front of it.
func (e *Environment) Visible(visit func(p *Python, d *Distribution)) {
	seen := map[string]int{} // the index of the directory that has it
	for i, p := range e.Path {
		for j := range p.Distributions {
			d := &p.Distributions[j]
			if at, ok := seen[d.Name]; ok && at != i {
				continue
			}
			seen[d.Name] = i
			visit(p, d)
		}
	}
}

// Markers returns the environments in which markers have to be evaluated: several when the version is not known to the
// last digit. What is not the same in all of them is not known.
func (e *Environment) Markers(platform string) []python.MarkerEnvironment {
	var versions []string
	switch {
	case e.full != "":
		versions = []string{e.full}
	case e.Version != "":
		versions = []string{e.Version + ".0", e.Version + ".99"}
	default:
		for minor := 8; minor < 16; minor++ {
			versions = append(versions, "3."+strconv.Itoa(minor)+".0")
		}
	}
	var list []python.MarkerEnvironment
	for _, v := range versions {
		i := python.Interpreter{Version: v, Implementation: "cpython", Platform: MachineOf(platform)}
		list = append(list, python.EnvironmentOf(i))
	}
	return list
}

// MachineOf is uname's name for the processor of a platform such as "linux/arm64".
func MachineOf(platform string) string {
	switch _, arch, _ := strings.Cut(platform, "/"); {
	case strings.HasPrefix(arch, "arm64"):
		return "aarch64"
	case arch == "amd64" || arch == "":
		return "x86_64"
	default:
		return arch
	}
}

// Environments lists the Pythons of the image with what each imports from, bases before the virtual environments made from
// them. Those without an interpreter are left out when there is any that has one.
func (f *Facts) Environments() []*Environment {
	b := envBuilder{f: f, systems: map[[2]string]*Environment{}, byDir: map[string]*Python{}}
	for i := range f.Pythons {
		b.byDir[f.Pythons[i].Dir] = &f.Pythons[i]
	}
	for _, dir := range f.PythonPath() {
		if p := b.byDir[dir]; p != nil && !slices.Contains(b.first, p) {
			b.first = append(b.first, p)
		}
	}
	b.group()
	all := append(b.systemEnvs(), b.venvEnvs()...)
	runs := func(e *Environment) bool { return e.runs }
	if slices.ContainsFunc(all, runs) {
		all = slices.DeleteFunc(all, func(e *Environment) bool { return !e.runs })
	}
	if len(all) == 0 && len(b.first) > 0 {
		all = []*Environment{{Path: b.first, Whole: true}}
	}
	return all
}

type envBuilder struct {
	f       *Facts
	first   []*Python // on PYTHONPATH
	user    []*Python // below ~/.local
	systems map[[2]string]*Environment
	venvs   []*Environment
	byDir   map[string]*Python
}

// group puts site directories together that belong to one interpreter.
func (b *envBuilder) group() {
	home := b.home()
	venvs := map[string]*Environment{}
	for i := range b.f.Pythons {
		p := &b.f.Pythons[i]
		prefix := sitePrefix(p.Dir)
		switch {
		case p.Version == "" || !sitePath.MatchString(p.Dir):
		case !p.System:
			if venvs[prefix] == nil {
				v := readPyvenv(b.f.Root, "/"+path.Join(prefix, "pyvenv.cfg"))
				venvs[prefix] = &Environment{
					Prefix: prefix, Version: p.Version, full: fullVersion(p.Version, v.version),
					venv: true, runs: true, Whole: true,
				}
				b.venvs = append(b.venvs, venvs[prefix])
			}
			venvs[prefix].Own = append(venvs[prefix].Own, p)
		case path.Base(prefix) == ".local":
			if path.Dir(prefix) == home {
				b.user = append(b.user, p)
			}
		default:
			e := b.system(prefix, p.Version)
			e.Own = append(e.Own, p)
		}
	}
}

// home returns the home directory of the image's user, "" when that is not root and nothing tells.
func (b *envBuilder) home() string {
	if no, _ := b.f.Env("PYTHONNOUSERSITE"); no != "" {
		return ""
	}
	if home, ok := b.f.Env("HOME"); ok {
		return strings.TrimPrefix(path.Clean(home), "/")
	}
	switch user, _, _ := strings.Cut(b.f.Config.User, ":"); user {
	case "", "0", "root":
		return "root"
	}
	return ""
}

// system returns the environment of the interpreter that uses prefix. What is below /usr/local belongs to the distribution's
// Python in /usr unless there is one in /usr/local itself.
func (b *envBuilder) system(prefix, version string) *Environment {
	runs := b.hasProgram(prefix, version)
	if !runs && prefix == "usr/local" && b.hasProgram("usr", version) {
		prefix, runs = "usr", true
	}
	key := [2]string{prefix, version}
	if b.systems[key] == nil {
		b.systems[key] = &Environment{Prefix: prefix, Version: version, full: b.fullVersion(prefix, version), runs: runs, Whole: true}
	}
	return b.systems[key]
}

func (b *envBuilder) hasProgram(prefix, version string) bool {
	_, err := b.f.Root.Stat("/" + path.Join(prefix, "bin/python"+version))
	return err == nil
}

func (b *envBuilder) systemEnvs() []*Environment {
	keys := slices.SortedFunc(maps.Keys(b.systems), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	var list []*Environment
	for _, key := range keys {
		e := b.systems[key]
		slices.SortStableFunc(e.Own, compareSites)
		e.Path = joinPaths(b.first, b.userOf(e.Version), b.withPth(e, e.Own))
		list = append(list, e)
	}
	return list
}

func (b *envBuilder) venvEnvs() []*Environment {
	for _, e := range b.venvs {
		slices.SortStableFunc(e.Own, compareSites)
		parts := [][]*Python{b.first, b.withPth(e, e.Own)}
		if e.Own[0].SystemSite {
			base := e.Own[0].Base
			// The list leaves out a base without packages; then nothing is missing if its interpreter is there.
			e.Whole = b.hasProgram(base, e.Version)
			parts = append(parts, b.userOf(e.Version), b.withPth(e, b.system(base, e.Version).Own))
		}
		e.Path = joinPaths(parts...)
	}
	return b.venvs
}

// joinPaths makes one path of several, without what was named before.
func joinPaths(parts ...[]*Python) []*Python {
	var all []*Python
	for _, p := range slices.Concat(parts...) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

func (b *envBuilder) userOf(version string) []*Python {
	return slices.DeleteFunc(slices.Clone(b.user), func(p *Python) bool { return p.Version != version })
}

// withPth adds the site directories that .pth files in others name.
func (b *envBuilder) withPth(e *Environment, dirs []*Python) []*Python {
	all := slices.Clone(dirs)
	for _, p := range dirs {
		names, err := b.f.Root.ReadDir("/" + p.Dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			if path.Ext(name) != ".pth" {
				continue
			}
			for line := range strings.Lines(string(ReadText(b.f.Root, path.Join(p.Dir, name)))) {
				if added := b.pthLine(p.Dir, strings.TrimSpace(line)); added != nil {
					all = append(all, added)
					e.pth = append(e.pth, added)
				}
			}
		}
	}
	return all
}

// pthLine returns the site directory that a line of a .pth file names, nil for any other line.
func (b *envBuilder) pthLine(dir, line string) *Python {
	if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "import ") {
		return nil
	}
	if !path.IsAbs(line) {
		line = path.Join("/", dir, line)
	}
	real, err := b.f.Root.Resolve(line)
	if err != nil {
		return nil
	}
	return b.byDir[strings.TrimPrefix(real, "/")]
}

// compareSites puts the site directories of one interpreter in the order in which it imports from them (module site, and
// Debian's patch of it).
func compareSites(a, b *Python) int {
	rank := func(p *Python) int {
		switch {
		case strings.HasPrefix(p.Dir, "usr/local/lib64"):
			return 0
		case strings.HasPrefix(p.Dir, "usr/local"):
			return 1
		case strings.Contains(p.Dir, "lib/python3/"):
			return 2
		case strings.Contains(p.Dir, "lib64/python"):
			return 3
		}
		return 4
	}
	return cmp.Compare(rank(a), rank(b))
}

var (
	condaPython = lazyregexp.New(`^python-(3\.[0-9]+\.[0-9]+)-.*\.json$`)
	patchLevel  = lazyregexp.New(`(?m)^#define\s+PY_VERSION\s+"(3\.[0-9]+\.[0-9]+)`)
)

// fullVersion finds the version to the last digit where an installation leaves it: conda's records, the C header, the
// variable of the official container images.
func (b *envBuilder) fullVersion(prefix, version string) string {
	names, err := b.f.Root.ReadDir("/" + path.Join(prefix, "conda-meta"))
	if err == nil {
		for _, name := range names {
			if m := condaPython.FindStringSubmatch(name); m != nil {
				return fullVersion(version, m[1])
			}
		}
	}
	header := path.Join(prefix, "include/python"+version, "patchlevel.h")
	if m := patchLevel.FindSubmatch(ReadText(b.f.Root, header)); m != nil {
		return fullVersion(version, string(m[1]))
	}
	if prefix == "usr/local" {
		v, _ := b.f.Env("PYTHON_VERSION")
		return fullVersion(version, v)
	}
	return ""
}

// fullVersion returns full, "3.11.9", if it is one of version, "3.11". Virtualenv writes "3.11.9.final.0".
func fullVersion(version, full string) string {
	parts := strings.Split(full, ".")
	if len(parts) < 3 || parts[0]+"."+parts[1] != version {
		return ""
	}
	return strings.Join(parts[:3], ".")
}
