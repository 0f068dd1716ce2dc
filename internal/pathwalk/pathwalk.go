// Package pathwalk finds what a path leads to in a file system that is not mounted, such as an image: as Linux does it for a
// process whose root that is (path_resolution(7)). Symbolic links are followed below the root, and ".." at the root stays there.
package pathwalk

import (
	"slices"
	"strings"
	"syscall"
)

// MaxSymlinks is how many symbolic links Linux follows in one path.
const MaxSymlinks = 40

// Walk goes through the components of a path one after the other. The target of a symbolic link takes the place of its name.
type Walk struct {
	rest  []string // the last comes first
	links int
}

// Begin begins at the front of a path.
func Begin(path string) *Walk { return &Walk{rest: reversed(path)} }

func reversed(path string) []string {
	parts := strings.Split(path, "/")
	slices.Reverse(parts)
	return parts
}

// Next returns the next component: a name, ".." or "."; "." stands for empty components, too. It reports false behind the last.
func (w *Walk) Next() (part string, ok bool) {
	if len(w.rest) == 0 {
		return "", false
	}
	part = w.rest[len(w.rest)-1]
	w.rest = w.rest[:len(w.rest)-1]
	if part == "" {
		part = "."
	}
	return part, true
}

// AtEnd reports whether nothing follows, not even a slash.
func (w *Walk) AtEnd() bool { return len(w.rest) == 0 }

// IsLast reports whether no name follows: nothing but slashes and points.
func (w *Walk) IsLast() bool {
	return !slices.ContainsFunc(w.rest, func(s string) bool { return s != "" && s != "." })
}

// Follow goes on with the target of a symbolic link, from the root when fromRoot and else from the directory that holds the link.
// The error is syscall.ELOOP when it is one link too many.
func (w *Walk) Follow(target string) (fromRoot bool, err error) {
	if w.links++; w.links > MaxSymlinks {
		return false, syscall.ELOOP
	}
	w.rest = append(w.rest, reversed(target)...)
	return strings.HasPrefix(target, "/"), nil
}

// Node is an object of a file system: a file, a directory, a symbolic link.
type Node[N any] interface {
	IsDir() bool
	// Symlink returns the target of a symbolic link.
	Symlink() (target string, ok bool)
	// Child returns what a directory holds under a name. The error wraps fs.ErrNotExist when that is nothing.
	Child(name string) (N, error)
}

// Find returns what path leads to below root. A link at the end is followed only with follow, or with a slash behind it. The
// error is syscall.ENOTDIR, syscall.ELOOP or that of Child.
func Find[N Node[N]](root N, path string, follow bool) (N, error) {
	at := []N{root} // the directories on the way, so that ".." is the one before
	var none N
	w := Begin(path)
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		dir := at[len(at)-1]
		if !dir.IsDir() {
			return none, syscall.ENOTDIR
		}
		switch part {
		case ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		n, err := dir.Child(part)
		if err != nil {
			return none, err
		}
		target, isLink := n.Symlink()
		if !isLink || !follow && w.AtEnd() {
			at = append(at, n)
			continue
		}
		fromRoot, err := w.Follow(target)
		if err != nil {
			return none, err
		}
		if fromRoot {
			at = at[:1]
		}
	}
	return at[len(at)-1], nil
}
