package torecipe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	pep "sconce.dev/sconce/internal/python"
)

// pythons are the distributions that a recipe can stand on without any registry, and the Python of each, the first choice first.
var pythons = []struct{ suite, version string }{{"bookworm", "3.11"}, {"trixie", "3.13"}, {"noble", "3.12"}, {"jammy", "3.10"}}

// baseWith is the base that Options name, else a distribution with a Python that fits.
func (o Options) baseWith(wanted pep.Specifiers) (draftBase, error) {
	if o.Base != "" {
		image, err := o.image()
		return draftBase{Image: image}, err
	}
	for _, p := range pythons {
		v, err := pep.ParseVersion(p.version)
		if err != nil {
			return draftBase{}, err
		}
		if wanted.Contains(v) {
			return draftBase{Bootstrap: &bootstrap{p.suite, []string{"python3", "ca-certificates"}}}, nil
		}
	}
	return draftBase{}, fmt.Errorf("no distribution that sconce makes a base of has a Python %s", wanted)
}

// image is the base as the recipe names it: a path that starts here starts in the recipe's directory there.
func (o Options) image() (string, error) {
	form, path, found := strings.Cut(o.Base, ":")
	if _, err := os.Lstat(o.Base); err == nil {
		form, path, found = "", o.Base, false
	} else if _, err := os.Lstat(path); !found || err != nil {
		return o.Base, nil //nolint:nilerr // not a path
	}
	rel, err := beside(o.Dir, path)
	if found {
		return form + ":" + rel, err
	}
	if !strings.HasPrefix(rel, "../") {
		rel = "./" + rel
	}
	return rel, err
}

// Limits on files: far above what anyone writes.
const maxFile = 16 << 20

func readFile(file string) ([]byte, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than 16 MiB", file)
	}
	return os.ReadFile(file)
}

// unread are options of requirements files that pip obeys and uv, which reads these files for sconce, does not.
var unread = []string{"--install-option", "--global-option", "--config-setting", "--config-settings", "--use-feature", "--prefer-binary", "--trusted-host"}

// FromRequirements writes a recipe whose Python packages are those of requirements files. They stay where they are, and are read when
// the recipe is locked.
func FromRequirements(files []string, o Options) ([]byte, error) {
	p := &python{}
	for _, file := range files {
		data, err := readFile(file)
		if err != nil {
			return nil, fault.Usage(err)
		}
		if err := checkRequirements(file, data); err != nil {
			return nil, err
		}
		name, err := beside(o.Dir, file)
		if err != nil {
			return nil, err
		}
		p.Requirements = append(p.Requirements, name)
	}
	base, err := o.baseWith(nil)
	if err != nil {
		return nil, err
	}
	d := draft{Name: o.Name, Base: base, Python: p}
	return d.text("The Python packages of " + strings.Join(p.Requirements, " and ") + ". The files are read when the recipe is locked.")
}

func checkRequirements(file string, data []byte) error {
	r := &refusals{file: file}
	for i, line := range bytes.Split(data, []byte("\n")) {
		if text := bytes.TrimSpace(line); len(text) == 0 || text[0] == '#' {
			continue
		}
		for _, word := range strings.Fields(string(line)) {
			name, _, _ := strings.Cut(word, "=")
			if slices.Contains(unread, name) {
				r.add(i+1, "%s has no place in a recipe: uv, which reads the file, does not obey it", name)
			}
		}
	}
	return r.err()
}

// FromProject writes a recipe whose Python packages are the dependencies of a project, of which file is the pyproject.toml.
func FromProject(file string, o Options) ([]byte, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, fault.Usage(err)
	}
	var project struct {
		Project struct {
			Name     string `toml:"name"`
			Requires string `toml:"requires-python"`
		} `toml:"project"`
		Tool map[string]any `toml:"tool"`
	}
	if err := toml.Unmarshal(data, &project); err != nil {
		return nil, notTOML(file, err)
	}
	r := &refusals{file: file}
	if project.Project.Name == "" {
		where, what := "[tool.poetry", "the dependencies are in [tool.poetry], which only Poetry reads: write them under [project], as Poetry 2 does"
		if _, poetry := project.Tool["poetry"]; !poetry {
			where, what = "[project", "there is no [project] with a name, and so no dependencies that can be read"
		}
		r.add(lineOf(data, where), "%s", what)
		return nil, r.err()
	}
	wanted, err := pep.ParseSpecifiers(project.Project.Requires)
	if err != nil {
		r.add(lineOf(data, "requires-python"), "%v", err)
		return nil, r.err()
	}
	base, err := o.baseWith(wanted)
	if err != nil {
		r.add(lineOf(data, "requires-python"), "%v", err)
		return nil, fault.Hint(r.err(), "name an image that has one: --base docker://...")
	}
	dir, err := beside(o.Dir, filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	d := draft{Name: o.Name, Base: base, Python: &python{Project: dir}}
	return d.text("The dependencies of " + project.Project.Name + ", or what its uv.lock has.\nThe project itself is not in the image: install-project = true under [python] installs it, a [[step]] copies files: copy = [\"src:/opt/src\"].")
}

func notTOML(file string, err error) error {
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, column := at.Position()
		return fault.Usage(fmt.Errorf("%s:%d:%d: %w", file, line, column, err))
	}
	return fault.Usage(fmt.Errorf("%s: %w", file, err))
}

// lineOf returns the line that begins with a text, from 1; 1 when there is none.
func lineOf(data []byte, begin string) int {
	for i, line := range bytes.Split(data, []byte("\n")) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte(begin)) {
			return i + 1
		}
	}
	return 1
}
