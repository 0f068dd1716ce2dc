// Package torecipe writes the recipe that builds what people have in other forms: conda environments, requirements files, a
// pyproject.toml, a Containerfile. What a recipe cannot say is refused, with the line and the reason, and never left out.
package torecipe

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
)

// Options are what the sources do not say.
type Options struct {
	Name string // of the image
	Base string // reference of the image to stand on; "" is the one that goes with the source
	Dir  string // of the recipe, absolute: paths in it start there
}

// draft is a recipe to be, in the order in which it is written.
type draft struct {
	Name   string     `toml:"name"`
	Base   draftBase  `toml:"base"`
	Conda  *conda     `toml:"conda,omitempty"`
	Python *python    `toml:"python,omitempty"`
	Image  draftImage `toml:"image,omitempty"`
	Steps  []step     `toml:"step,omitempty"`
}

type draftBase struct {
	Image     string     `toml:"image,omitempty"`
	Bootstrap *bootstrap `toml:"bootstrap,inline,omitempty"`
}

type bootstrap struct {
	Suite    string   `toml:"suite"`
	Packages []string `toml:"packages"`
}

type conda struct {
	Environment []string `toml:"environment,omitempty"`
	Lock        string   `toml:"lock,omitempty"`
	Priority    string   `toml:"channel-priority,omitempty"`
}

type python struct {
	Requirements []string `toml:"requirements,omitempty"`
	Project      string   `toml:"project,omitempty"`
}

type draftImage struct {
	Env        map[string]string `toml:"env,omitempty"`
	Entrypoint []string          `toml:"entrypoint,omitempty"`
	Cmd        []string          `toml:"cmd,omitempty"`
	Workdir    string            `toml:"workdir,omitempty"`
	Labels     map[string]string `toml:"labels,omitempty"`
	Volumes    []string          `toml:"volumes,omitempty"`
	User       string            `toml:"user,omitempty"`
}

type step struct {
	Run     string            `toml:"run,multiline,omitempty"`
	Copy    []string          `toml:"copy,omitempty"`
	Shell   []string          `toml:"shell,omitempty"`
	Env     map[string]string `toml:"env,omitempty"`
	Workdir string            `toml:"workdir,omitempty"`
	User    string            `toml:"user,omitempty"`
	Network *bool             `toml:"network,omitempty"`
}

// text writes the draft, with a comment above it.
func (d *draft) text(comment string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("#:schema ./sconce.schema.json\n")
	for line := range strings.Lines(comment) {
		b.WriteString("# " + line)
	}
	b.WriteString("\n\n")
	e := toml.NewEncoder(&b)
	e.SetArraysMultiline(false)
	if err := e.Encode(d); err != nil {
		return nil, fmt.Errorf("write a recipe: %w", err)
	}
	return b.Bytes(), nil
}

// refusals are what a recipe cannot say, by line.
type refusals struct {
	file string
	all  []error
}

func (r *refusals) add(line int, format string, args ...any) {
	r.all = append(r.all, fault.Usage(fmt.Errorf("%s:%d: %s", r.file, line, fmt.Sprintf(format, args...))))
}

func (r *refusals) err() error { return errors.Join(r.all...) }

// beside returns a file's path as a recipe in dir names it.
func beside(dir, file string) (string, error) {
	full, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(dir, full)
	if err != nil {
		return "", fmt.Errorf("name %s in a recipe in %s: %w", file, dir, err)
	}
	return filepath.ToSlash(rel), nil
}
