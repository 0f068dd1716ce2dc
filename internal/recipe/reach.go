package recipe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
)

// validateReach refuses files of this machine that r names and that are outside of its bounds. It goes by what r says, and not by where
// that is written: it must see all of it. What these files lead to in their turn, others check by [Recipe.Reach].
func (c *checker) validateReach(r *Recipe) {
	at := &Recipe{Dir: c.dir}
	c.reachBase(at, r)
	c.reachPython(at, r)
	for i, file := range r.Conda.Environment {
		c.reachFile(file, "conda.environment", c.atItem(i, "conda", "environment"))
	}
	c.reachFile(r.Conda.Lock, "conda.lock", c.at("conda", "lock"))
	for i, channel := range r.Conda.Channels {
		c.reachChannel(channel, "conda.channels", c.atItem(i, "conda", "channels"))
	}
	for i, spec := range r.Conda.Packages {
		if channel, _, found := strings.Cut(spec, "::"); found {
			c.reachChannel(channel, "conda.packages", c.atItem(i, "conda", "packages"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Source)) {
		s := r.Source[name]
		c.reachAddress(s.URL, "source."+name+".url", c.at("source", name, "url"))
		c.reachAddress(s.Git, "source."+name+".git", c.at("source", name, "git"))
		for i, file := range s.Patch {
			c.reachFile(file, "source."+name+".patch", c.atItem(i, "source", name, "patch"))
		}
	}
	c.reachSteps(at, r.Steps)
	for i, t := range r.Tests {
		for j, file := range t.Files {
			c.reachFile(file, fmt.Sprintf("test %d: files", i+1), c.atTable("test", i, "files", j))
		}
	}
	if strings.Contains(r.Target.Cluster, "/") || strings.HasSuffix(r.Target.Cluster, ".toml") {
		c.reachFile(r.Target.Cluster, "target.cluster", c.at("target", "cluster"))
	}
}

// reachNothingElse is validateReach of a recipe that is in no file, so that its keys have no places.
func (r *Recipe) reachNothingElse() error {
	c := newChecker(nil, r.Path, r.Dir)
	c.reach = r.Reach
	c.validateReach(r)
	if len(c.problems) == 0 {
		return nil
	}
	first := c.problems[0]
	return fault.Usage(fault.Hint(fmt.Errorf("%s: %s", r.Path, first.Message), first.hint))
}

func (c *checker) reachBase(at, r *Recipe) {
	if !r.Base.Anywhere {
		c.reachImage(at, r.Base.Image, "base.image", c.at("base", "image"))
	}
	if r.Base.Recipe != "" {
		path, _ := SplitVariant(resolve(c.dir, r.Base.Recipe))
		c.reachFile(path, "base.recipe", c.at("base", "recipe"))
		c.reachFile(fileOf(path), "base.recipe", c.at("base", "recipe"))
	}
	b := r.Base.Bootstrap
	if b == nil {
		return
	}
	c.reachAddress(b.Mirror, "base.bootstrap.mirror", c.at("base", "bootstrap", "mirror"))
	if strings.Contains(b.Dnf, "://") {
		c.reachAddress(b.Dnf, "base.bootstrap.dnf", c.at("base", "bootstrap", "dnf"))
	}
	for i, source := range b.Sources {
		address, _, _ := strings.Cut(strings.TrimSpace(source), " ")
		c.reachAddress(address, "base.bootstrap.sources", c.atItem(i, "base", "bootstrap", "sources"))
	}
	for i, file := range b.Keys {
		c.reachFile(file, "base.bootstrap.keys", c.atItem(i, "base", "bootstrap", "keys"))
	}
}

// ofProject are the files of a project, or beside a recipe, that count for its Python packages.
var ofProject = []string{"pyproject.toml", "uv.toml", "uv.lock"}

func (c *checker) reachPython(at, r *Recipe) {
	p := r.Python
	c.reachRequirements(p.Packages, "python", "packages")
	for i, file := range p.Requirements {
		c.reachFile(file, "python.requirements", c.atItem(i, "python", "requirements"))
	}
	c.reachFile(p.Lock, "python.lock", c.at("python", "lock"))
	c.reachFile(p.Project, "python.project", c.at("python", "project"))
	for _, name := range ofProject {
		if p.Asked() {
			c.reachFile(filepath.Join(p.Project, name), "python", c.at("python"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Compile)) {
		how, path := p.Compile[name], []string{"python", "compile", name}
		c.reachImage(at, how.Base, strings.Join(path, ".")+".base", c.at(append(path, "base")...))
		c.reachRequirements(how.Requires, append(path, "requires")...)
		c.reachRequirements(how.Depends, append(path, "depends")...)
	}
}

// reachRequirements looks at the addresses behind "@" in requirements.
func (c *checker) reachRequirements(all []string, names ...string) {
	for i, text := range all {
		if _, address, found := strings.Cut(text, "@"); found {
			address, _, _ = strings.Cut(strings.TrimSpace(address), " ")
			c.reachAddress(address, strings.Join(names, "."), c.atItem(i, names...))
		}
	}
}

func (c *checker) reachSteps(at *Recipe, steps []Step) {
	for i, s := range steps {
		label := fmt.Sprintf("step %d: ", i+1)
		for j, text := range s.Copy {
			if copied, err := s.ParseCopy(text); err == nil {
				dir, pattern := at.CopySource(copied)
				for isPattern(pattern) { // what it matches does not lead out of dir
					pattern = filepath.Dir(pattern)
				}
				c.reachFile(filepath.Join(dir, pattern), label+"copy", c.atTable("step", i, "copy", j))
			}
		}
		for j, text := range s.Patch {
			if p, err := s.ParsePatch(text); err == nil {
				c.reachFile(p.File, label+"patch", c.atTable("step", i, "patch", j))
			}
		}
		for j, text := range s.Mounts {
			mounts, err := parseMount(text)
			for _, m := range mounts {
				if err == nil && m.Kind == "bind" {
					c.reachFile(m.Source, label+"mounts", c.atTable("step", i, "mounts", j))
				}
			}
		}
	}
}

// reachImage looks at an image that is a file or directory. A tag or a digest may stand behind its path, which may have colons in it as
// well: whatever of it exists must be within bounds.
func (c *checker) reachImage(at *Recipe, image, name string, where span) {
	reference := at.ImageReference(image)
	transport, value, found := strings.Cut(reference, ":")
	if _, isPath := pathTransports[transport]; !found || !isPath {
		if !filepath.IsAbs(reference) {
			return // of the store or a registry, or what others find in the current directory
		}
		value = reference
	}
	ends := []int{len(value)}
	for i, r := range value {
		if r == ':' || r == '@' {
			ends = append(ends, i)
		}
	}
	shortest := slices.Min(ends)
	for _, end := range ends {
		if _, err := os.Lstat(value[:end]); end > 0 && (err == nil || end == shortest) {
			c.reachFile(value[:end], name, where)
		}
	}
}

// reachChannel looks at a channel of conda packages that is a directory.
func (c *checker) reachChannel(channel, name string, at span) {
	if strings.HasPrefix(channel, "~") || strings.HasPrefix(channel, "/") || strings.HasPrefix(channel, ".") || strings.HasPrefix(strings.ToLower(channel), "file:") {
		c.reachAddress(channel, name, at)
	}
}

func (c *checker) reachFile(file, name string, at span) {
	if file == "" {
		return
	}
	if !filepath.IsAbs(file) {
		file = c.dir + "/" + file // and not cleaned, see [reach.Bounds.Check]
	}
	if err := c.reach.Check(file); err != nil {
		c.add(at, fault.HintOf(err), "%s: %v", name, err)
	}
}

// reachAddress looks at what may be the address of a file.
func (c *checker) reachAddress(address, name string, at span) {
	if err := c.reach.CheckAddress(address, c.dir); err != nil {
		c.add(at, fault.HintOf(err), "%s: %v", name, err)
	}
}

// atTable returns the place of an element of a list in the i-th of some tables.
func (c *checker) atTable(name string, i int, key string, j int) span {
	list := c.find(name)
	if list == nil || i >= len(list.items) || list.items[i].table == nil {
		return span{}
	}
	if n := list.items[i].table.nodes[key]; n != nil && j < len(n.items) {
		return n.items[j].value
	}
	return list.items[i].key
}
