package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/store"
)

// Tree is what a process in the image would see: its layers merged, whiteouts taken out and hard links resolved. It
// holds names and attributes; contents are read from the layers when opened. A Tree is not changed after it is made
// but by Put, and its other methods may be called from many goroutines.
//
// Layers are merged as the overlay file system does it, not as a tool that extracts them over each other: a directory
// hides whatever else the layers below have under its name, a symlink to a directory included. So where the base has
// lib -> usr/lib and a layer brings lib/x, lib is a directory with the single file x.
type Tree struct {
	root   *Node
	inodes int            // the highest number of a file
	layers []*layer.Index // for the contents; their entries are not used
	hidden []Hidden
}

// Node is one object of the tree. Its Type is never HardLink: each name of a file is a Regular node, and those with
// the same Inode are one file.
type Node struct {
	layer.Entry
	Layer int // which layer it is from, 0 the lowest; for the other names of a file, the one that named it
	Inode int // number of the file, the same for all its names; unique in the tree
	Links int // how many names of the file the tree has, at least 1
	Hides Hides

	content  layer.IndexEntry // where its bytes are: Offset and Sparse only
	from     int              // the layer that holds them
	name     string
	children []*Node // of a directory, by name
	building map[string]*Node
}

// Hides says what a node of an [UpperTreeOf] hides of the layers below.
type Hides byte

// What a node can hide, besides what everything hides: a directory hides files of its name, and everything else hides what has its
// name.
const (
	NothingMore     Hides = iota
	EverythingBelow       // a directory: what layers below have in it
	NameBelow             // what has its name; there is no such file
)

// Name returns the last component of the node's path.
func (n *Node) Name() string { return n.name }

// Content says where the bytes of a regular file are: the layer, 0 the lowest, and Offset and Sparse in its tar. They are
// the same for all names of the file, wherever those come from.
func (n *Node) Content() (number int, at layer.IndexEntry) {
	at = n.content
	at.Entry = n.Entry
	return n.from, at
}

// Tree returns the merged tree of the image's layers.
func (im *Image) Tree(ctx context.Context, st *store.Store) (*Tree, error) {
	return NewTree(ctx, st, im.Layers)
}

// NewTree merges layers, lowest first.
func NewTree(ctx context.Context, st *store.Store, layers []layer.Descriptor) (*Tree, error) {
	indexes, err := openIndexes(ctx, st, layers)
	if err != nil {
		return nil, err
	}
	return mergeIndexes(indexes, layers)
}

// mergeIndexes merges the layers of an image, and takes the entries from their indexes.
func mergeIndexes(indexes []*layer.Index, layers []layer.Descriptor) (*Tree, error) {
	b := newTreeBuilder(false)
	for i, ix := range indexes {
		if err := b.apply(i, ix.Entries); err != nil {
			return nil, fmt.Errorf("merge layer %s: %w", layers[i].Digest.Short(), err)
		}
	}
	t := &Tree{root: b.finish(), inodes: b.inodes, layers: indexes}
	t.hidden = findHidden(t.root, indexes)
	for _, ix := range indexes {
		ix.Entries = nil // the nodes hold what is needed of them
	}
	return t, nil
}

// TreeOf merges layers whose indexes are there, lowest first. It leaves the indexes as they are; contents are read through
// them.
func TreeOf(indexes []*layer.Index) (*Tree, error) { return mergedTree(indexes, false) }

// UpperTreeOf merges layers that stand on others, which are not here. Its nodes say what they hide of those: the tree over the one of
// the layers below, by these marks, is the tree of all.
func UpperTreeOf(indexes []*layer.Index) (*Tree, error) { return mergedTree(indexes, true) }

func mergedTree(indexes []*layer.Index, above bool) (*Tree, error) {
	b := newTreeBuilder(above)
	for i, ix := range indexes {
		if err := b.apply(i, ix.Entries); err != nil {
			return nil, fmt.Errorf("merge layer %d: %w", i+1, err)
		}
	}
	return &Tree{root: b.finish(), inodes: b.inodes, layers: slices.Clone(indexes)}, nil
}

// Put puts one more layer on top of a tree of [TreeOf], which becomes what TreeOf makes of them all. That is quicker for a layer with few
// files, as only the directories that it changes are made anew. Nodes that somebody holds may be none of the tree's any more.
func (t *Tree) Put(top *layer.Index) error {
	b := &treeBuilder{root: t.root, inodes: t.inodes}
	if err := b.apply(len(t.layers), top.Entries); err != nil {
		return fmt.Errorf("merge layer %d: %w", len(t.layers)+1, err)
	}
	t.root, t.inodes, t.layers = b.finish(), b.inodes, append(t.layers, top)
	return nil
}

func openIndexes(ctx context.Context, st *store.Store, layers []layer.Descriptor) ([]*layer.Index, error) {
	indexes := make([]*layer.Index, len(layers))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range layers {
		group.Go(func() (err error) {
			indexes[i], err = layer.OpenIndex(ctx, st, d)
			return err
		})
	}
	return indexes, group.Wait()
}

// DiffIDs returns what the layers unpack to, lowest first; "" for one that is in no store.
func (t *Tree) DiffIDs() []store.Digest {
	ids := make([]store.Digest, len(t.layers))
	for i, ix := range t.layers {
		ids[i] = ix.DiffID
	}
	return ids
}

// Root returns the root directory.
func (t *Tree) Root() *Node { return t.root }

// Lookup returns what name refers to. Symlinks are followed inside the tree; ".." at the root stays there. The error
// wraps fs.ErrNotExist, syscall.ENOTDIR or syscall.ELOOP.
func (t *Tree) Lookup(name string) (*Node, error) { return t.lookup("lookup", name, true) }

// Lstat is Lookup but for a symlink at the end of name, which it returns.
func (t *Tree) Lstat(name string) (*Node, error) { return t.lookup("lstat", name, false) }

func (t *Tree) lookup(op, name string, follow bool) (*Node, error) {
	n, err := pathwalk.Find(t.root, name, follow)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return n, nil
}

// IsDir is for [pathwalk.Find], as are Symlink and Child.
func (n *Node) IsDir() bool { return n.Type == layer.Dir }

// Symlink returns the target of a symlink.
func (n *Node) Symlink() (target string, ok bool) { return n.Link, n.Type == layer.Symlink }

// Child returns what a directory holds under a name.
func (n *Node) Child(name string) (*Node, error) {
	if c := n.child(name); c != nil {
		return c, nil
	}
	return nil, fs.ErrNotExist
}

// Children returns what a directory holds, by name. The slice is the tree's.
func (n *Node) Children() []*Node { return n.children }

func (n *Node) child(name string) *Node {
	i, ok := slices.BinarySearchFunc(n.children, name, func(c *Node, name string) int { return strings.Compare(c.name, name) })
	if !ok {
		return nil
	}
	return n.children[i]
}

// ReadDir returns what the directory name holds, by name. Symlinks in name are followed.
func (t *Tree) ReadDir(name string) ([]*Node, error) {
	n, err := t.lookup("readdir", name, true)
	if err != nil {
		return nil, err
	}
	if n.Type != layer.Dir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: syscall.ENOTDIR}
	}
	return slices.Clone(n.children), nil
}

// Open opens the content of a regular file.
func (t *Tree) Open(n *Node) (io.ReadCloser, error) {
	from, at := n.Content()
	return t.layers[from].OpenContent(at)
}

// OpenAt opens the content of a regular file to be read in any order. It returns nil where that would be slow: see
// [layer.Index.OpenAt].
func (t *Tree) OpenAt(n *Node) (layer.RandomReader, error) {
	from, at := n.Content()
	return t.layers[from].OpenAt(at)
}

// ReadFile reads the file name, following symlinks. A file of more than limit bytes is an error.
func (t *Tree) ReadFile(name string, limit int64) ([]byte, error) {
	n, err := t.lookup("read", name, true)
	if err != nil {
		return nil, err
	}
	if n.Type != layer.Regular {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errNotRegular}
	}
	if n.Size > limit {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("its %d bytes are more than the %d expected", n.Size, limit)}
	}
	r, err := t.Open(n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := make([]byte, n.Size)
	_, err = io.ReadFull(r, data)
	return data, err
}

var errNotRegular = errors.New("not a regular file")

// Walk calls visit for everything below the root, each directory before what it holds and names in order: the order of
// [layer.Less]. When visit returns fs.SkipDir for a directory, what it holds is left out; any other error ends the walk.
func (t *Tree) Walk(visit func(n *Node) error) error {
	return walk(t.root, visit)
}

func walk(dir *Node, visit func(n *Node) error) error {
	for _, n := range dir.children {
		err := visit(n)
		if errors.Is(err, fs.SkipDir) && n.Type == layer.Dir {
			continue
		}
		if err != nil {
			return err
		}
		if err := walk(n, visit); err != nil {
			return err
		}
	}
	return nil
}
