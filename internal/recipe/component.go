package recipe

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/units"
)

// Source is what components are built from. Exactly one of URL, Git and Debian is given.
type Source struct {
	URL    string   `toml:"url"` // of an archive, or a path
	SHA256 string   `toml:"sha256"`
	Git    string   `toml:"git"`    // a repository
	Commit string   `toml:"commit"` // 40 hexadecimal digits, or a branch or tag that the lock pins
	Debian string   `toml:"debian"` // a source package, NAME or NAME=VERSION
	Patch  []string `toml:"patch"`  // files, applied in this order with -p1
}

// Component is something that is built in a stage of its own, and of which only the prefix reaches the image.
type Component struct {
	Sources      []string          `toml:"sources"`  // names; see Recipe.ComponentSources
	Packages     []string          `toml:"packages"` // of the system, there while it is built
	Needs        []string          `toml:"needs"`    // other components
	Run          string            `toml:"run"`
	Prefix       string            `toml:"prefix"` // see Recipe.ComponentPrefix
	Env          map[string]string `toml:"env"`
	Workdir      string            `toml:"workdir"`        // relative to the first source's directory, or absolute
	MemoryPerJob string            `toml:"memory-per-job"` // see Component.JobMemory
	Network      bool              `toml:"network"`

	Line int `toml:"-"` // of the recipe, from 1
}

// JobMemory returns how many bytes one compiler needs, or 0 when the recipe does not say.
func (c Component) JobMemory() int64 {
	n, err := units.ParseSize(c.MemoryPerJob)
	if err != nil {
		return 0 // what Load returns has been checked
	}
	return n
}

// ComponentSources returns the names of the sources of a component: those that it lists, else the one of its own name, if there is one.
func (r *Recipe) ComponentSources(name string) []string {
	c := r.Component[name]
	if len(c.Sources) > 0 {
		return c.Sources
	}
	if _, ok := r.Source[name]; ok {
		return []string{name}
	}
	return nil
}

// ComponentPrefix returns the directory that a component is installed to, absolute and clean.
func (r *Recipe) ComponentPrefix(name string) string {
	if p := r.Component[name].Prefix; p != "" {
		return path.Clean(p)
	}
	return "/opt/" + name
}

// ComponentOrder returns the names of the components in the order of the file, which is that of their layers.
func (r *Recipe) ComponentOrder() []string {
	names := slices.Sorted(maps.Keys(r.Component))
	slices.SortStableFunc(names, func(a, b string) int { return r.Component[a].Line - r.Component[b].Line })
	return names
}

// ComponentClosure returns the components that some components need, directly or not, and these themselves, in the order of the file.
func (r *Recipe) ComponentClosure(names []string) []string {
	seen := make(map[string]bool)
	var visit func(names []string)
	visit = func(names []string) {
		for _, n := range names {
			if !seen[n] {
				seen[n] = true
				visit(r.Component[n].Needs)
			}
		}
	}
	visit(names)
	return slices.DeleteFunc(r.ComponentOrder(), func(n string) bool { return !seen[n] })
}

// patchDir is where patches of sources are usually kept, beside the recipe.
const patchDir = "patches"

// UnusedPatches lists the files below patches/ that neither a source nor a step applies, relative to the recipe. Of a recipe without
// sources nothing is said: the directory may be for something else.
func (r *Recipe) UnusedPatches() ([]string, error) {
	if len(r.Source) == 0 {
		return nil, nil
	}
	used := make(map[string]bool)
	for _, s := range r.Source {
		for _, p := range s.Patch {
			used[r.Resolve(p)] = true
		}
	}
	for _, s := range r.Steps {
		for _, text := range s.Patch {
			if p, err := s.ParsePatch(text); err == nil {
				used[r.Resolve(p.File)] = true
			}
		}
	}
	var unused []string
	err := filepath.WalkDir(r.Resolve(patchDir), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a directory that is not there or not to be read has no patches
		}
		if ext := path.Ext(file); (ext == ".patch" || ext == ".diff") && !used[file] {
			unused = append(unused, path.Join(patchDir, filepath.ToSlash(strings.TrimPrefix(file, r.Resolve(patchDir)+string(filepath.Separator)))))
		}
		return nil
	})
	return unused, err
}

func (c *checker) validateSources(r *Recipe) {
	for _, name := range slices.Sorted(maps.Keys(r.Source)) {
		c.validateSource(name, r.Source[name])
	}
}

func (c *checker) validateSource(name string, s Source) {
	n := c.find("source", name)
	if n == nil {
		return
	}
	label := "source." + name
	given := 0
	for _, text := range []string{s.URL, s.Git, s.Debian} {
		if text != "" {
			given++
		}
	}
	switch {
	case given == 0 && !c.isMisspelt(label, "url") && !c.isMisspelt(label, "git") && !c.isMisspelt(label, "debian"):
		c.add(n.key, `write url = "https://…" with sha256 = "…", git = "https://…" with commit = "…", or debian = "NAME=VERSION"`, "%s says nowhere where it comes from", label)
	case given > 1:
		c.add(n.key, "keep one of them", "%s has more than one of \"url\", \"git\" and \"debian\"", label)
	}
	for _, key := range []string{"url", "git"} {
		address := map[string]string{"url": s.URL, "git": s.Git}[key]
		if u, err := url.Parse(address); err == nil && u.User != nil && (u.Scheme == "http" || u.Scheme == "https" || hasPassword(u)) {
			c.add(c.at("source", name, key), "git asks its credential helper, and downloads read ~/.netrc", "%s.%s must not hold a user or password: it would end up in the lock", label, key)
		}
	}
	if s.SHA256 != "" && s.URL == "" {
		c.add(c.at("source", name, "sha256"), "", "%s.sha256 is the hash of an archive, and there is no \"url\"", label)
	}
	if s.Commit != "" && s.Git == "" {
		c.add(c.at("source", name, "commit"), "", "%s.commit is a commit of a repository, and there is no \"git\"", label)
	}
	if s.Git != "" && s.Commit == "" && !c.isMisspelt(label, "commit") {
		c.add(n.key, `add commit = "…": the hash of a commit, or a tag or branch, which the lock pins`, "%s has no \"commit\"", label)
	}
	if strings.HasPrefix(s.Commit, "-") {
		c.add(c.at("source", name, "commit"), "", "%s.commit: %q is no name of a commit", label, s.Commit)
	}
	for i, p := range s.Patch {
		c.validateFile(p, label+".patch", c.atItem(i, "source", name, "patch"))
	}
}

func hasPassword(u *url.URL) bool {
	_, has := u.User.Password()
	return has
}

func (c *checker) validateComponents(r *Recipe) {
	all := c.find("component")
	if all == nil || all.table == nil {
		return
	}
	for _, name := range all.table.names {
		how, ok := r.Component[name]
		if !ok {
			continue
		}
		n := all.table.nodes[name]
		how.Line = strings.Count(string(c.source[:n.key.offset]), "\n") + 1
		r.Component[name] = how
		c.validateComponent(r, name, how, n)
	}
	c.validateRound(r)
	c.validatePrefixes(r)
}

func (c *checker) validateComponent(r *Recipe, name string, how Component, n *node) {
	label := "component." + name
	if how.Run == "" && !c.isMisspelt(label, "run") {
		c.add(n.key, `add run = "./configure --prefix=$PREFIX && make -j$JOBS install"`, "%s has no \"run\"", label)
	}
	c.validateNames(how.Sources, "source", slices.Sorted(maps.Keys(r.Source)), "component", name, "sources")
	c.validateNames(how.Needs, "component", r.ComponentOrder(), "component", name, "needs")
	if len(r.ComponentSources(name)) == 0 && n.table != nil && n.table.nodes["sources"] == nil {
		c.add(n.key, fmt.Sprintf("add [source.%s], or name what it is built from: sources = [\"…\"]", name), "%s has no source: there is no [source.%s]", label, name)
	}
	if how.MemoryPerJob != "" && formSize.MatchString(how.MemoryPerJob) && how.JobMemory() < 1<<20 {
		c.add(c.at("component", name, "memory-per-job"), "", "%s.memory-per-job is less than any compiler needs, or more than there is", label)
	}
	for _, variable := range []string{"PREFIX", "JOBS"} {
		if _, ok := how.Env[variable]; ok {
			c.add(c.at("component", name, "env"), hintFor[variable], "%s.env sets %s, which sconce sets", label, variable)
		}
	}
	if strings.Contains("/"+how.Workdir+"/", "/../") {
		c.add(c.at("component", name, "workdir"), "", "%s.workdir must not have \"..\" in it", label)
	}
}

// hintFor says how the variables are decided that sconce sets for components.
var hintFor = map[string]string{
	"PREFIX": `prefix = "/opt/…" decides it`,
	"JOBS":   "it follows from cores and memory; memory-per-job says how much one compiler needs",
}

// validateNames wants the elements of a list to be names that there are.
func (c *checker) validateNames(names []string, what string, known []string, at ...string) {
	for i, name := range names {
		if slices.Contains(known, name) {
			continue
		}
		hint := fmt.Sprintf("add [%s.%s]", what, name)
		if near := spelling.Nearest(name, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		c.add(c.atItem(i, at...), hint, "%s: there is no [%s.%s]", strings.Join(at, "."), what, name)
	}
}

// validateRound refuses components that need each other.
func (c *checker) validateRound(r *Recipe) {
	state := make(map[string]int) // 1: being visited, 2: done
	var path []string
	var visit func(name string)
	visit = func(name string) {
		if state[name] == 2 {
			return
		}
		path = append(path, name)
		defer func() { path = path[:len(path)-1] }()
		if state[name] == 1 {
			round := path[slices.Index(path, name):]
			c.add(c.at("component", name, "needs"), "", "component.%s.needs goes round: %s", name, strings.Join(round, " needs "))
			return
		}
		state[name] = 1
		for _, n := range r.Component[name].Needs {
			if _, ok := r.Component[n]; ok {
				visit(n)
			}
		}
		state[name] = 2
	}
	for _, name := range r.ComponentOrder() {
		visit(name)
	}
}

// validatePrefixes refuses a prefix of one component within that of another: what one installs would seem to be the other's.
func (c *checker) validatePrefixes(r *Recipe) {
	names := r.ComponentOrder()
	for i, a := range names {
		for _, b := range names[:i] {
			pa, pb := r.ComponentPrefix(a), r.ComponentPrefix(b)
			if strings.HasPrefix(pa+"/", pb+"/") || strings.HasPrefix(pb+"/", pa+"/") {
				c.add(c.at("component", a), "give each a prefix of its own", "components %s and %s are installed to %s and %s, one within the other", b, a, pb, pa)
			}
		}
	}
}
