package condalock

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// maxFile is far above the size of any environment file or lock, in bytes.
const maxFile = 64 << 20

// Environment is an environment file (CEP 24), with its selectors applied for one platform.
type Environment struct {
	File       string // as it was named
	Name       string
	Prefix     string
	Channels   []string // as written, in order, without "nodefaults"
	NoDefaults bool     // "nodefaults" is among the channels: no other channels are added
	Platforms  []string
	Specs      []Spec // of conda packages, in order
	Pip        []PipItem
	Variables  map[string]string
	Warnings   []Warning // of keys that have no effect, each with its place
}

// Spec is one conda requirement, a MatchSpec (CEP 29), and where it stands. The solver checks what is in it.
type Spec struct {
	Text         string
	Line, Column int // from 1 on; 0 when it does not come from a file
}

// ReadEnvironment reads an environment file. platform is the channels' name of the target, "linux-64", for which selectors are
// evaluated: comments (`# [linux]`, as conda-lock understands them) and keys (`sel(linux):`, as mamba does). All mistakes are
// told at once, each with its line and column.
func ReadEnvironment(file, platform string) (*Environment, error) {
	text, err := ctxio.ReadRegular(file, maxFile)
	if err != nil {
		return nil, fmt.Errorf("environment file: %w", err)
	}
	return parseEnvironment(file, platform, text)
}

// parseEnvironment is [ReadEnvironment] of a text; file names it in messages.
func parseEnvironment(file, platform string, text []byte) (*Environment, error) {
	r := &environmentReader{env: &Environment{File: file}, platform: platform}
	text = r.filterLines(text)
	if len(r.problems) > 0 {
		return nil, r.err()
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, yamlError(file, err)
	}
	if len(doc.Content) == 0 {
		return nil, fault.Usage(fmt.Errorf("%s:1:1: the environment file is empty", file))
	}
	r.top(doc.Content[0])
	return r.env, r.err()
}

var yamlLine = lazyregexp.New(`^yaml: (?:line (\d+): )?`)

// yamlError puts the line that the YAML library tells where sconce has it.
func yamlError(file string, err error) error {
	text := err.Error()
	at := file
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = strings.TrimPrefix(text, m[0])
		if m[1] != "" {
			at += ":" + m[1] + ":1"
		}
	}
	return fault.Usage(fmt.Errorf("%s: not YAML: %s", at, text))
}

// environmentReader collects an environment and what is wrong with it.
type environmentReader struct {
	env      *Environment
	platform string
	problems []error
}

func (r *environmentReader) err() error { return fault.Usage(errors.Join(r.problems...)) }

func (r *environmentReader) wrong(n *yaml.Node, format string, args ...any) {
	at := fmt.Sprintf("%s:%d:%d: ", r.env.File, n.Line, n.Column)
	r.problems = append(r.problems, fmt.Errorf(at+format, args...))
}

// wrongHint is wrong with a line of what to do.
func (r *environmentReader) wrongHint(n *yaml.Node, hint, format string, args ...any) {
	r.wrong(n, format, args...)
	last := len(r.problems) - 1
	r.problems[last] = fault.Hint(r.problems[last], hint)
}

func (r *environmentReader) top(n *yaml.Node) {
	if n = follow(n); n.Kind != yaml.MappingNode {
		r.wrong(n, "an environment file is a mapping: name, channels, dependencies")
		return
	}
	seen := map[string]bool{}
	for key, value := range pairs(n) {
		if seen[key.Value] {
			r.wrong(key, "%q is there twice", key.Value)
		}
		seen[key.Value] = true
		r.key(key, follow(value))
	}
	if !seen["dependencies"] {
		r.wrongHint(n, "list what to install: dependencies: [python=3.12]", "no dependencies")
	}
}

func (r *environmentReader) key(key, value *yaml.Node) {
	switch key.Value {
	case "name":
		r.env.Name = r.text(value, "name")
		if strings.ContainsAny(r.env.Name, "/ :#") {
			r.wrong(value, `the name %q has one of the characters "/", " ", ":", "#"`, r.env.Name)
		}
	case "prefix":
		r.env.Prefix = r.text(value, "prefix")
	case "channels":
		r.channels(value)
	case "dependencies":
		for _, item := range r.list(value, "dependencies") {
			r.dependency(item)
		}
	case "variables":
		r.variables(value)
	case "platforms":
		for _, item := range r.list(value, "platforms") {
			r.env.Platforms = append(r.env.Platforms, r.text(item, "a platform"))
		}
	case "category": // a label for tools that lock
	default:
		r.unknown(key)
	}
}

// environmentKeys are the keys that have an effect here.
var environmentKeys = []string{"name", "prefix", "channels", "dependencies", "variables", "platforms"}

// unknown warns of a key that no tool may know, as conda does: files are there for other tools too, so that it is no error.
func (r *environmentReader) unknown(key *yaml.Node) {
	w := Warning{Text: fmt.Sprintf("%s:%d:%d: unknown key %q has no effect", r.env.File, key.Line, key.Column, key.Value)}
	if near := spelling.Nearest(key.Value, environmentKeys); near != "" {
		w.Hint = fmt.Sprintf("did you mean %q?", near)
	}
	r.env.Warnings = append(r.env.Warnings, w)
}

func (r *environmentReader) channels(n *yaml.Node) {
	for _, item := range r.list(n, "channels") {
		name := strings.TrimSpace(r.text(item, "a channel"))
		switch {
		case name == "nodefaults":
			r.env.NoDefaults = true
		case name != "" && !slices.Contains(r.env.Channels, name):
			r.env.Channels = append(r.env.Channels, name)
		}
	}
}

func (r *environmentReader) dependency(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		r.spec(n)
		return
	}
	if n.Kind != yaml.MappingNode {
		r.wrong(n, "a dependency is text, such as numpy>=2, or a list under pip")
		return
	}
	for key, value := range pairs(n) {
		value = follow(value)
		if expression, ok := dictSelector(key.Value); ok {
			r.selected(key, value, expression)
			continue
		}
		switch {
		case key.Value == "pip":
			r.pip(value)
		case value.Kind == yaml.ScalarNode:
			r.wrongHint(key, fmt.Sprintf("write it as one word: - %s=%s", key.Value, value.Value), "%q is no installer that conda environments know", key.Value)
		default:
			r.wrong(key, "%q is no installer that conda environments know, only pip is", key.Value)
		}
	}
}

// selected takes a dependency under sel(…) when the platform fits.
func (r *environmentReader) selected(key, value *yaml.Node, expression string) {
	holds, err := evaluate(expression, dictVariables(r.platform))
	if err != nil {
		r.wrong(key, "selector %q: %v", key.Value, err)
		return
	}
	if holds {
		r.spec(value)
	}
}

func (r *environmentReader) spec(n *yaml.Node) {
	text := strings.TrimSpace(r.text(n, "a dependency"))
	if text == "" {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
			r.wrong(n, "an empty dependency")
		}
		return
	}
	r.env.Specs = append(r.env.Specs, Spec{Text: text, Line: n.Line, Column: n.Column})
}

var variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (r *environmentReader) variables(n *yaml.Node) {
	if n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.wrong(n, "variables are a mapping: NAME: value")
		return
	}
	r.env.Variables = map[string]string{}
	for key, value := range pairs(n) {
		if !variableName.MatchString(key.Value) {
			r.wrong(key, "%q cannot be the name of a variable", key.Value)
			continue
		}
		if _, twice := r.env.Variables[key.Value]; twice {
			r.wrong(key, "%q is there twice", key.Value)
		}
		if text, ok := r.variable(key, follow(value)); ok {
			r.env.Variables[key.Value] = text
		}
	}
}

// variable returns a value as the text that conda makes of it. Numbers stay as they are written.
func (r *environmentReader) variable(key, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		r.wrong(n, "the variable %s is not text", key.Value)
		return "", false
	}
	switch n.ShortTag() {
	case "!!null":
		r.wrongHint(n, "write \"\" if it should be empty", "the variable %s has no value", key.Value)
		return "", false
	case "!!bool":
		var b bool
		if n.Decode(&b) == nil && b {
			return "True", true
		}
		return "False", true
	}
	if strings.ContainsRune(n.Value, 0) {
		r.wrong(n, "the variable %s has a NUL", key.Value)
		return "", false
	}
	return n.Value, true
}

// text returns a scalar that is text, or says that it is not.
func (r *environmentReader) text(n *yaml.Node, what string) string {
	n = follow(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		r.wrong(n, "%s is text", what)
	case n.ShortTag() == "!!null":
		r.wrong(n, "%s has no value", what)
	case n.ShortTag() != "!!str":
		r.wrongHint(n, fmt.Sprintf("put it into quotes: %q", n.Value), "%s is text, and %s is not", what, n.Value)
	case strings.ContainsAny(n.Value, "\x00\n"):
		r.wrong(n, "%s has several lines", what)
	default:
		return n.Value
	}
	return ""
}

// list returns the items of a list; nothing at all is an empty one.
func (r *environmentReader) list(n *yaml.Node, what string) []*yaml.Node {
	n = follow(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, "%s is a list: - one item per line", what)
		return nil
	}
	items := make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		items[i] = follow(item)
	}
	return items
}

// follow returns what an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// pairs yields keys and values of a mapping.
func pairs(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Resolve returns a path of the environment file as it is from here: pip reads paths from the file's directory.
func (e *Environment) Resolve(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(e.File), path)
}
