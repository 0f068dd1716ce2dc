package image

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// treeBuilder puts layers on top of each other.
type treeBuilder struct {
	root   *Node
	inodes int
	above  bool // there are layers below: what hides files of theirs stays, see [UpperTreeOf]
}

func newTreeBuilder(above bool) *treeBuilder {
	b := &treeBuilder{above: above}
	b.root = b.impliedDir(".", 0)
	return b
}

// apply puts a layer on top. Whiteouts hide what lies below the layer and nothing in it, wherever in the layer they
// stand, so they come first.
func (b *treeBuilder) apply(number int, entries []layer.IndexEntry) error {
	for i := range entries {
		if b.above {
			b.hideBelow(number, entries[i].Path)
		} else {
			b.hide(entries[i].Path)
		}
	}
	for i := range entries {
		e := &entries[i]
		if isWhiteout(e.Path) {
			continue
		}
		if e.Type != layer.HardLink {
			b.put(number, e)
		} else if !b.link(number, e) {
			return fmt.Errorf("%q is a hard link to %q, which is no earlier regular file", e.Path, e.Link)
		}
	}
	return nil
}

// hide removes what the whiteout p names.
func (b *treeBuilder) hide(p string) {
	if path.Base(p) == layer.WhiteoutOpaque {
		if dir := b.find(above(p)); dir != nil {
			dir.building, dir.children = nil, nil
		}
		return
	}
	hidden := layer.WhitesOut(p)
	if hidden == "" {
		return
	}
	if dir := b.find(above(hidden)); dir != nil {
		delete(dir.names(), path.Base(hidden))
	}
}

// hideBelow does what the whiteout p says to the layers that are here, and leaves a mark for those below them.
func (b *treeBuilder) hideBelow(number int, p string) {
	if path.Base(p) == layer.WhiteoutOpaque {
		dir := b.parent(number, p)
		dir.building, dir.children, dir.Hides = nil, nil, EverythingBelow
		return
	}
	hidden := layer.WhitesOut(p)
	if hidden == "" {
		return
	}
	n := b.node(number, &layer.IndexEntry{Entry: layer.Entry{Path: hidden, Type: layer.Char, ModTime: layer.DefaultModTime}})
	n.Hides = NameBelow
	b.parent(number, hidden).put(n)
}

// find returns the node at p, following nothing, or nil.
func (b *treeBuilder) find(p string) *Node {
	n := b.root
	if p == "." {
		return n
	}
	for part := range strings.SplitSeq(p, "/") {
		if n = n.names()[part]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns the directory that holds p. What stands in its way is replaced by a directory.
func (b *treeBuilder) parent(number int, p string) *Node {
	n := b.root
	for _, dir := range layer.Parents(p) {
		name := path.Base(dir)
		next := n.names()[name]
		if next == nil || next.Type != layer.Dir {
			made := b.impliedDir(dir, number)
			b.takesPlace(made, next)
			n.put(made)
			next = made
		}
		n = next
	}
	return n
}

// impliedDir is a directory that a layer has no entry for.
func (b *treeBuilder) impliedDir(p string, number int) *Node {
	return b.node(number, &layer.IndexEntry{Entry: layer.Entry{Path: p, Type: layer.Dir, Mode: 0o755, ModTime: layer.DefaultModTime}})
}

func (b *treeBuilder) node(number int, e *layer.IndexEntry) *Node {
	b.inodes++
	return &Node{
		Entry: e.Entry, Layer: number, Inode: b.inodes, from: number, name: path.Base(e.Path),
		content: layer.IndexEntry{Offset: e.Offset, Sparse: e.Sparse},
	}
}

// names are what a directory holds, while layers are put on top. Those of a directory that was settled before come back when they are
// asked for.
func (n *Node) names() map[string]*Node {
	if n.building == nil && n.children != nil {
		n.building = make(map[string]*Node, len(n.children))
		for _, c := range n.children {
			n.building[c.name] = c
		}
		n.children = nil
	}
	return n.building
}

func (n *Node) put(child *Node) {
	if n.names() == nil {
		n.building = map[string]*Node{}
	}
	n.building[child.name] = child
}

func (b *treeBuilder) put(number int, e *layer.IndexEntry) {
	n := b.node(number, e)
	if e.Path == "." {
		n.building, n.children, n.Hides = b.root.building, b.root.children, b.root.Hides
		b.root = n
		return
	}
	dir := b.parent(number, e.Path)
	if old := dir.names()[n.name]; n.Type == layer.Dir {
		b.takesPlace(n, old)
	}
	dir.put(n)
}

// takesPlace puts a directory in the place of what is there, nil for nothing. What was there and is not a directory has hidden what layers
// below have in that place.
func (b *treeBuilder) takesPlace(dir, old *Node) {
	switch {
	case old == nil:
	case old.Type == layer.Dir:
		dir.building, dir.children, dir.Hides = old.building, old.children, old.Hides
	case b.above:
		dir.Hides = EverythingBelow
	}
}

// link adds another name of a file and reports whether the file was found.
func (b *treeBuilder) link(number int, e *layer.IndexEntry) bool {
	target := b.find(e.Link)
	if target == nil || target.Type != layer.Regular {
		return false
	}
	n := *target
	n.Path, n.name, n.Layer = e.Path, path.Base(e.Path), number
	b.parent(number, e.Path).put(&n)
	return true
}

// finish sorts the directories and counts the names of each file.
func (b *treeBuilder) finish() *Node {
	links := make([]int32, b.inodes+1)
	b.root.settle(links)
	b.root.count(links)
	return b.root
}

func (n *Node) settle(links []int32) {
	links[n.Inode]++
	if n.building != nil {
		n.children = slices.SortedFunc(maps.Values(n.building), func(a, b *Node) int { return strings.Compare(a.name, b.name) })
		n.building = nil
	}
	for _, c := range n.children {
		c.settle(links)
	}
}

func (n *Node) count(links []int32) {
	n.Links = int(links[n.Inode])
	for _, c := range n.children {
		c.count(links)
	}
}
