package lock

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sconce.dev/sconce/internal/recipe"
)

// requirements is what sconce itself understands of the requirements files of a recipe and the files that they include.
// uv is their real reader; this is for what uv does not tell: which files there are, what was asked for by name, and
// which servers want which login.
type requirements struct {
	files     []requirementsFile
	lines     []string // requirements, without those of constraints files
	addresses []string // of indexes
}

// requirementsFile is one file that decides what is installed.
type requirementsFile struct {
	path       string // as the recipe names it, or relative to the recipe
	constraint bool
	data       []byte
}

// Limits on files that include each other: ten times what anyone has.
const (
	maxIncludeDepth = 32
	maxIncludes     = 1000
)

// readRequirements reads the requirements files of r and all that they include.
func readRequirements(r *recipe.Recipe) (*requirements, error) {
	reader := &requirementsReader{dir: r.Dir, seen: make(map[string]bool)}
	for _, file := range r.Python.Requirements {
		if err := reader.read(r.Resolve(file), file, false, 0); err != nil {
			return nil, fmt.Errorf("read what the recipe names under [python] requirements: %w", err)
		}
	}
	return &reader.requirements, nil
}

type requirementsReader struct {
	requirements
	dir  string // of the recipe
	seen map[string]bool
}

// read reads the file at path and what it includes. name is what to call it.
func (q *requirementsReader) read(path, name string, constraint bool, depth int) error {
	if q.seen[path] {
		return nil
	}
	q.seen[path] = true
	if depth > maxIncludeDepth || len(q.files) == maxIncludes {
		return fmt.Errorf("%s: more than %d files, or more than %d deep, include each other", name, maxIncludes, maxIncludeDepth)
	}
	data, err := readFile(path)
	if err != nil {
		return err
	}
	q.files = append(q.files, requirementsFile{name, constraint, data})
	for _, line := range requirementLines(string(data)) {
		if err := q.line(line, path, name, constraint, depth); err != nil {
			return err
		}
	}
	return nil
}

func (q *requirementsReader) line(line, path, name string, constraint bool, depth int) error {
	option, value := splitOption(line)
	value = expand(value)
	switch option {
	case "":
		if !constraint {
			q.lines = append(q.lines, value)
		}
	case "-i", "--index-url", "--extra-index-url", "-f", "--find-links":
		q.addresses = append(q.addresses, value)
	case "-r", "--requirement", "-c", "--constraint":
		if strings.Contains(value, "://") {
			return nil // what a server gives may change without our knowing; uv reads it when the lock is made
		}
		if !filepath.IsAbs(value) {
			value = filepath.Join(filepath.Dir(path), value) // pip: "relative to the requirements file"
		}
		called, err := filepath.Rel(q.dir, value)
		if err != nil {
			called = value
		}
		if err := q.read(value, called, constraint || strings.HasPrefix(strings.TrimLeft(option, "-"), "c"), depth+1); err != nil {
			return fmt.Errorf("included by %s: %w", name, err)
		}
	}
	return nil
}

// requirementLines returns the lines of a requirements file with continuations joined, and without comments and empty
// lines (pip's documentation, "Requirements File Format").
func requirementLines(text string) []string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		if i := strings.Index(line, " #"); i >= 0 {
			line = line[:i]
		}
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// splitOption splits a line into option and value: "-r x", "-rx", "--requirement x" and "--requirement=x". A requirement
// has no option, and loses the options that follow it.
func splitOption(line string) (option, value string) {
	if !strings.HasPrefix(line, "-") {
		value, _, _ = strings.Cut(line, " --")
		return "", strings.TrimSpace(value)
	}
	if !strings.HasPrefix(line, "--") && len(line) >= 2 {
		option, value = line[:2], line[2:]
	} else if i := strings.IndexAny(line, " \t="); i >= 0 {
		option, value = line[:i], line[i+1:]
	} else {
		return line, ""
	}
	return option, strings.Trim(strings.TrimSpace(strings.TrimPrefix(value, "=")), `"'`)
}

// variable is how requirements files name variables of the environment (pip's documentation, "Using environment
// variables").
var variable = regexp.MustCompile(`\$\{[A-Z0-9_]+\}`)

// expand puts in the values of variables that are set.
func expand(s string) string {
	return variable.ReplaceAllStringFunc(s, func(name string) string {
		if value, ok := os.LookupEnv(name[2 : len(name)-1]); ok {
			return value
		}
		return name
	})
}
