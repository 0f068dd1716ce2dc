package recipe

import (
	"slices"
	"strings"

	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/units"
)

// Compile says how a Python package that has no wheel is built into one.
type Compile struct {
	Isolation    *bool             `toml:"isolation"` // nil: as is known of the package, else true
	CUDA         *bool             `toml:"cuda"`      // nil: as is known of the package, else false
	Requires     []string          `toml:"requires"`  // PEP 508: what else must be there while it is built
	Env          map[string]string `toml:"env"`
	MemoryPerJob string            `toml:"memory-per-job"` // see Compile.JobMemory
	Jobs         int               `toml:"jobs"`           // 0: from the cores and the memory
	Base         string            `toml:"base"`           // image to build in, see Recipe.ImageReference; "" is the image itself
	Needs        []string          `toml:"needs"`          // components that must be there while it is built
	Network      bool              `toml:"network"`        // it may download while it is built
	Depends      []string          `toml:"depends"`        // PEP 508: its Requires-Dist, when its metadata cannot be had without building
}

// JobMemory returns how many bytes one compiler needs, or 0 when the recipe does not say.
func (c Compile) JobMemory() int64 {
	n, err := units.ParseSize(c.MemoryPerJob)
	if err != nil {
		return 0 // what Load returns has been checked
	}
	return n
}

func normalNames(m map[string]Compile) map[string]Compile {
	if m == nil {
		return nil
	}
	normal := make(map[string]Compile, len(m))
	for name, c := range m {
		normal[spelling.Distribution(name)] = c
	}
	return normal
}

// pythonSources are the keys that say which packages are wanted.
var pythonSources = []string{"packages", "requirements", "project", "lock"}

// Asked reports whether any Python packages are wanted.
func (p Python) Asked() bool {
	return len(p.Packages)+len(p.Requirements)+len(p.Listed) > 0 || p.Project != "" || p.Lock != ""
}

func (c *checker) validateCompile(r *Recipe) {
	p := r.Python
	all := c.find("python", "compile")
	if all == nil || all.table == nil {
		return
	}
	if !p.Asked() && len(r.Conda.Environment) == 0 && !c.isMisspelt("", "python") && !slices.ContainsFunc(pythonSources, func(name string) bool { return c.isMisspelt("python", name) }) {
		c.add(all.key, "name what is wanted in python.packages", "python.compile: nothing is installed that could be compiled")
	}
	seen := map[string]string{}
	for _, name := range all.table.names {
		n := all.table.nodes[name]
		if other := seen[spelling.Distribution(name)]; other != "" {
			c.add(n.key, "keep one of them", "python.compile has %q and %q, which name the same package", other, name)
		}
		seen[spelling.Distribution(name)] = name
		c.validateCompiled(name, p.Compile[name])
		c.validateNames(p.Compile[name].Needs, "component", r.ComponentOrder(), "python", "compile", name, "needs")
	}
}

func (c *checker) validateCompiled(name string, how Compile) {
	path := []string{"python", "compile", name}
	c.validateRequirements(how.Requires, append(path, "requires")...)
	c.validateRequirements(how.Depends, append(path, "depends")...)
	if how.Base != "" {
		c.validateImage(how.Base, strings.Join(path, ".")+".base", c.at(append(path, "base")...))
	}
	if n := c.find(append(path, "memory-per-job")...); n != nil && formSize.MatchString(how.MemoryPerJob) && how.JobMemory() < 1<<20 {
		c.add(n.value, "", "%s.memory-per-job is less than any compiler needs, or more than there is", strings.Join(path, "."))
	}
}
