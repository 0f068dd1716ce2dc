package lock

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// Inputs is everything in and beside a recipe that a lock depends on, as lines that a person can compare. Two recipes
// with equal inputs share a lock.
type Inputs struct {
	Base   []string `toml:"base,multiline"`
	System []string `toml:"system,omitempty,multiline"`
	Conda  []string `toml:"conda,omitempty,multiline"`
	Python []string `toml:"python,omitempty,multiline"`

	Components []string `toml:"components,omitempty,multiline"` // sources and what is installed to build them
}

// InputsOf collects the inputs of r. Files that r names, and those that they include, enter by their hash; logins in
// addresses do not enter.
func InputsOf(r *recipe.Recipe) (Inputs, error) {
	var in Inputs
	in.Base = baseInputs(r.Base)
	for _, p := range r.System.Packages {
		in.System = append(in.System, "package "+p)
	}
	in.Components = componentInputs(r)
	var err error
	if in.Conda, err = condaInputs(r); err != nil || !r.Python.Asked() {
		return in, err
	}
	p := r.Python
	add := func(name string, values ...string) {
		for _, v := range values {
			in.Python = append(in.Python, name+" "+fetch.WithoutLogins(v))
		}
	}
	add("packages", p.Packages...)
	add("extras", p.Extras...)
	add("groups", p.Groups...)
	if p.InstallsProject() {
		add("install-project", "true")
	}
	if p.TorchBackend != "" {
		add("torch-backend", p.TorchBackend)
		if p.TorchBackend == backendOfTarget {
			add("driver", r.Target.Driver)
		}
	}
	if p.Protect != nil {
		add("protect", "["+strings.Join(*p.Protect, ", ")+"]")
	}
	if p.OnTop != nil {
		add("on-top", append([]string{"of the base"}, p.OnTop.Shadow...)...)
	}
	add("only-binary", p.OnlyBinary...)
	add("compile", compileInputs(r)...)
	requirements, err := readRequirements(r)
	if err != nil {
		return in, err
	}
	hashes, err := hashInputs(r, requirements)
	if err != nil {
		return in, err
	}
	add("hashes", hashes...)
	files, err := inputFiles(r, requirements)
	if err != nil {
		return in, err
	}
	for _, file := range files {
		add(file.key, fmt.Sprintf("%s (%s)", file.path, store.DigestOf(file.data).Short()))
	}
	return in, nil
}

func baseInputs(b recipe.Base) []string {
	lines := baseItself(b)
	for _, pattern := range b.Remove {
		lines = append(lines, removes+pattern)
	}
	return lines
}

// removes begins the inputs that say what is taken out of a base.
const removes = "remove "

func baseItself(b recipe.Base) []string {
	switch {
	case b.Recipe != "":
		return []string{"recipe " + b.Recipe}
	case b.Bootstrap == nil:
		return []string{"image " + b.Image}
	}
	release := "suite " + b.Bootstrap.Suite
	if b.Bootstrap.Dnf != "" {
		release = "dnf " + b.Bootstrap.Dnf
	}
	lines := []string{release, "variant " + b.Bootstrap.Variant}
	if b.Bootstrap.Mirror != "" {
		lines = append(lines, "mirror "+b.Bootstrap.Mirror)
	}
	for _, source := range b.Bootstrap.Sources {
		lines = append(lines, "source "+source)
	}
	for _, c := range b.Bootstrap.Components {
		lines = append(lines, "component "+c)
	}
	for _, p := range b.Bootstrap.Packages {
		lines = append(lines, "package "+p)
	}
	return lines
}

// inputFile is a file whose content decides the Python packages.
type inputFile struct {
	key  string // of the recipe, that leads to it
	path string // as the recipe names it, or relative to the recipe
	data []byte
}

func inputFiles(r *recipe.Recipe, requirements *requirements) ([]inputFile, error) {
	var files []inputFile
	for _, f := range requirements.files {
		key := "requirements"
		if f.constraint {
			key = "constraints"
		}
		files = append(files, inputFile{key, f.path, f.data})
	}
	for _, f := range namedFiles(r) {
		var err error
		if f.data, err = readFile(r.Resolve(f.path)); err != nil {
			return nil, fmt.Errorf("read what the recipe names under [python] %s: %w", f.key, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// namedFiles lists the files that count beside requirements.
func namedFiles(r *recipe.Recipe) []inputFile {
	var files []inputFile
	if r.Python.Lock != "" {
		files = append(files, inputFile{key: "lock", path: r.Python.Lock})
	}
	if dir := r.Python.Project; dir != "" {
		files = append(files, inputFile{key: "project", path: filepath.Join(dir, projectFile)})
		if file := frozen(r); file != "" {
			files = append(files, inputFile{key: "project", path: file})
		}
	}
	if settings := settingsFile(r); settings != "" && r.Python.Lock == "" {
		if rel, err := filepath.Rel(r.Dir, settings); err == nil {
			files = append(files, inputFile{key: uvConfig, path: rel})
		}
	}
	return files
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// diff returns what has to change in the lock's inputs to become now.
func (in Inputs) diff(now Inputs) []string {
	return slices.Concat(diffLines("base", in.Base, now.Base), diffLines("system", in.System, now.System), diffLines("conda", in.Conda, now.Conda), diffLines("python", in.Python, now.Python), diffLines("components", in.Components, now.Components))
}

func diffLines(section string, was, is []string) []string {
	var out []string
	for _, line := range was {
		if !slices.Contains(is, line) {
			out = append(out, "- "+section+"."+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			out = append(out, "+ "+section+"."+line)
		}
	}
	return out
}
