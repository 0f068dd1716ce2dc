package lock

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// projectReach looks at the pyproject.toml files that uv reads by itself, for files of this machine that they name. A lock that leads to one is
// refused, but by then uv has read the file and asked servers for what it names.
type projectReach struct {
	recipe *recipe.Recipe
	own    *ownHosts
	seen   map[string]bool
}

// reachProjects refuses projects, that of r and those that lead to others, that name files which r may not reach.
func reachProjects(r *recipe.Recipe) error {
	p := &projectReach{recipe: r, own: ownHostsOf(r), seen: map[string]bool{}}
	if r.Python.Project != "" {
		if err := p.read(r.Resolve(r.Python.Project)); err != nil {
			return err
		}
	}
	files, err := readRequirements(r)
	if err != nil {
		return err
	}
	packages, err := packagesOf(r)
	if err != nil {
		return err
	}
	for _, text := range slices.Concat(packages, files.lines, files.editables) {
		if err := p.requirement(text, r.Dir); err != nil {
			return err
		}
	}
	return nil
}

// read looks at the project in a directory, if there is one.
func (p *projectReach) read(dir string) error {
	file := filepath.Join(dir, projectFile)
	if p.seen[file] || !exists(file) {
		return nil
	}
	if len(p.seen) == maxIncludes {
		return fmt.Errorf("%s: more than %d projects name each other", file, maxIncludes)
	}
	p.seen[file] = true
	if err := p.recipe.Reach.Check(file); err != nil {
		return err
	}
	data, err := readFile(file)
	if err != nil {
		return err
	}
	var all map[string]any
	if toml.Unmarshal(data, &all) != nil {
		return nil //nolint:nilerr // uv says what is wrong with it, and goes by nothing in it
	}
	lines := keyLines(data)
	at := func(key string, err error) error {
		switch {
		case err == nil:
			return nil
		case lines[key] > 0:
			return fault.Hint(fmt.Errorf("%s:%d: %s: %w", file, lines[key], key, err), fault.HintOf(err))
		}
		return fault.Hint(fmt.Errorf("%s: %s: %w", file, key, err), fault.HintOf(err))
	}
	if err := p.dependencies(all, dir, at); err != nil {
		return err
	}
	return p.settings(tableIn(all, "tool", "uv"), dir, at)
}

// dependencies looks at the requirements in a pyproject.toml.
func (p *projectReach) dependencies(all map[string]any, dir string, at func(key string, err error) error) error {
	lists := map[string]any{"project.dependencies": tableIn(all, "project")["dependencies"], "build-system.requires": tableIn(all, "build-system")["requires"]}
	for name, list := range tableIn(all, "project", "optional-dependencies") {
		lists["project.optional-dependencies."+name] = list
	}
	for name, list := range tableIn(all, "dependency-groups") {
		lists["dependency-groups."+name] = list
	}
	for _, key := range []string{"constraint-dependencies", "override-dependencies", "build-constraint-dependencies", "dev-dependencies"} {
		lists["tool.uv."+key] = tableIn(all, "tool", "uv")[key]
	}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		for _, item := range itemsOf(lists[key]) {
			text, ok := item.(string)
			if !ok {
				continue
			}
			if err := at(key, p.requirement(text, dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// settings looks at [tool.uv]: of this uv takes from each project where its requirements come from, whatever other settings count.
func (p *projectReach) settings(tool map[string]any, dir string, at func(key string, err error) error) error {
	sources := tableIn(tool, "sources")
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		for _, source := range itemsOf(sources[name]) {
			table, _ := source.(map[string]any)
			if err := at("tool.uv.sources."+name, p.source(table, dir)); err != nil {
				return err
			}
		}
	}
	for _, index := range itemsOf(tool["index"]) {
		table, _ := index.(map[string]any)
		if err := at("tool.uv.index.url", p.address(textIn(table, "url"), dir)); err != nil {
			return err
		}
	}
	for _, member := range itemsOf(tableIn(tool, "workspace")["members"]) {
		pattern, _ := member.(string)
		if err := at("tool.uv.workspace.members", p.members(pattern, dir)); err != nil {
			return err
		}
	}
	return nil
}

// source looks at a source of a package.
func (p *projectReach) source(table map[string]any, dir string) error {
	for _, key := range []string{"path", "git", "url"} {
		if err := p.address(textIn(table, key), dir); err != nil {
			return err
		}
	}
	if table["workspace"] != true {
		return nil
	}
	for at := dir; ; at = filepath.Dir(at) { // as uv does, up to the workspace that the project is a member of
		data, err := readFile(filepath.Join(at, projectFile))
		var all map[string]any
		if err == nil && toml.Unmarshal(data, &all) == nil && tableIn(all, "tool", "uv")["workspace"] != nil || at == filepath.Dir(at) {
			return p.read(at)
		}
	}
}

// members looks at the projects of a workspace.
func (p *projectReach) members(pattern, dir string) error {
	whole := pattern
	if !filepath.IsAbs(pattern) {
		whole = filepath.Join(dir, pattern)
	}
	above := whole
	for strings.ContainsAny(above, "*?[{") {
		above = filepath.Dir(above)
	}
	if err := p.recipe.Reach.Check(above); err != nil {
		return err
	}
	found, _ := filepath.Glob(whole) // a wrong pattern is for uv to refuse
	for _, member := range found {
		if err := p.read(member); err != nil {
			return err
		}
	}
	return nil
}

// requirement looks at the address in a requirement, and at the project that is there.
func (p *projectReach) requirement(text, dir string) error {
	return p.address(requirementAddress(p.own.expand(text)), dir)
}

func (p *projectReach) address(address, dir string) error {
	if err := p.recipe.Reach.CheckAddress(address, dir); err != nil {
		return err
	}
	for _, path := range reach.Local(address, dir) {
		if err := p.read(path); err != nil {
			return err
		}
	}
	return nil
}

// tableIn is the table in tables of these names, nil where there is none.
func tableIn(table map[string]any, names ...string) map[string]any {
	for _, name := range names {
		table, _ = table[name].(map[string]any)
	}
	return table
}

func textIn(table map[string]any, key string) string {
	text, _ := table[key].(string)
	return text
}

// itemsOf is a list, or one value as a list of it.
func itemsOf(value any) []any {
	if list, ok := value.([]any); ok {
		return list
	}
	return []any{value}
}
