package facts

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
)

// linkRoot is a file that is started or imported by itself.
type linkRoot struct {
	object  *Object
	role    string
	site    *moduleSite // nil for a program
	closure *elfx.Closure
	before  []*elfx.Closure // what is in memory when it is loaded
	global  []*elfx.Closure // those of them whose symbols it sees
	loaded  map[string]bool // the files of before
}

// programs returns those on PATH.
func (l *linker) programs() []*linkRoot {
	var roots []*linkRoot
	seen := map[string]bool{}
	start := l.started()
	add := func(name string) {
		real, err := l.facts.Root.Resolve(name)
		if err != nil {
			return
		}
		o := l.object(bare(real))
		if !o.IsProgram() || o.Arch != l.arch || seen[o.Path] {
			return
		}
		seen[o.Path] = true
		role := roleProgram
		if slices.Contains(start, o.Path) {
			role = RoleStart
		}
		roots = append(roots, &linkRoot{object: o, role: role})
	}
	for _, name := range start {
		add(rooted(name))
	}
	for _, dir := range l.pathDirs() {
		names, err := l.facts.Root.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			add(path.Join(dir, name))
		}
	}
	return roots
}

// started returns the program of the entrypoint or, without one, of the command, and the one that runs it when it is a script.
func (l *linker) started() []string {
	command := append(slices.Clone(l.facts.Config.Entrypoint), l.facts.Config.Cmd...)
	var found []string
	for len(command) > 0 && len(found) < maxScripts {
		real := l.lookPath(command[0])
		if real == "" || slices.Contains(found, bare(real)) {
			break
		}
		found = append(found, bare(real))
		command = l.scriptOf(real)
	}
	return found
}

const maxScripts = 4 // that run each other

func (l *linker) lookPath(name string) string {
	names := []string{name}
	if !strings.Contains(name, "/") {
		names = nil
		for _, dir := range l.pathDirs() {
			names = append(names, path.Join(dir, name))
		}
	}
	for _, n := range names {
		if real, err := l.facts.Root.Resolve(path.Join("/", l.facts.Config.WorkingDir, n)); err == nil && !path.IsAbs(n) {
			return real
		}
		if real, err := l.facts.Root.Resolve(n); err == nil && path.IsAbs(n) {
			return real
		}
	}
	return ""
}

// scriptOf returns the command in the first line of a script, env(1) left out.
func (l *linker) scriptOf(real string) []string {
	line, ok := strings.CutPrefix(l.beginning(real, 256), "#!")
	if !ok {
		return nil
	}
	line, _, _ = strings.Cut(line, "\n")
	command := strings.Fields(line)
	for len(command) > 0 && (path.Base(command[0]) == "env" || strings.HasPrefix(command[0], "-")) {
		command = command[1:]
	}
	return command
}

// beginning returns the first bytes of a file, what there is of them.
func (l *linker) beginning(real string, size int64) string {
	h, err := l.facts.Root.Open(real)
	if err != nil {
		return ""
	}
	defer h.Close()
	text, err := io.ReadAll(io.NewSectionReader(h, 0, min(size, h.Size())))
	if err != nil {
		return ""
	}
	return string(text)
}

// modules returns Python's extension modules, and all other libraries.
func (l *linker) modules(ctx context.Context) (modules []*linkRoot, rest []*Object, err error) {
	type candidate struct {
		object *Object
		site   *moduleSite
		is     bool
	}
	var candidates []*candidate
	for i := range l.facts.Objects {
		o := &l.facts.Objects[i]
		if o.Arch != l.arch || o.Kind != "shared" {
			continue
		}
		candidates = append(candidates, &candidate{object: o, site: l.siteFor(o)})
	}
	l.joinSites()
	err = each(ctx, candidates, func(c *candidate) error {
		name := path.Base(c.object.Path)
		c.is = c.site != nil && (l.isModule(c.object, c.site) ||
			usesTorch(c.object) && plainModule.MatchString(name) && !within(c.object.Path, c.site.dir+"/torch")) // for torch.ops.load_library
		return nil
	})
	for _, c := range candidates {
		if c.is {
			modules = append(modules, &linkRoot{object: c.object, role: RoleModule, site: c.site})
		} else {
			rest = append(rest, c.object)
		}
	}
	return modules, rest, err
}

func within(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// siteFor returns the directory of modules that a file is in, which learns of it; nil when it is in none.
func (l *linker) siteFor(o *Object) *moduleSite {
	dir := siteOf(o.Path, l.facts.Pythons)
	if dir == "" {
		return nil
	}
	s := l.sites[dir]
	if s == nil {
		s = l.findSite(dir)
		l.sites[dir] = s
	}
	s.learn(o)
	return s
}

// joinSites makes the directories of one interpreter known to each other.
func (l *linker) joinSites() {
	var all []*moduleSite
	for _, s := range l.sites {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *moduleSite) int { return strings.Compare(a.dir, b.dir) })
	for _, s := range all {
		for _, other := range all {
			if other != s && other.interpreter == s.interpreter && other.version == s.version {
				s.kin = append(s.kin, other)
			}
		}
	}
}

// interpreters adds the Pythons of the modules to the programs.
func (l *linker) interpreters(modules, programs []*linkRoot) []*linkRoot {
	by := map[string]*linkRoot{}
	for _, r := range programs {
		by[r.object.Path] = r
	}
	for _, m := range modules {
		o := l.object(m.site.interpreter)
		if o == nil || o.Arch != l.arch {
			continue
		}
		if r := by[o.Path]; r != nil {
			r.role = RoleStart
			continue
		}
		by[o.Path] = &linkRoot{object: o, role: RoleStart}
		programs = append(programs, by[o.Path])
	}
	return programs
}

// aside are directories of libraries that no program of the image loads.
var aside = lazyregexp.New(`(?:^|/)(?:stubs|sysroot|debug|\.debug|glibc-hwcaps|compat|testsuite|tests?)/`)

// IsAside is whether a library is in a directory from which no program of the image loads any.
func IsAside(name string) bool { return aside.MatchString(name) }

// plugins returns the libraries that nothing has loaded so far, those of the distribution left out: its package manager
// has seen to them.
func (l *linker) plugins(rest []*Object, roots []*linkRoot) []*linkRoot {
	used := map[string]bool{}
	for _, r := range roots {
		for _, c := range append(slices.Clone(r.before), r.closure) {
			if c == nil {
				continue
			}
			for _, o := range c.Objects {
				used[bare(o.Real)] = true
			}
		}
	}
	var plugins []*linkRoot
	for _, o := range rest {
		s := l.sites[siteOf(o.Path, l.facts.Pythons)]
		own := s != nil || within(o.Path, "usr/local") || within(o.Path, "opt")
		if own && !used[o.Path] && !IsAside(o.Path) && o.Dynamic && len(o.Needed) > 0 {
			plugins = append(plugins, &linkRoot{object: o, role: RoleLibrary, site: s})
		}
	}
	return plugins
}
