// Package entrypoint makes the commands that call a function of a Python module, as wheels and conda packages name them (PyPA, "Entry
// points specification"; info/link.json).
package entrypoint

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Point is a command that calls an object.
type Point struct {
	Name   string // the command's file name
	Module string // dotted
	Attr   string // the callable in the module, dotted
}

// Parse reads "name = module:attr", after which extras may stand in brackets (they have no meaning any more). Whether the name may be one of
// a file is for the caller to say.
func Parse(line string) (Point, error) {
	name, value, ok := strings.Cut(line, "=")
	value, _, _ = strings.Cut(value, "[")
	module, attr, called := strings.Cut(value, ":")
	p := Point{strings.TrimSpace(name), strings.TrimSpace(module), strings.TrimSpace(attr)}
	switch {
	case !ok || !called || !dotted(p.Module) || !dotted(p.Attr):
		return p, fmt.Errorf("%.200q does not name a function as command = module:function", line)
	case p.Name == "" || strings.Contains(p.Name, "/"):
		return p, fmt.Errorf("%.200q cannot be the name of a command", p.Name)
	}
	return p, nil
}

// dotted says whether s is identifiers joined by dots. Modules and functions go into the text of a script, so nothing else will do.
func dotted(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || !utf8.ValidString(part) {
			return false
		}
		for i, r := range part {
			if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r) && !unicode.IsMark(r)) {
				return false
			}
		}
	}
	return true
}

// Beside stands for a path in [Script]: the interpreter is the file python in the directory of the script, links to it followed. Shell
// reads the lines, and Python takes them for a string.
const Beside = `/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''`

// Script is the text of a command that calls function of module. python is the path of its interpreter.
func Script(python, module, function string) []byte {
	top, _, _ := strings.Cut(function, ".")
	return fmt.Appendf(nil, `#!%s
import sys

from %s import %s

if __name__ == "__main__":
    sys.exit(%s())
`, python, module, top, function)
}
