package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxName is how long a name between two slashes may be, in bytes: what Linux file systems take.
const MaxName = 255

// CheckPath refuses a name, of an archive that somebody else made, that is not a plain relative path of at most limit bytes. Nothing
// is repaired: a name that needs it is a mistake or an attack.
func CheckPath(name string, limit int) error {
	switch {
	case name == "":
		return errors.New("its name is empty")
	case len(name) > limit:
		return fmt.Errorf("its name is longer than %d bytes", limit)
	case !utf8.ValidString(name):
		return errors.New("its name is not UTF-8")
	case strings.HasPrefix(name, "/"):
		return errors.New("its name is an absolute path")
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return errors.New("its name contains a control character")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return fmt.Errorf("its name has the component %q, and could lead anywhere", part)
		case len(part) > MaxName:
			return fmt.Errorf("its name has a component longer than %d bytes", MaxName)
		}
	}
	return nil
}

// CheckPAX refuses a header whose pax records are read in two ways (POSIX pax, "pax Header Block"): global ones of names and sizes, which
// archive/tar leaves aside and others give to every file that follows, and empty ones.
func CheckPAX(h *tar.Header) error {
	for name, value := range h.PAXRecords {
		switch {
		case name != "path" && name != "linkpath" && name != "size" && !strings.HasPrefix(name, "GNU.sparse."):
		case h.Typeflag == tar.TypeXGlobalHeader:
			return fmt.Errorf("a global pax header says %s of all files", name)
		case value == "":
			return fmt.Errorf("its pax header says an empty %s", name)
		}
	}
	return nil
}
