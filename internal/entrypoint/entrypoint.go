// Package entrypoint makes the commands that call a function of a Python module, as wheels and conda packages name them (PyPA, "Entry
// points specification"; info/link.json).
package entrypoint

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Dotted says whether s is identifiers joined by dots. Modules and functions go into the text of a script, so nothing else will do.
func Dotted(s string) bool {
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
