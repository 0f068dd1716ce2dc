package elfx

import (
	"debug/elf"
	"fmt"
	"path"
	"slices"
	"strings"
)

// find looks for the library of a link by the rules of the C library.
func (s *search) find(link *Link) error {
	if s.libc == Musl {
		return s.findMusl(link)
	}
	if o, ok := s.names[link.Name]; ok {
		link.To, link.Rule = o, Rule{Kind: Loaded}
		return nil
	}
	if strings.ContainsRune(link.Name, '/') || strings.ContainsRune(link.Name, '$') {
		name, ok := s.expand(link.Name, link.By)
		if !ok || !path.IsAbs(name) {
			return nil // relative to wherever the program is started
		}
		if o, ok := s.names[name]; ok {
			link.To, link.Rule = o, Rule{Kind: Loaded}
			return nil
		}
		_, err := s.try(link, name, Rule{Kind: Path})
		return err
	}
	groups := append(s.rpaths(link.By), s.env(), s.own(link.By).runpath, s.config(link.By), s.builtin(link.By))
	return s.findIn(link, groups...)
}

// place is a directory to search.
type place struct {
	dir    string
	rule   Rule
	cached bool // as ldconfig sees it: only names of libraries
}

func (s *search) findIn(link *Link, groups ...[]place) error {
	for _, places := range groups {
		for _, p := range places {
			if p.cached && !isLibraryName(link.Name) {
				continue
			}
			if s.tries++; s.tries > maxTries {
				return fmt.Errorf("%s: its libraries may be in more than %d places", s.root.Path, maxTries)
			}
			if found, err := s.try(link, join(p.dir, link.Name), p.rule); found || err != nil {
				return err
			}
		}
	}
	return nil
}

// places returns the directory with its subdirectories for better processors before it, as far as they are there.
func (s *search) places(dir string, rule Rule) []place {
	var places []place
	for _, sub := range s.dirs.hwcaps {
		places = s.appendPlace(places, place{dir: join(dir, sub), rule: rule})
	}
	return s.appendPlace(places, place{dir: dir, rule: rule})
}

func (s *search) appendPlace(places []place, p place) []place {
	there, known := s.there[p.dir]
	if !known {
		there = s.exists(p.dir)
		s.there[p.dir] = there
	}
	if there {
		places = append(places, p)
	}
	return places
}

// join does not clean: what ".." means is decided by the file system.
func join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// origin is the directory of a file, not cleaned either.
func origin(name string) string {
	if i := strings.LastIndexByte(name, '/'); i > 0 {
		return name[:i]
	}
	return "/"
}

// isLibraryName says whether ldconfig puts a file of that name into its cache.
func isLibraryName(name string) bool {
	return (strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "ld-")) && strings.Contains(name, ".so")
}

// rpaths are those of the object, of the objects that led to it and of the program, unless the object has a RUNPATH. One
// with a RUNPATH has no RPATH to give to others (dl-load.c, _dl_map_object).
func (s *search) rpaths(by *Object) [][]place {
	if by.File.hasRunpath {
		return nil
	}
	var groups [][]place
	passed := false
	for o := by; o != nil; o = o.By {
		groups = append(groups, s.own(o).rpath)
		passed = passed || o == s.main
	}
	if !passed {
		groups = append(groups, s.own(s.main).rpath)
	}
	return groups
}

// own are the places that an object itself names.
type own struct{ rpath, runpath []place }

func (s *search) own(o *Object) own {
	if known, ok := s.owns[o]; ok {
		return known
	}
	separators := ":"
	var made own
	if s.libc == Musl {
		separators += "\n"
	}
	switch f := o.File; {
	case s.libc == Musl && !muslExpands(f.Rpath+f.Runpath):
	case f.hasRunpath:
		made.runpath = s.list(f.Runpath, separators, o, Rule{Kind: FromRunpath, Of: o})
	default:
		made.rpath = s.list(f.Rpath, separators, o, Rule{Kind: FromRpath, Of: o})
	}
	s.owns[o] = made
	return made
}

// muslExpands says whether musl can make sense of a search path: it knows no name but ORIGIN, and ignores the whole path
// when there is another one.
func muslExpands(text string) bool {
	return !strings.ContainsRune(strings.NewReplacer("${ORIGIN}", "", "$ORIGIN", "").Replace(text), '$')
}

// env is LD_LIBRARY_PATH.
func (s *search) env() []place {
	if s.fromEnv == nil {
		s.fromEnv = append([]place{}, s.list(s.LibraryPath, ":;", s.main, Rule{Kind: FromEnv})...)
	}
	return s.fromEnv
}

// maxSearchDirs is how many directories of one search path are looked at.
const maxSearchDirs = 4096

// list splits a search path. Relative directories are left out: they depend on where the program is started.
func (s *search) list(text, separators string, o *Object, rule Rule) []place {
	var places []place
	dirs := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(separators, r) })
	for _, dir := range dirs[:min(len(dirs), maxSearchDirs)] {
		dir, ok := s.expand(dir, o)
		if ok && path.IsAbs(dir) {
			rule.Dir = dir
			places = append(places, s.places(trimSlashes(dir), rule)...)
		}
	}
	return places
}

func trimSlashes(dir string) string {
	if trimmed := strings.TrimRight(dir, "/"); trimmed != "" {
		return trimmed
	}
	return "/"
}

// config stands for ld.so.cache, as ldconfig would write it now: it prefers the better processor's libraries over the order
// of the directories. A file that wants no default libraries still gets those of the other directories.
func (s *search) config(by *Object) []place {
	bare := by.File.Flags1&elf.DF_1_NODEFLIB != 0
	if !bare && s.fromConfig != nil {
		return s.fromConfig
	}
	dirs := unique(slices.Concat(s.configDirs(), s.dirs.dirs))
	places := []place{}
	for _, sub := range append(slices.Clone(s.dirs.hwcaps), "") {
		for _, dir := range dirs {
			rule := Rule{Kind: FromConfig, Dir: dir}
			if slices.Contains(s.dirs.dirs, dir) {
				rule.Kind = FromDefault
			}
			if !bare || rule.Kind == FromConfig {
				places = s.appendPlace(places, place{dir: trimSlashes(join(dir, sub)), rule: rule, cached: true})
			}
		}
	}
	if !bare {
		s.fromConfig = places
	}
	return places
}

// builtin are the directories that the loader searches last.
func (s *search) builtin(by *Object) []place {
	if by.File.Flags1&elf.DF_1_NODEFLIB != 0 {
		return nil
	}
	if s.fromBuiltin == nil {
		s.fromBuiltin = []place{}
		for _, dir := range s.dirs.dirs {
			s.fromBuiltin = append(s.fromBuiltin, s.places(dir, Rule{Kind: FromDefault, Dir: dir})...)
		}
	}
	return s.fromBuiltin
}

// expand replaces $ORIGIN, $LIB and $PLATFORM, with or without braces. It reports false for a path that is too long.
func (s *search) expand(text string, o *Object) (string, bool) {
	if strings.ContainsRune(text, '$') && len(text) <= maxPath {
		var pairs []string
		for name, value := range map[string]string{"ORIGIN": origin(o.Path), "LIB": s.dirs.lib, "PLATFORM": s.dirs.platform} {
			pairs = append(pairs, "${"+name+"}", value, "$"+name, value)
		}
		text = strings.NewReplacer(pairs...).Replace(text)
	}
	return text, len(text) <= maxPath
}

// findMusl follows load_library in ldso/dynlink.c. RPATH and RUNPATH are the same there, both are inherited, and the
// environment comes before them.
func (s *search) findMusl(link *Link) error {
	if isMuslItself(link.Name) && s.closure.Interpreter != nil {
		link.To, link.Rule = s.closure.Interpreter, Rule{Kind: IsInterpreter}
		return nil
	}
	if strings.ContainsRune(link.Name, '/') {
		if !path.IsAbs(link.Name) {
			return nil
		}
		_, err := s.try(link, link.Name, Rule{Kind: Path})
		return err
	}
	if o, ok := s.names[link.Name]; ok && (o == s.closure.Interpreter || path.Base(o.Path) == link.Name) {
		link.To, link.Rule = o, Rule{Kind: Loaded}
		return nil
	}
	groups := [][]place{s.env()}
	for o := link.By; o != nil; o = o.By {
		groups = append(groups, s.own(o).rpath, s.own(o).runpath)
	}
	return s.findIn(link, append(groups, s.builtin(link.By))...)
}
