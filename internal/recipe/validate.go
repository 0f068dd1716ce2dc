package recipe

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// validate finds the mistakes that no single key shows. r may be incomplete when other problems have been reported.
func (c *checker) validate(r *Recipe) {
	if r.Name == "" {
		c.addMissing("", "name", `name = "my-image"`)
	}
	c.validateBase(r.Base)
	c.validateConda(r.Conda)
	c.validatePython(r.Python)
	c.validateCompile(r)
	c.validateSources(r)
	c.validateComponents(r)
	c.validateSteps(r.Steps)
	c.validateJobs(r.Jobs)
	c.validateTests(r.Tests)
	c.validateTarget(r.Target)
	c.validateSlim(r)
	c.validateRemove(r.Slim.Remove, "slim", "remove")
	c.validateCache(r.Cache)
	c.validateRepository(r.Publish.Repository, "publish", "repository")
	c.validateReach(r)
}

// validateRepository wants the registry spelled out: what goes nowhere in particular must not go to a public one.
func (c *checker) validateRepository(repository, table, name string) {
	host, _, _ := strings.Cut(repository, "/")
	if repository == "" || host == "localhost" || strings.ContainsAny(host, ".:") {
		return
	}
	c.add(c.at(table, name), "put the registry first, such as registry.example.org/"+repository,
		"%s.%s %q names no registry", table, name, repository)
}

func (c *checker) validateCache(cache Cache) {
	c.validateRepository(cache.Registry, "cache", "registry")
	if n := c.find("cache", "push"); n != nil && cache.Registry == "" && !c.isMisspelt("cache", "registry") {
		c.add(n.key, `add registry = "registry.example.org/team/cache"`, "cache.push: there is no registry to send anything to")
	}
}

// validateTarget wants the file of a profile to be there. Whether there is a cluster of a name is not for the recipe to know.
func (c *checker) validateTarget(t Target) {
	if strings.Contains(t.Cluster, "/") || strings.HasSuffix(t.Cluster, ".toml") {
		c.validateFile(t.Cluster, "target.cluster", c.at("target", "cluster"))
	}
}

func (c *checker) validateSlim(r *Recipe) {
	switch {
	case r.Slim.GPU && r.Target.Cluster == "" && len(r.Target.GPU) == 0 && !c.isMisspelt("target", "cluster") && !c.isMisspelt("target", "gpu"):
		c.add(c.at("slim", "gpu"), `add gpu = ["9.0"], or a cluster, under [target]`, "slim.gpu: the recipe does not say for which GPUs")
	case r.Slim.GPU:
	case r.Slim.PTX != "" || r.Slim.Relfatbin != "":
		c.add(c.at("slim"), "add gpu = true", "[slim] says how device code is taken out, but not \"gpu\"")
	}
}

// validateRemove refuses patterns that match nothing or everything.
func (c *checker) validateRemove(patterns []string, names ...string) {
	key := strings.Join(names, ".")
	for i, pattern := range patterns {
		at := c.atItem(i, names...)
		switch _, err := path.Match(pattern, ""); {
		case err != nil:
			c.add(at, "", "%s: %q is not a pattern: a bracket or a backslash has no end", key, pattern)
		case strings.Trim(pattern, "*/.") == "":
			c.add(at, `name what is not needed, such as "*.a" or "/usr/share/doc/**"`, "%s: %q would remove everything", key, pattern)
		case slices.Contains(strings.Split(pattern, "/"), ".."):
			c.add(at, "", "%s: %q must not have \"..\" in it", key, pattern)
		}
	}
}

func (c *checker) find(names ...string) *node {
	t := c.doc
	var n *node
	for _, name := range names {
		if t == nil {
			return nil
		}
		if n = t.nodes[name]; n == nil {
			return nil
		}
		t = n.table
	}
	return n
}

// at returns the place of the value at a path; of the nearest table above it when there is none.
func (c *checker) at(names ...string) span {
	for ; len(names) > 0; names = names[:len(names)-1] {
		if n := c.find(names...); n != nil {
			return n.value
		}
	}
	return span{}
}

// atItem returns the place of a list's element.
func (c *checker) atItem(i int, names ...string) span {
	if n := c.find(names...); n != nil && i < len(n.items) {
		return n.items[i].value
	}
	return c.at(names...)
}

// addMissing reports a key that must be there, unless an unknown key has been taken for it.
func (c *checker) addMissing(table, name, example string) {
	if c.isMisspelt(table, name) {
		return
	}
	if table == "" {
		c.add(span{}, "add "+example, "the recipe has no %q", name)
		return
	}
	c.add(c.at(strings.Split(table, ".")...), "add "+example, "[%s] has no %q", table, name)
}

// isMisspelt reports whether the table has an unknown key whose nearest known one is name.
func (c *checker) isMisspelt(path, name string) bool {
	t, s := c.doc, c.top
	if path != "" {
		for part := range strings.SplitSeq(path, ".") {
			n := t.nodes[part]
			if n == nil || n.table == nil {
				return false
			}
			if t, s = n.table, s.child(part); s == nil {
				return false
			}
		}
	}
	return t.misspells(s, name)
}

// misspells reports whether t, which is of shape s, has an unknown key whose nearest known one is name.
func (t *table) misspells(s *shape, name string) bool {
	return slices.ContainsFunc(t.names, func(given string) bool {
		return s.fields[given] == nil && spelling.Nearest(given, s.names) == name
	})
}

const baseExample = `bootstrap = { suite = "bookworm", packages = ["python3"] }`

func (c *checker) validateBase(b Base) {
	hasImage, hasBootstrap, hasRecipe := c.find("base", "image") != nil, c.find("base", "bootstrap") != nil, c.find("base", "recipe") != nil
	c.validateRemove(b.Remove, "base", "remove")
	switch {
	case c.find("base") == nil && c.isMisspelt("", "base"):
	case c.find("base") == nil:
		c.add(span{}, "add [base] with image = … or "+baseExample, "the recipe has no [base]")
	case hasImage && hasBootstrap:
		c.add(c.find("base", "bootstrap").key, "keep one of them", "[base] has both \"image\" and \"bootstrap\"")
	case hasRecipe && (hasImage || hasBootstrap):
		c.add(c.find("base", "recipe").key, "keep one of them", "[base] has \"recipe\" and something else to stand on")
	case hasRecipe:
		c.validateBaseRecipe(b.Recipe)
	case hasBootstrap:
		c.validateBootstrap(b.Bootstrap)
	case !hasImage:
		c.addMissing("base", "image", `image = "debian:12" or `+baseExample)
	default:
		c.validateImage(b.Image, "base.image", c.at("base", "image"))
	}
}

// validateBaseRecipe wants the other recipe to be there. Whether it is right, and has the variant, it says itself.
func (c *checker) validateBaseRecipe(ref string) {
	path, _ := SplitVariant(resolve(c.dir, ref))
	if _, err := os.Stat(fileOf(path)); err != nil {
		c.add(c.at("base", "recipe"), "name its directory, relative to this recipe's, such as \"../base\"", "base.recipe: there is no recipe at %q", ref)
	}
}

var transport = lazyregexp.New(`^([A-Za-z][A-Za-z0-9+.-]*)://`)

func (c *checker) validateImage(image, name string, at span) {
	if m := transport.FindStringSubmatch(image); m != nil && m[1] != "docker" {
		hint := "a registry reference is written without it, or with docker://"
		for t := range pathTransports {
			if t == m[1] {
				hint = fmt.Sprintf("write %s:PATH", t)
			}
		}
		c.add(at, hint, "%s cannot be read from %s://", name, m[1])
		return
	}
	if t, value, ok := strings.Cut(image, ":"); ok && value == "" {
		c.add(at, "", "%s %q names nothing after %q", name, image, t+":")
	}
}

func (c *checker) validateBootstrap(b *Bootstrap) {
	if b == nil || b.Suite == "" && b.Dnf == "" {
		c.addMissing("base.bootstrap", "suite", `suite = "bookworm" or dnf = "rocky:9"`)
		return
	}
	if b.Dnf != "" {
		c.validateDnf(b)
	} else {
		c.validateItems(b.Packages, formDebian, `names of Debian packages, such as "python3" or "libibverbs1=44.0-2"`, "base", "bootstrap", "packages")
		c.validateItems(b.Sources, formSource, "an address, a suite and components, with blanks between them", "base", "bootstrap", "sources")
	}
	u, err := url.Parse(b.Mirror)
	at := c.at("base", "bootstrap", "mirror")
	switch {
	case err != nil:
		c.add(at, "", "base.bootstrap.mirror is not an address")
	case u.User != nil:
		c.add(at, "~/.netrc has them", "base.bootstrap.mirror must not hold a user or password: it would end up in the lock")
	}
	for i, file := range b.Keys {
		c.validateFile(file, "base.bootstrap.keys", c.atItem(i, "base", "bootstrap", "keys"))
	}
	if b.Trusted && len(b.Keys) > 0 {
		c.add(c.at("base", "bootstrap", "trusted"), "keep one of them", "base.bootstrap.trusted asks for no signature, and base.bootstrap.keys says whose")
	}
}

// validateDnf checks what means something else, or nothing, for RPM packages.
func (c *checker) validateDnf(b *Bootstrap) {
	isAddress := strings.Contains(b.Dnf, "://")
	if b.Suite != "" {
		c.add(c.at("base", "bootstrap", "dnf"), "keep one of them", "base.bootstrap has both \"suite\", of Debian's or Ubuntu's packages, and \"dnf\", of RPM's")
	}
	if len(b.Components) > 0 {
		c.add(c.at("base", "bootstrap", "components"), "name further repositories by their addresses in sources", "base.bootstrap.components are areas of Debian's archives, and repositories of RPM packages have none")
	}
	if b.Mirror != "" && isAddress {
		c.add(c.at("base", "bootstrap", "mirror"), "keep one of them", "base.bootstrap.mirror says where a release is, and base.bootstrap.dnf names an address itself")
	}
	if isAddress && len(b.Keys) == 0 && !b.Trusted {
		c.add(c.at("base", "bootstrap", "dnf"), "name the file of the key that the distribution publishes: keys = [\"RPM-GPG-KEY\"]", "base.bootstrap.keys is missing: nobody says who signs the packages of %s", b.Dnf)
	}
	if b.Variant != "" && b.Variant != "essential" && b.Variant != "minbase" {
		c.add(c.at("base", "bootstrap", "variant"), "write \"essential\", or \"minbase\" with a package manager", "base.bootstrap.variant = %q is one of Debian's", b.Variant)
	}
	c.validateItems(b.Packages, formRPM, `names of RPM packages, such as "python3" or "python3=3.9.18"`, "base", "bootstrap", "packages")
	c.validateItems(b.Sources, formRPMSource, "addresses of repositories", "base", "bootstrap", "sources")
}

// validateItems checks a list whose form depends on another key.
func (c *checker) validateItems(items []string, form *lazyregexp.Regexp, are string, path ...string) {
	for i, item := range items {
		if !form.MatchString(item) {
			c.add(c.atItem(i, path...), "", "%s must be %s, not %q", strings.Join(path, "."), are, item)
		}
	}
}

// maxPrefix is how long the path of a conda environment may be, in bytes; see formPrefix.
const maxPrefix = 100

func (c *checker) validateConda(conda Conda) {
	for i, file := range conda.Environment {
		c.validateFile(file, "conda.environment", c.atItem(i, "conda", "environment"))
	}
	if len(conda.Prefix) > maxPrefix {
		c.add(c.at("conda", "prefix"), "", "conda.prefix has %d letters, and more than %d do not fit into the files of packages", len(conda.Prefix), maxPrefix)
	}
	if conda.Lock != "" {
		c.validateFile(conda.Lock, "conda.lock", c.at("conda", "lock"))
		for _, other := range []string{"environment", "packages", "channels"} {
			if n := c.find("conda", other); n != nil {
				c.add(n.key, "keep one of them", "conda.%s cannot be given beside conda.lock, which is used as it is", other)
			}
		}
	}
	for _, of := range []string{"lock-categories", "lock-environment"} {
		if n := c.find("conda", of); n != nil && conda.Lock == "" {
			c.add(n.key, `name the lock: lock = "conda-lock.yml"`, "conda.%s says what of a lock of your own is taken, and there is none", of)
		}
	}
	if n := c.find("conda"); n != nil && !conda.Asked() && !c.isMisspelt("conda", "environment") && !c.isMisspelt("conda", "packages") && !c.isMisspelt("conda", "lock") {
		c.add(n.key, `add environment = ["environment.yml"] or packages = ["python=3.12"]`, "[conda] says nothing of what the environment holds")
	}
}

func (c *checker) validatePython(p Python) {
	c.validateRequirements(p.Packages, "python", "packages")
	c.validateFiles(p)
	if p.Lock != "" {
		c.validateLockAlone()
	}
	if n := c.find("python", "install-project"); n != nil && p.Project == "" {
		c.add(n.key, "add project = \".\"", "python.install-project has nothing to install without python.project")
	}
	if p.Lock == "" && p.Project == "" {
		for _, name := range []string{"extras", "groups"} {
			if n := c.find("python", name); n != nil {
				c.add(n.key, "add project or lock", "python.%s has nothing to choose from without python.project or python.lock", name)
			}
		}
	}
}

func (c *checker) validateRequirements(requirements []string, names ...string) {
	for i, req := range requirements {
		if message, hint := requirementProblem(req); message != "" {
			c.add(c.atItem(i, names...), hint, "%s: %q is not a requirement: %s", strings.Join(names, "."), req, message)
		}
	}
}

func (c *checker) validateLockAlone() {
	for _, other := range []string{"packages", "requirements", "project"} {
		if n := c.find("python", other); n != nil {
			c.add(n.key, "keep one of them", "python.%s cannot be given beside python.lock, which is used as it is", other)
		}
	}
}

func (c *checker) validateFiles(p Python) {
	for i, file := range p.Requirements {
		c.validateFile(file, "python.requirements", c.atItem(i, "python", "requirements"))
	}
	if path.Base(p.Lock) == "uv.lock" {
		c.add(c.at("python", "lock"), "`uv export --format pylock.toml -o pylock.toml` writes one from uv.lock",
			"python.lock must be a pylock.toml (PEP 751), not uv's own %q", p.Lock)
	} else if p.Lock != "" {
		c.validateFile(p.Lock, "python.lock", c.at("python", "lock"))
	}
	if p.Project != "" {
		c.validateProject(p.Project)
	}
}

func (c *checker) validateFile(file, name string, at span) {
	info, err := os.Stat(resolve(c.dir, file))
	switch {
	case err != nil:
		c.add(at, "", "%s: there is no file %q beside the recipe", name, file)
	case info.IsDir():
		c.add(at, "", "%s: %q is a directory, not a file", name, file)
	}
}

func (c *checker) validateProject(dir string) {
	at := c.at("python", "project")
	info, err := os.Stat(resolve(c.dir, dir))
	if err != nil {
		c.add(at, "", "python.project: there is no directory %q beside the recipe", dir)
		return
	}
	if !info.IsDir() {
		c.add(at, "name the directory that holds pyproject.toml", "python.project: %q is a file", dir)
		return
	}
	if _, err := os.Stat(filepath.Join(resolve(c.dir, dir), "pyproject.toml")); err != nil {
		c.add(at, "", "python.project: %q has no pyproject.toml", dir)
	}
}

var (
	requirementHead = lazyregexp.New(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*`)
	versionClause   = lazyregexp.New(`^\s*(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]+\s*$`)
	bareVersion     = lazyregexp.New(`^=?\s*[0-9][A-Za-z0-9_.*+!-]*$`)
)

// editable is how pip is told to link to a working copy.
var editable = lazyregexp.New(`^(?:-e|--editable)(?:[ =]|$)`)

// condaNames are packages that are called so for conda only, with what to do instead. On the Python package index there is nothing of
// that name, or something else.
var condaNames = map[string]string{
	"pytorch":         `write torch`,
	"pytorch-gpu":     `write torch; torch-backend = "cu128" under [python] chooses its CUDA`,
	"pytorch-cpu":     `write torch, and torch-backend = "cpu" under [python]`,
	"pytorch-cuda":    `leave it out: torch-backend = "cu128" under [python] chooses torch's CUDA, which comes with torch`,
	"pytorch-mutex":   `leave it out: torch-backend under [python] chooses the build of torch`,
	"cpuonly":         `leave it out, and write torch-backend = "cpu" under [python]`,
	"cudatoolkit":     `leave it out: torch brings its CUDA, and a base such as nvidia/cuda:12.8.1-devel-ubuntu24.04 has all of it`,
	"cudatoolkit-dev": `leave it out, and take a base that has it, such as nvidia/cuda:12.8.1-devel-ubuntu24.04`,
	"py-opencv":       `write opencv-python-headless`,
	"libopencv":       `write opencv-python-headless`,
	"pytables":        `write tables`,
	"msgpack-python":  `write msgpack`,
	"matplotlib-base": `write matplotlib`,
	"python-graphviz": `write graphviz`,
	"dask-core":       `write dask`,
}

// requirementProblem says roughly what is wrong with a PEP 508 requirement, and what to do. uv reads it exactly later;
// this catches slips early and with a place.
func requirementProblem(s string) (message, hint string) {
	switch {
	case editable.MatchString(s):
		return "an image has no working copy that a package could be linked to", "write NAME @ ./DIRECTORY for the package itself, or project = \"DIRECTORY\" for what it depends on"
	case strings.HasPrefix(s, "-"):
		return "options belong in a requirements file", "name that file in python.requirements"
	case strings.HasPrefix(s, "."), strings.HasPrefix(s, "/"), strings.HasSuffix(s, ".whl") && !strings.Contains(s, "@"), transport.MatchString(s), strings.HasPrefix(s, "git+"):
		return "a file or address needs the package's name before it", "write NAME @ " + s
	}
	head := requirementHead.FindStringSubmatch(s)
	if head == nil {
		return "it must start with a package's name", ""
	}
	rest := s[len(head[0]):]
	if answer, ok := condaNames[strings.ReplaceAll(strings.ToLower(head[1]), "_", "-")]; ok && !strings.HasPrefix(rest, "@") {
		return "that is conda's name of it", answer
	}
	if rest, message = skipExtras(rest); message != "" {
		return message, "extras are written NAME[one,two]"
	}
	if strings.HasPrefix(rest, "@") {
		return addressProblem(rest[1:])
	}
	version, marker, hasMarker := strings.Cut(rest, ";")
	if hasMarker && strings.TrimSpace(marker) == "" {
		return "nothing follows the semicolon", ""
	}
	return versionProblem(head[1], strings.TrimSpace(version))
}

func skipExtras(s string) (rest, message string) {
	if !strings.HasPrefix(s, "[") {
		return s, ""
	}
	extras, rest, closed := strings.Cut(s[1:], "]")
	if !closed {
		return "", "the bracket is not closed"
	}
	for e := range strings.SplitSeq(extras, ",") {
		if e = strings.TrimSpace(e); !formPackage.MatchString(e) && strings.TrimSpace(extras) != "" {
			return "", fmt.Sprintf("%q is not the name of an extra", e)
		}
	}
	return strings.TrimSpace(rest), ""
}

func addressProblem(s string) (message, hint string) {
	address, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	if !strings.Contains(address, ":") && !isPath(address) {
		return "what follows @ is not an address", "write ./path/from/here, file:///path/to/file.whl, https://… or git+https://…"
	}
	return "", ""
}

func versionProblem(name, s string) (message, hint string) {
	if s == "" {
		return "", ""
	}
	if bareVersion.MatchString(s) {
		return "a version needs an operator", fmt.Sprintf("write %s==%s", name, strings.TrimSpace(strings.TrimPrefix(s, "=")))
	}
	if strings.HasPrefix(s, "(") != strings.HasSuffix(s, ")") {
		return "the parentheses do not match", ""
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "("), ")")
	clauses := strings.Split(strings.TrimSuffix(strings.TrimSpace(s), ","), ",")
	for _, clause := range clauses {
		if !versionClause.MatchString(clause) {
			return fmt.Sprintf("%q is not a version condition", strings.TrimSpace(clause)), "write for example NAME>=1.2,<2"
		}
	}
	return "", ""
}
