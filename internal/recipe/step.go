package recipe

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/units"
)

// Step is one change of the image: files copied, then patches applied, then links made, then a script run. At least one of Run, Copy,
// Patch and Link is given.
type Step struct {
	Name    string            `toml:"name"`  // see Step.Title
	Run     string            `toml:"run"`   // see Step.Args
	Copy    []string          `toml:"copy"`  // see Step.ParseCopy
	Patch   []string          `toml:"patch"` // see Step.ParsePatch
	Link    []string          `toml:"link"`  // see Step.ParseLink
	Env     map[string]string `toml:"env"`
	Workdir string            `toml:"workdir"` // absolute; "" is /
	User    string            `toml:"user"`    // USER[:GROUP]; "" is root
	Shell   []string          `toml:"shell"`   // see Step.Args
	Mounts  []string          `toml:"mounts"`  // see Recipe.ParseMount
	Network *bool             `toml:"network"` // see Step.HasNetwork

	Line int `toml:"-"` // of the recipe, from 1
}

// DefaultShell runs a script up to the first command that fails.
var DefaultShell = []string{"/bin/sh", "-ec"}

// Args returns the command that runs the script.
func (s Step) Args() []string {
	shell := s.Shell
	if len(shell) == 0 {
		shell = DefaultShell
	}
	return append(slices.Clone(shell), s.Run)
}

// archList is the variable from which torch.utils.cpp_extension takes what to compile for.
const archList = "TORCH_CUDA_ARCH_LIST"

// StepEnv returns the variables that a recipe gives a script, "NAME=VALUE", and, unless it is among them, what extensions of PyTorch are
// to be compiled for: compute capabilities of the target as "9.0".
func StepEnv(given map[string]string, gpu []string) []string {
	var env []string
	if _, ok := given[archList]; !ok && len(gpu) > 0 {
		env = append(env, archList+"="+strings.Join(gpu, ";"))
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		env = append(env, name+"="+given[name])
	}
	return env
}

// HasNetwork reports whether the script reaches the network.
func (s Step) HasNetwork() bool { return s.Network == nil || *s.Network }

// maxTitle is how long a title may be, in characters.
const maxTitle = 60

// Title returns the step's name, else what it does, on one line.
func (s Step) Title() string {
	title := s.Name
	switch {
	case title != "":
	case s.Run != "":
		title, _, _ = strings.Cut(strings.TrimSpace(s.Run), "\n")
	case len(s.Copy) > 0:
		title = "copy " + strings.Join(s.Copy, " ")
	case len(s.Patch) > 0:
		title = "patch " + strings.Join(s.Patch, " ")
	default:
		title = "link " + strings.Join(s.Link, " ")
	}
	if runes := []rune(printable(title)); len(runes) > maxTitle {
		return string(runes[:maxTitle-1]) + "…"
	}
	return printable(title)
}

// Copy is one element of [Step.Copy].
type Copy struct {
	Source string // a pattern, relative to the recipe's directory or absolute; see Recipe.CopySource
	Dest   string // absolute; ends in / when a directory is meant
}

// ParseCopy reads "SRC:DEST" or, for a step with a workdir, "SRC".
func (s Step) ParseCopy(text string) (Copy, error) {
	if m := transport.FindString(text); m != "" {
		return Copy{}, fault.Hint(fmt.Errorf("%q is an address, and files are copied", text), "download it in run, and compare its hash there")
	}
	i := strings.LastIndexByte(text, ':')
	source, dest := text, ""
	if i >= 0 {
		source, dest = text[:i], text[i+1:]
	}
	if source == "" || i >= 0 && dest == "" {
		return Copy{}, fault.Hint(fmt.Errorf("%q names nothing on one side of the colon", text), `write SRC:DEST, such as "src:/opt/src"`)
	}
	if _, err := path.Match(source, ""); err != nil {
		return Copy{}, fmt.Errorf("%q is not a pattern: a bracket or a backslash has no end", source)
	}
	if dest == "" {
		dest = "./"
	}
	full, err := s.inWorkdir(dest, fmt.Sprintf("write %s:/opt/%s, or add workdir", source, path.Base(source)))
	if err != nil {
		return Copy{}, err
	}
	if isPattern(source) && !strings.HasSuffix(full, "/") {
		return Copy{}, fault.Hint(fmt.Errorf("%q may be many files, and %q is one name", source, dest), "end the destination with a slash: "+source+":"+dest+"/")
	}
	return Copy{Source: source, Dest: full}, nil
}

// inWorkdir makes a path of the image absolute. A slash at its end stays.
func (s Step) inWorkdir(dest, hint string) (string, error) {
	if !strings.HasPrefix(dest, "/") && s.Workdir == "" {
		return "", fault.Hint(fmt.Errorf("there is no workdir from which %q could start", dest), hint)
	}
	full := path.Clean(dest)
	if !strings.HasPrefix(dest, "/") {
		full = path.Join("/", s.Workdir, dest)
	}
	if strings.HasSuffix(dest, "/") && full != "/" {
		full += "/"
	}
	return full, nil
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// CopySource returns the directory that the pattern of c starts from, absolute, and the pattern below it. The directory is
// the recipe's own unless the pattern leads out of it.
func (r *Recipe) CopySource(c Copy) (dir, pattern string) {
	source := path.Clean(c.Source)
	if filepath.IsLocal(source) {
		return r.Dir, source
	}
	parts := strings.Split(source, "/")
	fixed := slices.IndexFunc(parts, isPattern)
	if fixed < 0 {
		fixed = len(parts) - 1
	}
	if parts[fixed] == ".." { // nothing but the way up
		fixed++
	}
	dir = r.Resolve(strings.Join(parts[:fixed], "/") + "/")
	return dir, cleanPattern(strings.Join(parts[fixed:], "/"))
}

func cleanPattern(s string) string {
	if s == "" {
		return "."
	}
	return s
}

// Patch is one element of [Step.Patch].
type Patch struct {
	File string // relative to the recipe's directory, or absolute; see Recipe.Resolve
	Dir  string // absolute: where the names in it start
}

// ParsePatch reads "FILE:DIR" or, for a step with a workdir, "FILE".
func (s Step) ParsePatch(text string) (Patch, error) {
	i := strings.LastIndexByte(text, ':')
	file, dir := text, "."
	if i >= 0 {
		file, dir = text[:i], text[i+1:]
	}
	if file == "" || dir == "" {
		return Patch{}, fault.Hint(fmt.Errorf("%q names nothing on one side of the colon", text), `write FILE:DIR, such as "fix.patch:/opt/src"`)
	}
	full, err := s.inWorkdir(dir, fmt.Sprintf("write %s:/opt/src, or add workdir", file))
	if err != nil {
		return Patch{}, err
	}
	return Patch{File: file, Dir: path.Clean(full)}, nil
}

// Link is one element of [Step.Link].
type Link struct {
	Target string // what the link says
	Path   string // its name, absolute
}

// maxTarget bounds what a link may say, in bytes: PATH_MAX of Linux, without the zero at its end.
const maxTarget = 4095

// ParseLink reads "TARGET:NAME" or, for a step with a workdir, "TARGET".
func (s Step) ParseLink(text string) (Link, error) {
	i := strings.LastIndexByte(text, ':')
	target, name := text, "./"
	if i >= 0 {
		target, name = text[:i], text[i+1:]
	}
	if target == "" || name == "" {
		return Link{}, fault.Hint(fmt.Errorf("%q names nothing on one side of the colon", text), `write TARGET:NAME, such as "/opt/app/bin/app:/usr/local/bin/app"`)
	}
	if strings.ContainsRune(text, 0) {
		return Link{}, fmt.Errorf("%q: no name has a zero in it", text)
	}
	if len(target) > maxTarget {
		return Link{}, fmt.Errorf("the target has %d bytes, and %d are the most", len(target), maxTarget)
	}
	full, err := s.inWorkdir(name, fmt.Sprintf("write %s:/usr/local/bin/%s, or add workdir", target, path.Base(target)))
	if err != nil {
		return Link{}, err
	}
	if strings.HasSuffix(full, "/") {
		full += path.Base(target)
	}
	if full = path.Clean(full); full == "/" {
		return Link{}, fault.Hint(fmt.Errorf("%q names no link", text), "give it a name: "+target+":/NAME")
	}
	return Link{Target: target, Path: full}, nil
}

func (c *checker) validateSteps(steps []Step) {
	list := c.find("step")
	if list == nil || len(list.items) != len(steps) {
		return
	}
	for i, item := range list.items {
		if item.table == nil {
			continue
		}
		steps[i].Line = strings.Count(string(c.source[:item.key.offset]), "\n") + 1
		c.validateStep(steps[i], item, labelOf(root().fields["step"], i, item))
	}
}

func (c *checker) validateStep(s Step, n *node, label string) {
	c.validateWork(s, n, label)
	c.validateScript(s, n, label)
	c.eachItem(n, "copy", func(text string, at span) error {
		to, err := s.ParseCopy(text)
		if err == nil && !isPattern(to.Source) {
			c.validateExists(to.Source, label+": copy", at)
		}
		return err
	}, label)
	c.eachItem(n, "patch", func(text string, at span) error {
		p, err := s.ParsePatch(text)
		if err == nil {
			c.validateFile(p.File, label+": patch", at)
		}
		return err
	}, label)
	c.eachItem(n, "link", func(text string, _ span) error {
		_, err := s.ParseLink(text)
		return err
	}, label)
	c.validateMounts(n, label)
}

// eachItem calls f for the elements of a list in the step n, and records the errors that it returns.
func (c *checker) eachItem(n *node, name string, f func(text string, at span) error, label string) {
	list := n.table.nodes[name]
	if list == nil {
		return
	}
	for _, item := range list.items {
		if item.text == "" {
			continue // reported
		}
		if err := f(item.text, item.value); err != nil {
			c.add(item.value, fault.HintOf(err), "%s: %s: %s", label, name, err)
		}
	}
}

// validateWork wants the step to do something.
func (c *checker) validateWork(s Step, n *node, label string) {
	for _, name := range []string{"run", "copy", "patch", "link"} {
		if n.table.misspells(root().fields["step"], name) {
			return
		}
	}
	if s.Run == "" && len(s.Copy)+len(s.Patch)+len(s.Link) == 0 && n.table.nodes["run"] == nil {
		c.add(n.key, `add run = "make install", copy = ["src:/opt/src"] or patch = ["fix.patch:/opt/src"]`, "%s does nothing: it has no \"run\", \"copy\", \"patch\" or \"link\"", label)
	}
}

func (c *checker) validateScript(s Step, n *node, label string) {
	if shell := n.table.nodes["shell"]; shell != nil && len(s.Shell) == 0 {
		c.add(shell.value, `write shell = ["/bin/bash", "-ec"]`, "%s: shell names no program", label)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(s.Run), "\n")
	if program, ok := strings.CutPrefix(first, "#!"); ok && len(s.Shell) == 0 {
		c.add(n.table.nodes["run"].value, hintForShebang(program), "%s: the first line of run has no effect, because %s reads the script", label, DefaultShell[0])
	}
}

// hintForShebang writes as a shell what a script's first line asks for.
func hintForShebang(line string) string {
	words := strings.Fields(line)
	option := "-c"
	if len(words) > 0 && strings.HasSuffix(words[len(words)-1], "sh") {
		option = "-ec"
	}
	words = append(words, option)
	return "write shell = [" + units.Quoted(words) + "]"
}

func (c *checker) validateExists(file, name string, at span) {
	if _, err := os.Lstat(resolve(c.dir, file)); err != nil {
		c.add(at, "", "%s: there is no file or directory %q beside the recipe", name, file)
	}
}
