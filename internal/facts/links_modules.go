package facts

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
)

// moduleSite is a directory of Python modules, as far as linking goes.
type moduleSite struct {
	dir         string // without a slash in front
	version     string // of Python, "3.11"; "" when the path does not say
	interpreter string // real name without a slash in front, "" when the image has none
	libraries   map[string]string
	kin         []*moduleSite // others of the same interpreter

	torchOnce  sync.Once
	torchError error
	torch      *elfx.Closure // of torch/_C, nil when there is none
	globals    *elfx.Closure // that torch loads for all to see
	torchDir   string        // of its libraries, without a slash in front
}

// IsTagged is whether a library has the name of an extension module of one Python version or of all.
func IsTagged(name string) bool { return taggedModule.MatchString(path.Base(name)) }

// siteOf returns the directory of Python modules that a file is in: one that is known, or else by its name.
func siteOf(name string, known []Python) string {
	best := ""
	for _, p := range known {
		if strings.HasPrefix(name, p.Dir+"/") && len(p.Dir) > len(best) {
			best = p.Dir
		}
	}
	if best != "" {
		return best
	}
	parts := strings.Split(name, "/")
	for i, part := range parts[:len(parts)-1] {
		switch part {
		case "site-packages", "dist-packages", "lib-dynload":
			return strings.Join(parts[:i+1], "/")
		}
	}
	return ""
}

var pythonDir = lazyregexp.New(`^(.*?)/?lib(?:64)?/python(3(?:\.\d+)?)t?(?:/|$)`)

// findSite works out whose the directory is: lib/python3.11 stands beside bin/python3.11, but for Debian's /usr/local.
func (l *linker) findSite(dir string) *moduleSite {
	s := &moduleSite{dir: dir, libraries: map[string]string{}}
	prefix := ""
	if m := pythonDir.FindStringSubmatch(dir); m != nil {
		prefix, s.version = m[1], m[2]
	}
	for _, p := range l.facts.Pythons {
		if p.Dir == dir && p.Version != "" {
			s.version = p.Version
		}
	}
	names := []string{"python3", "python"}
	if s.version != "" {
		names = slices.Insert(names, 0, "python"+s.version)
	}
	var candidates []string
	for _, bin := range append([]string{path.Join("/", prefix, "bin")}, l.pathDirs()...) {
		for _, name := range names {
			candidates = append(candidates, path.Join(bin, name))
		}
	}
	for _, c := range candidates {
		if real, err := l.facts.Root.Resolve(c); err == nil && l.object(bare(real)).IsProgram() {
			s.interpreter = bare(real)
			break
		}
	}
	if s.version == "3" || s.version == "" {
		s.version = ""
		if m := regexp.MustCompile(`python(3\.\d+)t?$`).FindStringSubmatch(s.interpreter); m != nil {
			s.version = m[1]
		}
	}
	return s
}

// provider returns the library of that name that packages of the same Python have, which they load by its path before
// they need it: "" when there is none.
func (s *moduleSite) provider(name string) string {
	if found := s.libraries[name]; found != "" {
		return found
	}
	for _, other := range s.kin {
		if found := other.libraries[name]; found != "" {
			return found
		}
	}
	return ""
}

// learn keeps a library under the names by which others may need it. The first by path has them.
func (s *moduleSite) learn(o *Object) {
	for _, name := range []string{path.Base(o.Path), o.Soname} {
		if _, ok := s.libraries[name]; !ok && name != "" {
			s.libraries[name] = o.Path
		}
	}
}

var (
	// taggedModule is an extension module of one Python version or of all: its stem and the version without the point.
	taggedModule = lazyregexp.New(`^([A-Za-z_]\w*)\.(?:cpython-(\d+)t?[-\w]*|abi3(?:t)?(?:-[-\w]+)?)\.so$`)
	plainModule  = lazyregexp.New(`^([A-Za-z_]\w*)\.so$`)
)

// isModule says whether Python would load the file as a module: one that its name says is for the version, or one without
// a tag that has the function to begin with.
func (l *linker) isModule(o *Object, s *moduleSite) bool {
	name := path.Base(o.Path)
	if m := taggedModule.FindStringSubmatch(name); m != nil {
		return m[2] == "" || s.version == "" || m[2] == strings.ReplaceAll(s.version, ".", "")
	}
	m := plainModule.FindStringSubmatch(name)
	return m != nil && !strings.HasPrefix(name, "lib") && l.exports(o, "PyInit_"+m[1])
}

// exports looks for a symbol in a file. One that cannot be read has none.
func (l *linker) exports(o *Object, symbol string) bool {
	c, err := l.loader.Closure(rooted(o.Path))
	if err != nil {
		return false
	}
	for s, err := range c.Objects[0].File.Exported() {
		if err != nil {
			return false
		}
		if s.Name == symbol {
			return true
		}
	}
	return false
}

// usesTorch says whether a file is linked with PyTorch's libraries.
func usesTorch(o *Object) bool {
	return slices.ContainsFunc(o.Needed, func(n string) bool {
		return strings.HasPrefix(n, "libtorch") || strings.HasPrefix(n, "libc10")
	})
}

// torchOf loads PyTorch as import torch does: first what everybody shall see, then its module.
func (l *linker) torchOf(s *moduleSite) error {
	s.torchOnce.Do(func() {
		for _, at := range append([]*moduleSite{s}, s.kin...) {
			module := l.torchModules[at.dir]
			if module == "" {
				continue
			}
			python, err := l.interpreter(s)
			if err != nil {
				s.torchError = err
				return
			}
			s.torchDir = path.Join(at.dir, "torch/lib")
			if s.globals, s.torchError = l.closure(path.Join(s.torchDir, "libtorch_global_deps.so"), python...); s.torchError != nil {
				return
			}
			s.torch, s.torchError = l.closure(module, python...)
			return
		}
	})
	return s.torchError
}

// interpreter loads the Python of a directory; nothing when there is none.
func (l *linker) interpreter(s *moduleSite) ([]*elfx.Closure, error) {
	if s == nil || s.interpreter == "" {
		return nil, nil
	}
	c, err := l.closure(s.interpreter)
	if c == nil || err != nil {
		return nil, err
	}
	return []*elfx.Closure{c}, nil
}
