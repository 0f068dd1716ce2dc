package fileop

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
)

// owner is who a file belongs to.
type owner struct{ uid, gid int }

// findOwner reads USER[:GROUP]: names that the image knows, or numbers. Without a group it is the user's own (passwd(5)), and for
// a number the same number. A missing user is root. "" gives nil.
func findOwner(text string, tree *image.Tree) (*owner, error) {
	if text == "" {
		return nil, nil
	}
	o, err := readOwner(text, tree)
	if err != nil {
		return nil, fmt.Errorf("give files to %q: %w", text, err)
	}
	return o, nil
}

func readOwner(text string, tree *image.Tree) (*owner, error) {
	user, group, hasGroup := strings.Cut(text, ":")
	var o owner
	if user != "" {
		if err := o.setUser(user, tree); err != nil {
			return nil, err
		}
	}
	if hasGroup && group != "" {
		id, number := parseID(group)
		if !number {
			line, err := findLine(tree, "etc/group", group, 3)
			if err != nil {
				return nil, fmt.Errorf("group %q: %w", group, err)
			}
			if id, number = parseID(line[2]); !number {
				return nil, fmt.Errorf("group %q has the number %q in /etc/group of the image", group, line[2])
			}
		}
		o.gid = id
	}
	return &o, nil
}

func (o *owner) setUser(user string, tree *image.Tree) error {
	if id, ok := parseID(user); ok {
		o.uid, o.gid = id, id
		return nil
	}
	line, err := findLine(tree, "etc/passwd", user, 4)
	if err != nil {
		return fmt.Errorf("user %q: %w", user, err)
	}
	uid, ok := parseID(line[2])
	gid, ok2 := parseID(line[3])
	if !ok || !ok2 {
		return fmt.Errorf("user %q has the numbers %q and %q in /etc/passwd of the image", user, line[2], line[3])
	}
	o.uid, o.gid = uid, gid
	return nil
}

// parseID reads a user or group number.
func parseID(s string) (int, bool) {
	const last = 1<<32 - 2
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && n <= last
}

// maxAccounts is the most bytes of /etc/passwd and /etc/group that are read.
const maxAccounts = 16 << 20

// findLine returns the fields of the line that begins with name in a file of the image like passwd(5).
func findLine(tree *image.Tree, file, name string, fields int) ([]string, error) {
	if tree == nil {
		return nil, fault.Usage(fault.Hint(errors.New("names mean nothing where the image is not known"), "use numbers with --link"))
	}
	data, err := tree.ReadFile(file, maxAccounts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read /%s of the image: %w", file, cause(err))
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= fields && f[0] == name {
			return f, nil
		}
	}
	return nil, fault.Hint(fmt.Errorf("/%s of the image has no such name", file), "add it in a step before, or use numbers")
}
