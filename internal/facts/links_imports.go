package facts

import (
	"path"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Limits on one search for a module among the imports of its package.
const (
	maxImportFiles = 400
	maxImportSize  = 512 << 10 // bytes of a file of source
)

// findImports finds the extension modules that their packages import without a condition, and so cannot do without.
func (l *linker) findImports(problems []LinkProblem) {
	known, modules := map[string]bool{}, map[string][]string{}
	for i, p := range problems {
		if p.Role != RoleModule {
			continue
		}
		needed, ok := known[p.Path]
		if !ok {
			needed = l.isNeeded(p.Path, modules)
			known[p.Path] = needed
		}
		if needed {
			problems[i].Role = RoleImport
		}
	}
}

// isNeeded says whether a module is one by itself, has the name of its package, or is reached from the package's __init__.py
// by import statements that stand at the beginning of a line: those in a try or an if, or in a function, do not. modules keeps what each
// source imports, for the next module of the package.
func (l *linker) isNeeded(name string, modules map[string][]string) bool {
	dir := siteOf(name, l.facts.Pythons)
	if path.Base(dir) == "lib-dynload" {
		return false // parts of Python's own library may be left out
	}
	inside := strings.Split(strings.TrimPrefix(name, dir+"/"), "/")
	stem, _, _ := strings.Cut(inside[len(inside)-1], ".")
	if len(inside) == 1 || len(inside) == 2 && stem == inside[0] {
		return true
	}
	inside[len(inside)-1] = stem
	s := importSearch{linker: l, dir: dir, wanted: strings.Join(inside, "."), seen: map[string]bool{}, modules: modules}
	return s.reaches(inside[0])
}

// importSearch follows the imports inside one package.
type importSearch struct {
	*linker
	dir    string // of the site
	wanted string // name of the module: "torchvision._C"
	seen   map[string]bool

	modules map[string][]string // what a module imports, by directory and name
}

func (s *importSearch) reaches(pkg string) bool {
	queue := []string{pkg}
	for len(queue) > 0 && len(s.seen) < maxImportFiles {
		module := queue[0]
		queue = queue[1:]
		if module == s.wanted {
			return true
		}
		if s.seen[module] || module != pkg && !strings.HasPrefix(module, pkg+".") {
			continue
		}
		s.seen[module] = true
		if parent := parentOf(module); parent != "" {
			queue = append(queue, parent)
		}
		queue = append(queue, s.importsOf(module)...)
	}
	return false
}

func (s *importSearch) importsOf(module string) []string {
	key := path.Join(s.dir, module)
	names, ok := s.modules[key]
	if !ok {
		text, isPackage := s.source(module)
		names = imports(text, module, isPackage)
		s.modules[key] = names
	}
	return names
}

// parentOf returns the package that a module is in; "" for one that is in none.
func parentOf(module string) string { return module[:max(0, strings.LastIndexByte(module, '.'))] }

// source reads a module that is written in Python; "" for any other.
func (s *importSearch) source(module string) (text string, isPackage bool) {
	at := path.Join("/", s.dir, strings.ReplaceAll(module, ".", "/"))
	for _, name := range []string{at + "/__init__.py", at + ".py"} {
		if real, err := s.facts.Root.Resolve(name); err == nil {
			return s.beginning(real, maxImportSize), strings.HasSuffix(name, "/__init__.py")
		}
	}
	return "", false
}

var importLine = lazyregexp.New(`(?m)^(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([^\n#;]+))`)

// imports returns the names that the statements of a module import, with all that they may mean: "from a import b" is a and
// a.b.
func imports(text, module string, isPackage bool) []string {
	var names []string
	text = strings.ReplaceAll(text, "\\\n", " ")
	for _, m := range importLine.FindAllStringSubmatch(text, -1) {
		if m[3] != "" {
			names = append(names, items(m[3])...)
			continue
		}
		from := resolveImport(m[1], module, isPackage)
		names = append(names, from)
		for _, item := range items(m[2]) {
			names = append(names, from+"."+item)
		}
	}
	return names
}

// items returns the names of a list without what they shall be called.
func items(list string) []string {
	var names []string
	for line := range strings.Lines(strings.Trim(list, "()")) {
		line, _, _ = strings.Cut(line, "#")
		for item := range strings.SplitSeq(line, ",") {
			if fields := strings.Fields(item); len(fields) > 0 {
				names = append(names, fields[0])
			}
		}
	}
	return names
}

// resolveImport resolves a relative name: one point is the package that the module is in, each further the one above.
func resolveImport(name, module string, isPackage bool) string {
	rest := strings.TrimLeft(name, ".")
	points := len(name) - len(rest)
	if points == 0 {
		return name
	}
	if isPackage {
		points--
	}
	for range points {
		module = parentOf(module)
	}
	return strings.Trim(module+"."+rest, ".")
}
