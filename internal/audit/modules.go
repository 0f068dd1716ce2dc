package audit

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/units"
)

// maxSeenFiles is how many files a finding of this file shows as evidence.
const maxSeenFiles = 5

// extensionName is the file name of a compiled module that says what it is for (PEP 3149):
// name.cpython-311-x86_64-linux-gnu.so.
var extensionName = lazyregexp.New(`^([^.]+)\.(cpython|pypy)-?(3)([0-9]{1,2})([a-z]*)(?:-([a-z0-9_]+)-([a-z0-9-]+))?\.so$`)

// importers says which versions of Python import from each site directory.
func importers(envs []*facts.Environment) map[string][]string {
	versions := map[string][]string{}
	for _, e := range envs {
		for _, p := range e.Path {
			if e.Version != "" && !slices.Contains(versions[p.Dir], e.Version) {
				versions[p.Dir] = append(versions[p.Dir], e.Version)
			}
		}
	}
	return versions
}

// siteContaining returns the directory of sites that a file is in.
func siteContaining(sites []string, name string) string {
	for _, dir := range sites {
		if strings.HasPrefix(name, dir) && len(name) > len(dir) && name[len(dir)] == '/' {
			return dir
		}
	}
	return ""
}

// topLevel returns the name that a module's file, or a directory above it, has in its site directory.
func topLevel(site, name string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, site+"/"), "/")
	module, _, _ := strings.Cut(first, ".")
	return module
}

// foreignPackage is a package with compiled modules that cannot be imported.
type foreignPackage struct {
	site    string
	name    string
	foreign []string // files
	good    int      // compiled modules that can be
}

// foreignModules is the rule python-abi.
func foreignModules(s *Subject, report func(Finding)) error {
	envs := s.Facts.Environments()
	m := newModuleScan(s.Facts, envs)
	m.scan()
	foreign := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(m.packages)) {
		p := m.packages[key]
		p.foreign = slices.DeleteFunc(p.foreign, m.importable)
		if len(p.foreign) == 0 {
			continue
		}
		for _, name := range p.foreign {
			foreign[name] = true
		}
		report(m.finding(p))
	}
	for _, e := range envs {
		m.foreignWheels(e, foreign, report)
	}
	return s.Context.Err()
}

// moduleScan looks at the compiled modules of an image.
type moduleScan struct {
	f        *facts.Facts
	sites    []string            // the longest first
	versions map[string][]string // by site directory
	machine  string
	libc     string          // "gnu", "musl", "" when nothing tells
	beside   map[string]bool // directory and name of each module that has a foreign build: is there another one?
	inside   map[string]bool // package and name of modules with a build that can be imported
	packages map[string]*foreignPackage
	wheels   map[string]bool // metadata directories looked at
}

func newModuleScan(f *facts.Facts, envs []*facts.Environment) *moduleScan {
	m := &moduleScan{
		f: f, versions: importers(envs), machine: facts.MachineOf(f.Platform), libc: libcOf(f.Root),
		beside: map[string]bool{}, inside: map[string]bool{}, packages: map[string]*foreignPackage{}, wheels: map[string]bool{},
	}
	m.sites = slices.SortedFunc(maps.Keys(m.versions), func(a, b string) int { return len(b) - len(a) })
	return m
}

// libcOf says which C library an image has by its dynamic loader, "" when it has several or none.
func libcOf(root facts.Root) string {
	there := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			_, err := root.Stat(name)
			return err == nil
		})
	}
	gnu := there("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
	musl := there("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
	switch {
	case gnu && !musl:
		return "gnu"
	case musl && !gnu:
		return "musl"
	}
	return ""
}

// scan finds the foreign modules, and then what there is beside them.
func (m *moduleScan) scan() {
	for _, n := range m.f.Paths {
		if path.Ext(n.Path) != ".so" || n.Type == layer.Dir {
			continue
		}
		site := siteContaining(m.sites, n.Path)
		parts := extensionName.FindStringSubmatch(path.Base(n.Path))
		if site == "" || parts == nil {
			continue
		}
		name := topLevel(site, n.Path)
		key := site + "\n" + name
		if m.packages[key] == nil {
			m.packages[key] = &foreignPackage{site: site, name: name}
		}
		switch {
		case m.fits(site, parts):
			m.packages[key].good++
			m.inside[key+"\n"+parts[1]] = true
		case !strings.HasSuffix(parts[1], "__mypyc"): // of a module that is there as source too
			m.packages[key].foreign = append(m.packages[key].foreign, n.Path)
			m.beside[path.Dir(n.Path)+"/"+parts[1]] = false
		}
	}
	for _, n := range m.f.Paths {
		dir, name := path.Split(n.Path)
		if pkg := path.Dir(n.Path); name == "__init__.py" {
			if _, asked := m.beside[pkg]; asked {
				m.beside[pkg] = true
			}
			continue
		}
		module, rest, _ := strings.Cut(name, ".")
		if _, asked := m.beside[dir+module]; !asked {
			continue
		}
		parts := extensionName.FindStringSubmatch(name)
		if parts == nil && (rest == "py" || rest == "so" || rest == "abi3.so") ||
			parts != nil && m.fits(siteContaining(m.sites, n.Path), parts) {
			m.beside[dir+module] = true
		}
	}
}

// fits says whether a Python that imports from a site directory takes a file of this name.
func (m *moduleScan) fits(site string, parts []string) bool {
	implementation, version, flags, machine, system := parts[2], parts[3]+"."+parts[4], parts[5], parts[6], parts[7]
	if implementation != "cpython" || !slices.Contains(m.versions[site], version) {
		return false
	}
	if strings.Contains(flags, "d") || strings.Contains(flags, "t") != strings.Contains(site, "t/site-packages") {
		return false
	}
	if machine == "" {
		return true
	}
	if machine != m.machine || !strings.HasPrefix(system, "linux") {
		return false
	}
	return m.libc != "gnu" || system != "linux-musl" // Python for musl has used both names
}

// importable says whether there is another build of a module.
func (m *moduleScan) importable(name string) bool {
	module, _, _ := strings.Cut(path.Base(name), ".")
	site := siteContaining(m.sites, name)
	key := site + "\n" + topLevel(site, name)
	return m.beside[path.Dir(name)+"/"+module] || m.inside[key+"\n"+module]
}

func (m *moduleScan) finding(p *foreignPackage) Finding {
	versions := strings.Join(m.versions[p.site], " and ")
	f := Finding{Path: p.foreign[0], Seen: someFiles(rootedAll(p.foreign))}
	what := moduleTarget(p.foreign[0])
	if p.good == 0 {
		f.Message = fmt.Sprintf("%s of %s for %s, and Python %s on %s (%s) cannot import %s",
			units.Number(len(p.foreign), "compiled module"), p.name, what, versions, m.machine, m.libcName(), itThem(len(p.foreign)))
	} else {
		f.Severity = Warning
		f.Message = fmt.Sprintf("%s of %s for %s only, beside %d that Python %s can import",
			units.Number(len(p.foreign), "compiled module"), p.name, what, p.good, versions)
	}
	if strings.HasSuffix(p.site, "lib/python3/dist-packages") {
		f.Severity = Warning
		f.Why = "The Linux distribution's packages are compiled for its own Python 3; the link /usr/bin/python3 leads to another one, which cannot import them."
		f.Remedy = "leave /usr/bin/python3 as the Linux distribution has it, and call the other Python by its own name or from a virtual environment"
	}
	return f
}

func (m *moduleScan) libcName() string {
	switch m.libc {
	case "gnu":
		return "glibc"
	case "":
		return "Linux"
	}
	return m.libc
}

func itThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// moduleTarget says in words what a module's file name says that it is for.
func moduleTarget(name string) string {
	parts := extensionName.FindStringSubmatch(path.Base(name))
	implementation := map[string]string{"cpython": "CPython", "pypy": "PyPy"}[parts[2]]
	text := implementation + " " + parts[3] + "." + parts[4] + parts[5]
	if parts[6] != "" {
		text += " on " + parts[6] + "-" + parts[7]
	}
	return text
}

// someFiles returns the first few files, and says how many more there are.
func someFiles(files []string) []string {
	if len(files) <= maxSeenFiles {
		return files
	}
	return append(slices.Clone(files[:maxSeenFiles]), fmt.Sprintf("and %d more", len(files)-maxSeenFiles))
}

// foreignWheels reports distributions whose wheels are for another Python or machine, as far as no module of theirs has been
// reported.
func (m *moduleScan) foreignWheels(e *facts.Environment, reported map[string]bool, report func(Finding)) {
	i := python.Interpreter{Version: e.Version + ".0", Implementation: "cpython", Platform: m.machine, Glibc: "2.99"}
	if m.libc == "musl" {
		i.Glibc, i.Musl = "", "1.99"
	}
	tags := map[string]bool{}
	for _, tag := range i.Tags() {
		tags[tag] = true
	}
	threaded := func(p *facts.Python) bool { return strings.Contains(p.Dir, "t/site-packages") } // has tags of its own
	if e.Version == "" || len(tags) == 0 || slices.ContainsFunc(e.Own, threaded) {
		return
	}
	e.Visible(func(p *facts.Python, d *facts.Distribution) {
		taken := func(tag string) bool { return tags[tag] }
		if len(d.Tags) == 0 || m.wheels[d.Dir] || slices.ContainsFunc(d.Tags, taken) || len(m.versions[p.Dir]) > 1 {
			return
		}
		m.wheels[d.Dir] = true
		compiled := m.compiled(p.Dir, d)
		if slices.ContainsFunc(compiled, func(name string) bool { return reported[name] }) {
			return
		}
		f := Finding{
			Severity: Warning, Path: d.Dir,
			Message: fmt.Sprintf("%s %s was installed from a wheel for %s, which Python %s on %s (%s) does not take",
				d.Name, d.Version, d.Tags[0], e.Version, m.machine, m.libcName()),
			Seen: append([]string{rooted(d.Dir) + "/WHEEL has Tag: " + d.Tags[0]}, someFiles(rootedAll(compiled))...),
			Why:  "The package was made for another Python, C library or processor. Its compiled files may not load.",
		}
		if len(compiled) == 0 {
			f.Severity = Note
			f.Why = "The package was made for another Python. It has no compiled files, so it may well work."
		}
		report(f)
	})
}

// compiled returns the shared libraries that a distribution's RECORD lists.
func (m *moduleScan) compiled(site string, d *facts.Distribution) []string {
	var files []string
	for line := range strings.Lines(string(facts.ReadText(m.f.Root, d.Dir+"/RECORD"))) {
		name, _, _ := strings.Cut(line, ",")
		if path.Ext(name) == ".so" {
			files = append(files, path.Join(site, name))
		}
	}
	return files
}

// Thresholds below which missing byte code is not worth a word.
const (
	fewModules   = 100
	missingShare = 2 // one in so many
)

// missingBytecode is the rule python-no-bytecode. It compares counts: a file for each module is not looked for. Tests count for nothing:
// [python.IsTest] says why.
func missingBytecode(s *Subject, report func(Finding)) error {
	if prefix, _ := s.Env("PYTHONPYCACHEPREFIX"); prefix != "" {
		return nil // byte code is elsewhere
	}
	versions := importers(s.Facts.Environments())
	sites := slices.SortedFunc(maps.Keys(versions), func(a, b string) int { return len(b) - len(a) })
	type counts struct{ source, compiled, other int }
	found := map[string]*counts{}
	for _, dir := range sites {
		found[dir] = &counts{}
	}
	for _, n := range s.Paths {
		ext := path.Ext(n.Path)
		if ext != ".py" && ext != ".pyc" || n.Type == layer.Dir {
			continue
		}
		site := siteContaining(sites, n.Path)
		if site == "" || python.IsTest(strings.TrimPrefix(n.Path, site+"/")) {
			continue
		}
		switch c := found[site]; {
		case ext == ".py":
			c.source++
		case strings.Contains(n.Path, ".opt-") || path.Base(path.Dir(n.Path)) != "__pycache__":
		case hasCacheTag(n.Path, versions[site]):
			c.compiled++
		default:
			c.other++
		}
	}
	slices.Sort(sites)
	for _, dir := range sites {
		c := found[dir]
		missing := c.source - c.compiled
		if missing < fewModules || missing*missingShare < c.source {
			continue
		}
		f := Finding{
			Path: dir,
			Message: fmt.Sprintf("%d of %d Python modules in /%s have no byte code for Python %s",
				missing, c.source, dir, strings.Join(versions[dir], " or ")),
			Seen: []string{fmt.Sprintf("%s: %d .py, %d .pyc", rooted(dir), c.source, c.compiled)},
		}
		if c.other > 0 {
			f.Seen = append(f.Seen, fmt.Sprintf("%d .pyc for other versions of Python", c.other))
		}
		report(f)
	}
	return s.Context.Err()
}

// hasCacheTag says whether byte code is for one of the versions.
func hasCacheTag(name string, versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool {
		return strings.HasSuffix(name, "."+python.Interpreter{Implementation: "cpython", Version: v}.CacheTag()+".pyc")
	})
}
