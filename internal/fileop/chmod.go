package fileop

import (
	"fmt"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
)

// chmod changes permissions, as chmod(1) does.
type chmod func(t layer.Type, mode uint32) uint32

// parseChmod reads octal permissions or symbolic changes to them: "u=rwX,go-w" (POSIX.1-2017, chmod, "Extended Description").
// Without who a change is for all, whatever the umask. "" gives nil.
func parseChmod(text string) (chmod, error) {
	if text == "" {
		return nil, nil
	}
	if isOctal(text) {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode > 0o7777 {
			return nil, badChmod(text)
		}
		return func(layer.Type, uint32) uint32 { return uint32(mode) }, nil
	}
	var changes []chmod
	for clause := range strings.SplitSeq(text, ",") {
		c, ok := parseClause(clause)
		if !ok {
			return nil, badChmod(text)
		}
		changes = append(changes, c...)
	}
	return func(t layer.Type, mode uint32) uint32 {
		for _, c := range changes {
			mode = c(t, mode)
		}
		return mode
	}, nil
}

// isOctal reports whether permissions are asked for as a number.
func isOctal(text string) bool { return strings.Trim(text, "0123456789") == "" }

func badChmod(text string) error {
	return fault.Usage(fault.Hint(fmt.Errorf("%q are no permissions", text), "write octal digits up to 7777, or changes like u=rwX,go=rX"))
}

// parseClause reads who and one or more actions.
func parseClause(clause string) ([]chmod, bool) {
	end := strings.IndexAny(clause, "+-=")
	if end < 0 {
		return nil, false
	}
	var who uint32
	for _, c := range clause[:end] {
		switch c {
		case 'u':
			who |= 0o4700
		case 'g':
			who |= 0o2070
		case 'o':
			who |= 0o1007
		case 'a':
			who |= 0o7777
		default:
			return nil, false
		}
	}
	if who == 0 {
		who = 0o7777
	}
	var actions []chmod
	for rest := clause[end:]; rest != ""; {
		op := rest[0]
		n := strings.IndexAny(rest[1:], "+-=")
		if n < 0 {
			n = len(rest) - 1
		}
		a, ok := parseAction(who, op, rest[1:1+n])
		if !ok {
			return nil, false
		}
		actions = append(actions, a)
		rest = rest[1+n:]
	}
	return actions, true
}

func parseAction(who uint32, op byte, perms string) (chmod, bool) {
	var bits uint32
	var search bool // X: execution where it is a directory or somebody may execute it
	var copied int  // from whom permissions are copied: the shift of their bits, and one
	for _, c := range perms {
		switch c {
		case 'r':
			bits |= 0o444
		case 'w':
			bits |= 0o222
		case 'x':
			bits |= 0o111
		case 'X':
			search = true
		case 's':
			bits |= 0o6000
		case 't':
			bits |= 0o1000
		case 'u', 'g', 'o':
			if len(perms) > 1 {
				return nil, false
			}
			copied = map[rune]int{'u': 7, 'g': 4, 'o': 1}[c]
		default:
			return nil, false
		}
	}
	// The sticky bit is everybody's: "+t" and "o+t" set it, "u+t" does not.
	return func(t layer.Type, mode uint32) uint32 {
		bits := bits
		if search && (t == layer.Dir || mode&0o111 != 0) {
			bits |= 0o111
		}
		if copied > 0 {
			bits = (mode >> (copied - 1) & 7) * 0o111
		}
		switch bits &= who; op {
		case '+':
			return mode | bits
		case '-':
			return mode &^ bits
		default:
			return mode&^replacedBySet(who, t) | bits
		}
	}, true
}

// replacedBySet returns the bits that "=" replaces. Setuid and setgid of a directory stay, as with GNU chmod.
func replacedBySet(who uint32, t layer.Type) uint32 {
	if t == layer.Dir {
		return who &^ 0o6000
	}
	return who
}
