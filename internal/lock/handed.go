package lock

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// What uv reads of a recipe's requirements: copies, in which variables are replaced and paths are absolute. So uv needs none of the user's
// variables, and runs where nobody's files are.

// handing makes the copies.
type handing struct {
	recipe *recipe.Recipe
	own    *ownHosts
	dir    string            // where they go
	copies map[string]string // by the path of the file
	names  map[string]string // what the recipe calls the file, by the path of the copy
	moved  map[string]bool   // paths that were relative
}

func newHanding(r *recipe.Recipe, dir string) *handing {
	return &handing{
		recipe: r, own: ownHostsOf(r), dir: dir, copies: map[string]string{}, names: map[string]string{}, moved: map[string]bool{},
	}
}

// file copies a requirements file of this machine with all that it includes, and returns where the copy is. What is no such file, such as a
// pyproject.toml, uv reads itself.
func (h *handing) file(at requirementsPlace) (string, error) {
	if made, ok := h.copies[at.path]; ok {
		return made, nil
	}
	if slices.Contains([]string{".toml", ".py", ".cfg", ".yml", ".yaml"}, filepath.Ext(at.path)) {
		return at.path, nil
	}
	data, err := readFile(at.path)
	if err != nil {
		return "", err
	}
	text, err := decodeText(data)
	if err != nil {
		return "", fault.Hint(fmt.Errorf("%s: %w", at.name, err), "write it in UTF-8")
	}
	made := h.next(at.name)
	h.copies[at.path] = made
	return made, h.write(made, at, requirementLines(text))
}

// list copies the pip list of an environment file.
func (h *handing) list(list recipe.PipList) (string, error) {
	made := h.next(list.File)
	lines := requirementLines(list.Text)
	for i := range lines {
		lines[i].number = list.Lines[lines[i].number-1]
	}
	return made, h.write(made, requirementsPlace{path: h.recipe.Resolve(list.File), name: list.File}, lines)
}

// next names the next copy.
func (h *handing) next(name string) string {
	made := filepath.Join(h.dir, fmt.Sprintf("requirements-%d.txt", len(h.names)))
	h.names[made] = name
	return made
}

// write writes a copy, in which lines have the numbers that they have in the file: uv says them.
func (h *handing) write(made string, at requirementsPlace, lines []requirementLine) error {
	var b strings.Builder
	number := 1
	for _, line := range lines {
		text, err := h.line(line, at)
		if err != nil {
			return err
		}
		if ahead := line.number - number; ahead > 0 {
			b.WriteString(strings.Repeat("\n", ahead))
			number = line.number
		}
		b.WriteString(text + "\n")
		number++
	}
	return os.WriteFile(made, []byte(b.String()), 0o600) // it may hold logins
}

// line rewrites a line of the file at.
func (h *handing) line(line requirementLine, at requirementsPlace) (string, error) {
	place := fmt.Sprintf("%s:%d", at.name, line.number)
	if err := h.own.check(place, line.text); err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(line.text, requireHashes); ok && strings.TrimSpace(rest) != "" {
		text, err := h.line(requirementLine{line.number, strings.TrimSpace(rest)}, at)
		return requireHashes + " " + text, err
	}
	option, value := splitOption(line.text)
	value = h.own.expand(value)
	switch option {
	case "":
		_, options := cutOptions(line.text)
		return strings.TrimSpace(h.requirement(value) + " " + options), nil
	case "-e", "--editable":
		if strings.Contains(value, " @ ") {
			return option + " " + h.requirement(value), nil
		}
		return option + " " + h.address(value, h.recipe.Dir), nil // a directory, whose name alone looks like a package's
	case "-i", "--index-url", "--extra-index-url", "-f", "--find-links":
		return option + " " + h.address(value, filepath.Dir(at.path)), nil
	case "-r", "--requirement", "-c", "--constraint":
		q := requirementsReader{dir: h.recipe.Dir}
		included := q.included(value, at)
		if included.remote() {
			return option + " " + included.path, nil
		}
		made, err := h.file(included)
		if err != nil {
			return "", fmt.Errorf("included by %s: %w", at.name, err)
		}
		return option + " " + made, nil
	}
	return line.text, nil
}

// packages rewrites requirements of the recipe itself.
func (h *handing) packages(asked []string) ([]string, error) {
	all := slices.Clone(asked)
	for i, text := range all {
		if err := h.own.check("packages under [python]", text); err != nil {
			return nil, err
		}
		requirement, options := cutOptions(h.own.expand(text))
		all[i] = strings.TrimSpace(h.requirement(requirement) + " " + options)
	}
	return all, nil
}

// requirement makes the path absolute that a requirement may be, or be asked for by. Relative ones begin at the recipe's directory.
func (h *handing) requirement(text string) string {
	name, rest := "", text
	if r, err := python.ParseRequirement(text); err == nil {
		if r.URL == "" {
			return text
		}
		name, rest, _ = strings.Cut(text, "@")
		name, rest = strings.TrimSpace(name)+" @ ", strings.TrimSpace(rest)
	} else if before, after, ok := strings.Cut(text, "@"); ok && !strings.ContainsAny(before, "/:.") { // a form of address that PEP 508 has not
		name, rest = strings.TrimSpace(before)+" @ ", strings.TrimSpace(after)
	}
	address, behind, more := strings.Cut(rest, " ")
	if name == "" && !looksLikePath(address) {
		return text // uv says what is wrong with it
	}
	address = h.address(address, h.recipe.Dir)
	if more {
		address += " " + behind
	}
	return name + address
}

// looksLikePath reports whether uv takes what has no name for a path or an address.
func looksLikePath(text string) bool {
	file, _, _ := strings.Cut(withoutFragment(text), "[")
	return strings.HasPrefix(text, ".") || strings.Contains(text, "/") || slices.Contains([]string{".whl", ".gz", ".zip", ".bz2", ".xz", ".tgz", ".tar"}, filepath.Ext(file))
}

// address makes a path an address, and leaves an address. Relative paths begin at dir.
func (h *handing) address(text, dir string) string {
	if strings.Contains(text, "://") || text == "" {
		return text
	}
	path := strings.TrimPrefix(text, "file:")
	extras := ""
	if i := strings.LastIndex(path, "["); i > 0 && strings.HasSuffix(path, "]") {
		path, extras = path[:i], path[i:]
	}
	path, fragment, _ := strings.Cut(path, "#")
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
		h.moved[path] = true
	}
	file := url.URL{Scheme: "file", Path: filepath.ToSlash(path), Fragment: fragment}
	return file.String() + extras
}

// called replaces the paths of copies in what uv says.
func (h *handing) called(text string) string {
	for made, name := range h.names {
		text = strings.NewReplacer(made, name, strings.TrimPrefix(made, "/"), name).Replace(text) // uv says paths as seen from its directory
	}
	return text
}
