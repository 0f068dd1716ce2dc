package lock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// requirements is what sconce itself understands of the requirements files of a recipe and the files that they include.
// uv is their real reader; this is for what uv does not tell: which files there are, what was asked for by name, which
// servers want which login, and which hashes a file may have.
type requirements struct {
	files     []requirementsFile
	lines     []string // requirements, without those of constraints files
	editables []string // addresses and paths behind -e, likewise
	addresses []string // of indexes

	demands  []demand // every requirement and constraint
	required bool     // --require-hashes, or a hash, stands somewhere
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

// readRequirements reads the requirements files of r and all that they include, but for those that only a server has.
func readRequirements(r *recipe.Recipe) (*requirements, error) { return readAllRequirements(r, nil) }

// readAllRequirements also reads those that a server has, with get.
func readAllRequirements(r *recipe.Recipe, get func(address string) ([]byte, error)) (*requirements, error) {
	reader := newRequirementsReader(r)
	reader.get = get
	for _, file := range r.Python.Requirements {
		if err := reader.read(requirementsPlace{path: r.Resolve(file), name: file}, 0); err != nil {
			return nil, fmt.Errorf("read what the recipe names under [python] requirements: %w", err)
		}
	}
	for _, list := range r.Python.Listed {
		at := requirementsPlace{path: r.Resolve(list.File), name: list.File}
		for _, line := range requirementLines(list.Text) {
			line.number = list.Lines[line.number-1]
			if err := reader.line(line, at, 0); err != nil {
				return nil, fmt.Errorf("the pip list of %s: %w", list.File, err)
			}
		}
	}
	return &reader.requirements, nil
}

type requirementsReader struct {
	requirements
	dir   string // of the recipe
	reach reach.Bounds
	own   *ownHosts
	get   func(address string) ([]byte, error)
	seen  map[string]bool
}

func newRequirementsReader(r *recipe.Recipe) *requirementsReader {
	return &requirementsReader{dir: r.Dir, reach: r.Reach, own: ownHostsOf(r), seen: make(map[string]bool)}
}

// requirementsPlace is where a requirements file is.
type requirementsPlace struct {
	path       string // or its address
	name       string // what to call it
	constraint bool
}

func (p requirementsPlace) remote() bool { return strings.Contains(p.path, "://") }

// read reads a file and what it includes.
func (q *requirementsReader) read(at requirementsPlace, depth int) error {
	key := fmt.Sprintf("%t %s", at.constraint, at.path)
	if q.seen[key] || at.remote() && q.get == nil {
		return nil // what a server gives may change without our knowing; uv reads it when the lock is made
	}
	q.seen[key] = true
	if err := q.reach.CheckAddress(at.path, q.dir); err != nil {
		return err
	}
	if depth > maxIncludeDepth || len(q.files) == maxIncludes {
		return fmt.Errorf("%s: more than %d files, or more than %d deep, include each other", at.name, maxIncludes, maxIncludeDepth)
	}
	get := readFile
	if at.remote() {
		get = q.get
	}
	data, err := get(at.path)
	if err != nil {
		return err
	}
	q.files = append(q.files, requirementsFile{at.name, at.constraint, data})
	text, err := decodeText(data)
	if err != nil {
		return fault.Hint(fmt.Errorf("%s: %w", at.name, err), "write it in UTF-8")
	}
	for _, line := range requirementLines(text) {
		if err := q.line(line, at, depth); err != nil {
			return err
		}
	}
	return nil
}

func (q *requirementsReader) line(line requirementLine, at requirementsPlace, depth int) error {
	text := line.text
	for strings.HasPrefix(text, requireHashes) { // uv goes on reading the line behind it
		q.required = true
		text = strings.TrimSpace(strings.TrimPrefix(text, requireHashes))
	}
	option, value := splitOption(text)
	value = q.own.expand(value)
	switch option {
	case "":
		if text == "" {
			return nil
		}
		d, err := demandOf(q.own, text, fmt.Sprintf("%s:%d", at.name, line.number))
		if err != nil {
			return err
		}
		q.demand(d)
		if err := q.reachRequirement(value); err != nil {
			return fmt.Errorf("%s:%d: %w", at.name, line.number, err)
		}
		if !at.constraint {
			q.lines = append(q.lines, value)
		}
	case "-e", "--editable":
		if err := q.reachRequirement(value); err != nil {
			return fmt.Errorf("%s:%d: %w", at.name, line.number, err)
		}
		if !at.constraint {
			q.editables = append(q.editables, value)
		}
	case "-i", "--index-url", "--extra-index-url", "-f", "--find-links":
		if err := q.reach.CheckAddress(value, q.dir); err != nil {
			return fmt.Errorf("%s:%d: %w", at.name, line.number, err)
		}
		q.addresses = append(q.addresses, value)
	case "-r", "--requirement", "-c", "--constraint":
		included := q.included(value, at)
		included.constraint = at.constraint || strings.HasPrefix(strings.TrimLeft(option, "-"), "c")
		if err := q.read(included, depth+1); err != nil {
			return fmt.Errorf("included by %s: %w", at.name, err)
		}
	}
	return nil
}

func (q *requirementsReader) demand(d demand) {
	q.demands = append(q.demands, d)
	q.required = q.required || d.option
}

// included says where the file is that the one at names as value (pip: "relative to the requirements file").
func (q *requirementsReader) included(value string, at requirementsPlace) requirementsPlace {
	if at.remote() {
		if base, err := url.Parse(at.path); err == nil {
			if there, err := base.Parse(value); err == nil {
				return requirementsPlace{path: there.String(), name: fetch.WithoutLogins(there.String())}
			}
		}
	}
	if u, err := url.Parse(value); err == nil && u.Scheme == "file" && filepath.IsAbs(u.Path) {
		value = u.Path
	}
	if strings.Contains(value, "://") {
		return requirementsPlace{path: value, name: fetch.WithoutLogins(value)}
	}
	if !filepath.IsAbs(value) {
		value = filepath.Join(filepath.Dir(at.path), value)
	}
	called, err := filepath.Rel(q.dir, value)
	if err != nil {
		called = value
	}
	return requirementsPlace{path: value, name: called}
}

// requirementLine is a line of a requirements file with those that continue it.
type requirementLine struct {
	number int // where it begins, from 1
	text   string
}

var (
	lineEnds     = strings.NewReplacer("\r\n", "\n", "\r", "\n")
	lineComments = lazyregexp.New(`(?:^|\s)#.*$`)
)

// decodeText returns the text of a requirements file as uv reads it: in UTF-8, or in UTF-16 where it begins with a byte order mark, as
// some shells write it. What is neither is refused: its hashes would not be seen.
func decodeText(data []byte) (string, error) {
	text := string(data)
	for mark, order := range map[string]binary.ByteOrder{"\xff\xfe": binary.LittleEndian, "\xfe\xff": binary.BigEndian} {
		if strings.HasPrefix(text, mark) {
			units := make([]uint16, len(data)/2)
			for i := range units {
				units[i] = order.Uint16(data[2*i:])
			}
			text = string(utf16.Decode(units))
		}
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return "", errors.New("it is no text in UTF-8")
	}
	return text, nil
}

// requirementLines returns the lines of a requirements file with continuations joined, and without comments and empty
// lines (pip's documentation, "Requirements File Format"). A line that is all comment continues nothing and is not
// continued, whatever it ends with.
func requirementLines(text string) []requirementLine {
	var lines []requirementLine
	var open requirementLine // continued so far
	end := func() {
		open.text = strings.TrimSpace(lineComments.ReplaceAllString(open.text, ""))
		if open.text != "" {
			lines = append(lines, open)
		}
		open = requirementLine{}
	}
	for i, line := range strings.Split(lineEnds.Replace(strings.TrimPrefix(text, "\uFEFF")), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			end()
			continue
		}
		if open.number == 0 {
			open.number = i + 1
		}
		part, continued := strings.CutSuffix(line, "\\")
		if open.text += part; continued {
			open.text += " "
			continue
		}
		end()
	}
	end()
	return lines
}

// splitOption splits a line into option and value: "-r x", "-rx", "--requirement x" and "--requirement=x". A requirement
// has no option, and loses the options that follow it.
func splitOption(line string) (option, value string) {
	if !strings.HasPrefix(line, "-") {
		value, _ = cutOptions(line)
		return "", value
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

// lineOptions is where the options of a requirement begin.
var lineOptions = lazyregexp.New(`\s--`)

// cutOptions divides a requirement from its options.
func cutOptions(line string) (requirement, options string) {
	if at := lineOptions.Regexp().FindStringIndex(line); at != nil {
		line, options = line[:at[0]], line[at[0]:]
	}
	return strings.TrimSpace(line), strings.TrimSpace(options)
}
