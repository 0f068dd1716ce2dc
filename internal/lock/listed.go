package lock

import (
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// Which packages an environment file lists for pip decides their order, their variables and their isolation. An item may name its
// package, or only say where the source is; which package that is, the package lock tells.

// readListed returns what an item of a pip list asks for, with what stands in the file of -r and those that it includes, but for
// those that only a server has.
func readListed(r *recipe.Recipe, file string, e *condalock.Environment, item condalock.PipItem) ([]string, error) {
	if item.Constraints != "" {
		return nil, nil
	}
	reader := &requirementsReader{dir: r.Dir, reach: r.Reach, seen: make(map[string]bool)}
	at := requirementsPlace{path: r.Resolve(file), name: file}
	for _, line := range requirementLines(pipLine(e, item)) {
		line.number = item.Line
		if err := reader.line(line, at, 0); err != nil {
			return nil, fmt.Errorf("the pip list of %s: %w", file, err)
		}
	}
	return slices.Concat(reader.lines, reader.editables), nil
}

// listOf returns the list of an environment file that asks for a package, and what it asks; nil if none does.
func listOf(r *recipe.Recipe, p python.Package) (place int, list *recipe.PipList, asked recipe.PipRequirement) {
	for i := range r.Python.Listed {
		for _, a := range r.Python.Listed[i].Asked {
			if asksFor(a.Text, r.Dir, p) {
				return i, &r.Python.Listed[i], a
			}
		}
	}
	return -1, nil, asked
}

// asksFor reports whether a requirement is one for p, by its name or by where its source is. Relative paths start at dir: uv runs
// there.
func asksFor(requirement, dir string, p python.Package) bool {
	if r, err := python.ParseRequirement(requirement); err == nil && python.NormalizeName(r.Name) == python.NormalizeName(p.Name) {
		return true
	}
	if p.Source == nil || !p.Source.Direct {
		return false
	}
	address, subdirectory := sourceAddress(requirement)
	s := p.Source
	switch {
	case s.Kind == python.SourceGit:
		return subdirectory == s.Subdirectory && isRepository(address, s.URL)
	case s.Path != "":
		return filePath(address, dir) == filepath.Join(s.Path, s.Subdirectory) || subdirectory == s.Subdirectory && filePath(address, dir) == s.Path
	default:
		return subdirectory == s.Subdirectory && address == fetch.WithoutLogins(withoutFragment(s.URL))
	}
}

var (
	addressMarker = lazyregexp.New(`\s*;.*$`)
	pathExtras    = lazyregexp.New(`\s*\[[^\]]*\]$`)
)

// sourceAddress returns the address or path of a requirement without a name, as it can be compared, and the directory in it.
func sourceAddress(requirement string) (address, subdirectory string) {
	address = pathExtras.ReplaceAllString(addressMarker.ReplaceAllString(requirement, ""), "")
	address, fragment, _ := strings.Cut(address, "#")
	if values, err := url.ParseQuery(fragment); err == nil && values.Get("subdirectory") != "" {
		subdirectory = path.Clean(values.Get("subdirectory"))
	}
	return fetch.WithoutLogins(withoutFragment(address)), subdirectory
}

// isRepository reports whether an address is that of a git repository, perhaps with a revision behind it: "git+https://…@v1".
func isRepository(address, repository string) bool {
	address, ok := strings.CutPrefix(address, "git+")
	if !ok {
		return false
	}
	repository = plainRepository(fetch.WithoutLogins(repository))
	return plainRepository(address) == repository || plainRepository(address[:max(strings.LastIndex(address, "@"), 0)]) == repository
}

// plainRepository leaves out what may stand in the address of a repository or not.
func plainRepository(address string) string {
	return strings.TrimSuffix(strings.TrimRight(strings.TrimPrefix(address, "file://"), "/"), ".git")
}

// filePath returns the path of a requirement that is one, "./mine" or "file:///src/mine", made absolute.
func filePath(address, dir string) string {
	if u, err := url.Parse(address); err == nil && u.Scheme == "file" && u.Path != "" {
		address = u.Path
	}
	if !filepath.IsAbs(address) {
		address = filepath.Join(dir, address)
	}
	return filepath.Clean(address)
}
