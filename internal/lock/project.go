package lock

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// project is what sconce reads of a pyproject.toml (packaging.python.org, "pyproject.toml specification" and "Dependency
// Groups"), and of uv's settings in it. uv is its real reader.
type project struct {
	Project struct {
		Name         string              `toml:"name"`
		Dependencies []string            `toml:"dependencies"`
		Optional     map[string][]string `toml:"optional-dependencies"`
	} `toml:"project"`
	BuildSystem *struct{}        `toml:"build-system"`
	Groups      map[string][]any `toml:"dependency-groups"`
	Tool        struct {
		UV     *uvSettings    `toml:"uv"`
		Poetry map[string]any `toml:"poetry"`
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

// checkProject says why the project of r cannot be locked, where uv would say nothing or nothing that helps.
func checkProject(r *recipe.Recipe) error {
	if r.Python.Project == "" {
		return nil
	}
	if file := frozen(r); file != "" {
		return checkFrozen(r, file)
	}
	dir := r.Resolve(r.Python.Project)
	p, err := readProject(dir)
	if err != nil || p.Project.Name != "" || exists(filepath.Join(dir, "PKG-INFO")) { // of an unpacked source archive
		return err
	}
	path := filepath.Join(r.Python.Project, projectFile)
	switch {
	case p.Tool.Poetry != nil:
		return fault.Hint(fmt.Errorf("%s has no [project] table: its dependencies are in [tool.poetry], which only Poetry reads", path),
			"`poetry export --without-hashes -o requirements.txt` (of poetry-plugin-export) writes them down for requirements = [\"requirements.txt\"] "+
				"in place of project; or move them to dependencies under [project], which Poetry 2 reads as well")
	case exists(filepath.Join(dir, "setup.py")), exists(filepath.Join(dir, "setup.cfg")):
		return fault.Hint(fmt.Errorf("%s has no [project] table: its dependencies are in setup.py or setup.cfg, which say them only when code is run", path),
			"move them to dependencies under [project], which setuptools reads as well, or name them under packages or requirements in place of project")
	}
	return fault.Hint(fmt.Errorf("%s has no [project] table with a name, so it is not the project of a Python package", path),
		"write name, version and dependencies under [project], or name what is needed under packages or requirements in place of project")
}

// packagesOf lists python.packages, and the project itself where the recipe wants it installed, as requirements.
func packagesOf(r *recipe.Recipe) ([]string, error) {
	packages := r.PythonPackages()
	if !r.Python.InstallsProject() {
		return packages, nil
	}
	dir := r.Resolve(r.Python.Project)
	p, err := readProject(dir)
	if err != nil {
		return nil, err
	}
	if p.Project.Name == "" {
		return packages, nil // checkProject says why, or it has a name only as an unpacked source archive
	}
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}
	return append(packages, p.Project.Name+" @ "+address.String()), nil
}

// tellProject says that the project itself is not installed, as long as the recipe leaves that open. Only what has a build system
// is a package that could be (uv's documentation, "Build systems").
func tellProject(ctx context.Context, r *recipe.Recipe) error {
	if r.Python.Project == "" || r.Python.InstallProject != nil || r.Python.OnTop != nil {
		return nil
	}
	p, err := readProject(r.Resolve(r.Python.Project))
	if err != nil || p.BuildSystem == nil || p.Project.Name == "" || slices.ContainsFunc(r.Python.Packages, p.isItself) {
		return err
	}
	progress.Notef(ctx, fmt.Sprintf("what %s depends on is installed, and not %s itself; install-project = true under [python] installs it, false is silent", p.Project.Name, p.Project.Name))
	return nil
}

func (p *project) isItself(requirement string) bool {
	return python.NormalizeName(requirementName(requirement)) == python.NormalizeName(p.Project.Name)
}

// checkFrozen refuses what the user's own lock leaves no room for: uv only exports that, and looks at nothing beside it.
func checkFrozen(r *recipe.Recipe, file string) error {
	key := "packages"
	if len(r.Python.Packages) == 0 {
		key = "requirements"
	}
	if len(r.Python.Packages)+len(r.Python.Requirements) == 0 {
		return nil
	}
	return fault.Hint(fmt.Errorf("%s decides all Python packages, so %s under [python] cannot be given beside it", file, key),
		"add them to the project with `uv add`, perhaps as a group: `uv add --group NAME …`, and groups = [\"NAME\"] under [python]")
}

// requirements lists what the project asks for with these extras and groups. In the place of the project's own name, as in
// all = ["mypkg[gpu,dev]"], stand the extras that it names.
func (p *project) requirements(extras, groups []string) []string {
	lines := slices.Clone(p.Project.Dependencies)
	for _, name := range extras {
		lines = append(lines, p.extra(name)...)
	}
	seen := make(map[string]bool)
	for _, name := range groups {
		lines = append(lines, p.group(name, seen)...)
	}
	return p.withoutItself(lines, make(map[string]bool))
}

// extra lists what an extra asks for.
func (p *project) extra(wanted string) []string {
	var lines []string
	for name, list := range p.Project.Optional {
		if containsName([]string{wanted}, name) {
			lines = append(lines, list...)
		}
	}
	return lines
}

// withoutItself replaces requirements on the project itself by those of the extras that they name. One with a marker is left out: whether
// it holds is for uv to say.
func (p *project) withoutItself(lines []string, seen map[string]bool) []string {
	var all []string
	for _, line := range lines {
		if p.Project.Name == "" || !p.isItself(line) {
			all = append(all, line)
			continue
		}
		q, err := python.ParseRequirement(line)
		if err != nil || q.Marker != nil {
			continue
		}
		for _, name := range q.Extras {
			if name = python.NormalizeName(name); !seen[name] {
				seen[name] = true
				all = append(all, p.withoutItself(p.extra(name), seen)...)
			}
		}
	}
	return all
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
	packages, err := packagesOf(r)
	if err != nil {
		return nil, err
	}
	lines := slices.Concat(packages, files.lines)
	if r.Python.Project == "" {
		return lines, nil
	}
	p, err := readProject(r.Resolve(r.Python.Project))
	if err != nil {
		return nil, err
	}
	return append(lines, p.requirements(r.Python.Extras, r.Python.Groups)...), nil
}
