package python

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/entrypoint"
)

// EntryPoints are the commands that a distribution's entry_points.txt declares (packaging.python.org, "Entry points
// specification"). Other groups are for the distribution's friends to read and are left alone.
type EntryPoints struct {
	Console []EntryPoint
	GUI     []EntryPoint
}

// EntryPoint is a command that calls an object.
type EntryPoint = entrypoint.Point

// maxEntryPoints bounds the commands of one package. The largest known has fewer than a hundred.
const maxEntryPoints = 10_000

// ParseEntryPoints reads an entry_points.txt: an INI file with "=" as its only delimiter and case-sensitive keys.
func ParseEntryPoints(data []byte) (EntryPoints, error) {
	var (
		e       EntryPoints
		section string
		number  int
		seen    = make(map[string]bool)
	)
	for raw := range bytes.Lines(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) {
		number++
		line := strings.TrimSpace(string(raw))
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[':
			name, rest, ok := strings.Cut(line[1:], "]")
			if !ok || rest != "" {
				return e, fmt.Errorf("line %d: %q is not a section", number, line)
			}
			section = strings.TrimSpace(name)
			continue
		case section != "console_scripts" && section != "gui_scripts":
			continue
		}
		p, err := entrypoint.Parse(line)
		if err == nil && checkPath(p.Name) != nil {
			err = fmt.Errorf("%q cannot be the name of a command", p.Name)
		}
		if err != nil {
			return e, fmt.Errorf("line %d: %w", number, err)
		}
		switch {
		case seen[p.Name]:
			return e, fmt.Errorf("line %d: the command %q is declared twice", number, p.Name)
		case len(seen) == maxEntryPoints:
			return e, fmt.Errorf("line %d: it declares more than %d commands", number, maxEntryPoints)
		}
		seen[p.Name] = true
		if section == "console_scripts" {
			e.Console = append(e.Console, p)
		} else {
			e.GUI = append(e.GUI, p)
		}
	}
	return e, nil
}

// interpreterMark begins a script that wants the environment's interpreter ("Binary distribution format", section
// "Recommended installer features").
var interpreterMark = []byte("#!python")

// maxScript bounds a script whose first line is rewritten, which happens in memory. Scripts that are programs (ruff: 25
// MB) do not begin with the mark and are streamed.
const maxScript = 16 << 20

// rewriteInterpreter puts the environment's interpreter in the place of the first line. What stands behind "#!python" goes
// with it, arguments and a carriage return as well, as with pip and uv.
func rewriteInterpreter(script []byte, python string) ([]byte, error) {
	if !bytes.HasPrefix(script, interpreterMark) {
		return nil, errors.New("it does not begin with #!python")
	}
	_, rest, _ := bytes.Cut(script, []byte("\n"))
	return append([]byte("#!"+python+"\n"), rest...), nil
}
