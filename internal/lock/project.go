package lock

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// project is what sconce reads of a pyproject.toml (packaging.python.org, "pyproject.toml specification" and "Dependency
// Groups"), and of uv's settings in it. uv is its real reader.
type project struct {
	Project struct {
		Dependencies []string            `toml:"dependencies"`
		Optional     map[string][]string `toml:"optional-dependencies"`
	} `toml:"project"`
	Groups map[string][]any `toml:"dependency-groups"`
	Tool   struct {
		UV *uvSettings `toml:"uv"`
	} `toml:"tool"`
}

const projectFile = "pyproject.toml"

func readProject(dir string) (*project, error) {
	path := filepath.Join(dir, projectFile)
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read project: %w", err)
	}
	p := &project{}
	if err := toml.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("read project %s: %w", path, err)
	}
	return p, nil
}

// requirements lists what the project asks for with these extras and groups.
func (p *project) requirements(extras, groups []string) []string {
	lines := slices.Clone(p.Project.Dependencies)
	for name, list := range p.Project.Optional {
		if containsName(extras, name) {
			lines = append(lines, list...)
		}
	}
	seen := make(map[string]bool)
	for _, name := range groups {
		lines = append(lines, p.group(name, seen)...)
	}
	return lines
}

// group lists what a dependency group asks for, with the groups that it includes.
func (p *project) group(wanted string, seen map[string]bool) []string {
	wanted = python.NormalizeName(wanted)
	if seen[wanted] {
		return nil
	}
	seen[wanted] = true
	var lines []string
	for name, items := range p.Groups {
		if python.NormalizeName(name) != wanted {
			continue
		}
		for _, item := range items {
			switch item := item.(type) {
			case string:
				lines = append(lines, item)
			case map[string]any:
				if included, ok := item["include-group"].(string); ok {
					lines = append(lines, p.group(included, seen)...)
				}
			}
		}
	}
	return lines
}

func containsName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return python.NormalizeName(n) == python.NormalizeName(name) })
}

// requested lists everything that r asks for by itself, as requirements: what its packages, requirements files and
// project name. A project that says its dependencies only when it is built (pyproject.toml, "dynamic") names none.
func requested(r *recipe.Recipe) ([]string, error) {
	files, err := readRequirements(r)
	if err != nil {
		return nil, err
	}
	lines := slices.Concat(r.PythonPackages(), files.lines)
	if r.Python.Project == "" {
		return lines, nil
	}
	p, err := readProject(r.Resolve(r.Python.Project))
	if err != nil {
		return nil, err
	}
	return append(lines, p.requirements(r.Python.Extras, r.Python.Groups)...), nil
}
