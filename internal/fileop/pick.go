package fileop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
)

// picked is one source.
type picked struct {
	node *node
	name string // what it is called in a directory that it is copied to
	base *node  // with Parents: from where on directories are kept
	rel  string // with Parents: its path below base
	p    string // what patterns see: the name of a file, and "" for a directory, of which they see what it holds

	arrived bool // it is a remote or inline file, which is never unpacked
}

func inlineNode(f InlineFile) picked {
	name := ownName(f.Name)
	return picked{name: name, p: name, arrived: true, node: &node{
		Entry: layer.Entry{Path: name, Mode: 0o644, Size: int64(len(f.Content))}, name: name,
		open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(f.Content))), nil },
	}}
}

// pick finds the sources, in the order in which they are copied.
func (c Copy) pick(ctx context.Context, from Files) ([]picked, error) {
	if len(c.Sources) == 0 {
		return nil, nil
	}
	if from == nil {
		return nil, errors.New("there is nowhere to copy files from")
	}
	root, err := from.top(ctx)
	if err != nil {
		return nil, err
	}
	var list []picked
	for _, s := range c.Sources {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var found []picked
		if c.Parents {
			found, err = pickBelow(from, root, s)
		} else {
			found, err = pickMatches(from, root, s)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

const wildcards = `*?[`

// hasWildcard reports whether a component of a path is a pattern.
func hasWildcard(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
		} else if strings.IndexByte(wildcards, s[i]) >= 0 {
			return true
		}
	}
	return false
}

// clean makes a path of a source relative to the source's root: "." is the root.
func clean(p string) string {
	if p = strings.TrimPrefix(path.Clean("/"+p), "/"); p == "" {
		return "."
	}
	return p
}

// unescape takes out the backslashes that make characters of patterns ordinary ones.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// pickMatches finds what a path or pattern names.
func pickMatches(from Files, root *node, source string) ([]picked, error) {
	parts := strings.Split(clean(source), "/")
	fixed := 0
	for fixed < len(parts) && !hasWildcard(parts[fixed]) {
		parts[fixed] = unescape(parts[fixed])
		fixed++
	}
	dir := path.Join(parts[:fixed]...)
	top, err := root.find(dir, true)
	if fixed == len(parts) {
		if err != nil {
			return nil, from.missing(dir, err)
		}
		return []picked{pickedNode(top, path.Base(dir))}, nil
	}
	if err != nil {
		return nil, from.missing(dir, err)
	}
	return match(from, root, top, parts[fixed:])
}

func pickedNode(n *node, name string) picked {
	p := picked{node: n, name: name, p: name}
	if n.Type == dirType {
		p.p = ""
	}
	return p
}

// match finds what matches below a directory, component by component. Symlinks are not passed through; one that matches at the
// end is followed.
func match(from Files, root, dir *node, parts []string) ([]picked, error) {
	if dir.Type != dirType {
		return nil, nil
	}
	all, err := dir.children()
	if err != nil {
		return nil, err
	}
	var list []picked
	for _, c := range all {
		ok, err := path.Match(parts[0], c.name)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("source pattern %q: its brackets or backslashes do not pair", strings.Join(parts, "/")))
		}
		if !ok {
			continue
		}
		if len(parts) > 1 {
			found, err := match(from, root, c, parts[1:])
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
			continue
		}
		n, err := root.find(c.Path, true)
		if err != nil {
			return nil, from.missing(c.Path, err)
		}
		list = append(list, pickedNode(n, c.name))
	}
	return list, nil
}

// pickBelow finds what a path or pattern names, where "**" stands for any number of directories and no symlink is followed.
func pickBelow(from Files, root *node, source string) ([]picked, error) {
	pivot, pattern, ok := strings.Cut(source, "/./")
	if !ok {
		pivot, pattern = "", source
	}
	bases, err := pickMatches(from, root, pivot)
	if err != nil {
		return nil, err
	}
	var list []picked
	for _, base := range bases {
		found, err := pickInside(from, base.node, source, clean(pattern), hasWildcard(pivot))
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

// pickInside finds what a pattern names below one of the directories that may stand before it. Where those are several, it is
// enough that one of them has it.
func pickInside(from Files, base *node, source, pattern string, several bool) ([]picked, error) {
	if !hasWildcard(pattern) {
		p := unescape(pattern)
		n, err := base.find(p, false)
		if err != nil && several && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
			return nil, nil
		}
		if err != nil {
			return nil, from.missing(path.Join(base.Path, p), err)
		}
		if n == base {
			p = ""
		}
		return []picked{{node: n, base: base, rel: p, p: p}}, nil
	}
	matches, err := newPattern(pattern)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("source pattern %q: %w", source, err))
	}
	var list []picked
	err = base.walk("", func(n *node, p string) error {
		if p == "" || !matches.match(p) {
			return nil
		}
		list = append(list, picked{node: n, base: base, rel: p, p: p})
		if n.Type == dirType {
			return fs.SkipDir
		}
		return nil
	})
	return list, err
}

// without is what is left of a source when something is excluded, or nil.
func (p picked) without(exclude *patterns) (*node, error) {
	if len(exclude.list) == 0 || p.arrived {
		return p.node, nil
	}
	if p.p == "" {
		if p.node.Type != dirType {
			return p.node, nil
		}
		return exclude.filtered(p.node, "", nil), nil
	}
	return exclude.without(p.node, p.p, exclude.above(p.p))
}
