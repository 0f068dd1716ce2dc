package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// What of uv's settings counts where they come with a recipe, which may be a stranger's: what chooses versions and indexes. All else is a matter
// of who runs sconce, whose own uv.toml may say it: which programs run, where files are written, how servers are reached.

// use is what becomes of a setting.
type use int

const (
	refused use = iota // also of what uv knows and this table does not
	taken
	passed // it says nothing about what is chosen: about other commands of uv, or about building, which sconce does itself
)

// uvKeys are the settings of uv 0.13 (uv's reference, "Settings"), those of the table pip among them, which have names of their own.
var uvKeys = keyTable(map[use]string{
	taken: `index index-url extra-index-url find-links no-index index-strategy
		constraint-dependencies override-dependencies exclude-dependencies build-constraint-dependencies
		dependency-metadata environments required-environments minimum-libc-version
		prerelease prerelease-package resolution fork-strategy exclude-newer exclude-newer-package
		no-build no-build-package no-binary no-binary-package no-sources no-sources-package
		torch-backend upgrade upgrade-package required-version pip
		only-binary no-deps extra all-extras require-hashes verify-hashes`,
	passed: `sources workspace managed package default-groups dependency-groups dev-dependencies build-backend conflicts
		preview preview-features offline python-preference python-downloads native-tls system-certs no-cache
		concurrent-downloads concurrent-builds concurrent-installs link-mode compile-bytecode reinstall reinstall-package
		config-settings config-settings-package no-build-isolation no-build-isolation-package require-build-hashes
		extra-build-dependencies extra-build-variables cache-keys publish-url trusted-publishing check-url add-bounds audit
		system break-system-packages strict allow-empty-requirements no-strip-extras no-strip-markers generate-hashes no-header
		custom-compile-command emit-index-url emit-find-links emit-build-options emit-marker-expression emit-index-annotation
		annotation-style no-annotate no-emit-package python-version python-platform universal group`,
	refused: `cache-dir keyring-provider http-proxy https-proxy no-proxy allow-insecure-host python-downloads-json-url
		python-install-mirror pypy-install-mirror graalpy-install-mirror pyodide-install-mirror
		python prefix target output-file`,
})

// indexKeys are those of an index.
var indexKeys = keyTable(map[use]string{
	taken:  `name url explicit default format authenticate ignore-error-codes exclude-newer`,
	passed: `publish-url cache-control`,
})

func keyTable(words map[use]string) map[string]use {
	table := map[string]use{}
	for what, keys := range words {
		for key := range strings.FieldsSeq(keys) {
			table[key] = what
		}
	}
	return table
}

// recipeSettings are uv's settings in a file that comes with a recipe.
type recipeSettings struct {
	file    string // absolute
	reach   reach.Bounds
	project bool // it is a pyproject.toml, which is written for all who work on the project
	keys    map[string]any
	lines   map[string]int // by key, with the tables around it
	ignored []error        // what a pyproject.toml says in vain
}

// readSettings reads the settings in a uv.toml or pyproject.toml of r, and keeps of them what counts.
func readSettings(r *recipe.Recipe, file string) (*recipeSettings, error) {
	s := &recipeSettings{file: file, reach: r.Reach, project: filepath.Base(file) == projectFile}
	text, err := readFile(file)
	if err != nil {
		return nil, err
	}
	return takeSettings(s, text)
}

// takeSettings keeps of a text what counts.
func takeSettings(s *recipeSettings, text []byte) (*recipeSettings, error) {
	if err := s.parse(text); err != nil {
		return nil, err
	}
	wrong := s.keep(s.keys, uvKeys, "")
	if s.project {
		s.ignored, wrong = wrong, nil
	}
	return s, fault.Several(wrong)
}

func (s *recipeSettings) parse(text []byte) error {
	s.lines = keyLines(text)
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			row, _ := at.Position()
			line, _, _ := strings.Cut(string(slices.Collect(bytes.Lines(text))[row-1]), "\n")
			return fmt.Errorf("%s:%d: %s: %s", s.file, row, strings.TrimPrefix(err.Error(), "toml: "), strings.TrimSpace(line))
		}
		return fmt.Errorf("%s: %w", s.file, err)
	}
	s.keys = all
	if s.project {
		tool, _ := all["tool"].(map[string]any)
		s.keys, _ = tool["uv"].(map[string]any)
	}
	return nil
}

// keyLines says in which lines of a TOML file keys stand, by their names with those of the tables around them.
func keyLines(text []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(text)
	table := ""
	for p.NextExpression() {
		e := p.Expression()
		name, offset := "", -1
		for keys := e.Key(); keys.Next(); {
			name += "." + string(keys.Node().Data)
			if offset < 0 {
				offset = min(int(keys.Node().Raw.Offset), len(text))
			}
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = name
		case unstable.KeyValue:
			name = table + name
		}
		for name != "" { // tables that no line names by themselves stand where something of them does
			if _, known := lines[name[1:]]; !known && offset >= 0 {
				lines[name[1:]] = 1 + bytes.Count(text[:offset], []byte("\n"))
			}
			name = name[:strings.LastIndex(name, ".")]
		}
	}
	return lines
}

// keep takes out of a table what does not count, and returns an error for each key that is refused.
func (s *recipeSettings) keep(table map[string]any, known map[string]use, above string) (wrong []error) {
	for key, value := range table {
		var err error
		switch known[key] {
		case refused:
			err = s.refuse(above+key, "sconce does not take %q from a recipe's directory", above+key)
		case taken:
			err = s.keepValue(table, key, value, above)
		}
		if err != nil {
			wrong = append(wrong, err)
		}
		if err != nil && key != "pip" && key != "index" || known[key] != taken { // of these two the rest counts
			delete(table, key)
		}
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return wrong
}

// keepValue looks into the settings that hold others, and at those that may be paths, which it makes absolute.
func (s *recipeSettings) keepValue(table map[string]any, key string, value any, above string) error {
	switch key {
	case "pip":
		if pip, ok := value.(map[string]any); ok && above == "" {
			return fault.Several(s.keep(pip, uvKeys, "pip."))
		}
	case "index":
		var wrong []error
		list, _ := value.([]any)
		table[key] = slices.DeleteFunc(list, func(v any) bool {
			index, ok := v.(map[string]any)
			wrong = append(wrong, s.keep(index, indexKeys, "index.")...)
			return ok && index["url"] == nil
		})
		return fault.Several(wrong)
	case "index-url", "url":
		var err error
		table[key], err = s.place(above+key, value)
		return err
	case "constraint-dependencies", "override-dependencies", "build-constraint-dependencies":
		return s.requirements(above+key, value)
	case "dependency-metadata":
		for _, item := range itemsOf(value) {
			table, _ := item.(map[string]any)
			if err := s.requirements(above+key, table["requires-dist"]); err != nil {
				return err
			}
		}
	case "extra-index-url", "find-links":
		list, _ := value.([]any)
		for i := range list {
			var err error
			if list[i], err = s.place(above+key, list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// place resolves an address that may be a path, to a file that the recipe may reach.
func (s *recipeSettings) place(key string, value any) (any, error) {
	address, ok := value.(string)
	scheme, rest, remote := strings.Cut(address, "://")
	switch {
	case !ok || address == "" || remote && (scheme == "http" || scheme == "https"):
		return value, nil
	case remote && scheme != "file":
		return nil, s.refuse(key, "%s of a recipe's directory has to be http://…, https://… or a path, and %q is something else", key, address)
	case remote:
		address = rest
	}
	if !filepath.IsAbs(address) {
		address = filepath.Join(filepath.Dir(s.file), address)
	}
	if err := s.reach.Check(address); err != nil {
		return nil, s.outside(key, err)
	}
	return address, nil
}

// requirements looks at the addresses in requirements. uv puts variables into them.
func (s *recipeSettings) requirements(key string, value any) error {
	for _, item := range itemsOf(value) {
		text, _ := item.(string)
		if err := s.reach.CheckAddress(requirementAddress(replaceVariables(text, harmless)), filepath.Dir(s.file)); err != nil {
			return s.outside(key, err)
		}
	}
	return nil
}

// outside is the error of a key that leads to a file which the recipe may not reach.
func (s *recipeSettings) outside(key string, err error) error {
	return fault.Hint(fmt.Errorf("%s: %s: %w", s.placeOf(key), key, err), fault.HintOf(err))
}

// refuse is the error of a key.
func (s *recipeSettings) refuse(key, format string, args ...any) error {
	return fault.Hint(fmt.Errorf("%s: %s", s.placeOf(key), fmt.Sprintf(format, args...)),
		"remove it there; what is meant for you alone goes into your own ~/.config/uv/uv.toml")
}

// placeOf is the file, and the line if it is known, of a key.
func (s *recipeSettings) placeOf(key string) string {
	if s.project {
		key = "tool.uv." + key
	}
	if line := s.lines[key]; line > 0 {
		return fmt.Sprintf("%s:%d", s.file, line)
	}
	return s.file
}

// text is what counts, as a uv.toml.
func (s *recipeSettings) text() ([]byte, error) {
	if s == nil || len(s.keys) == 0 {
		return nil, nil
	}
	return toml.Marshal(s.keys)
}

// tell says what a pyproject.toml says in vain.
func (s *recipeSettings) tell(ctx context.Context) {
	if s == nil {
		return
	}
	for _, err := range s.ignored {
		progress.Notef(ctx, err.Error())
	}
}
