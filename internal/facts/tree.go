package facts

import (
	"context"
	"slices"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Tree are the files of an image in a store, which has room for temporary files and for what is found in the layers.
func Tree(t *image.Tree, st *store.Store) Files { return treeFiles{t, st} }

type treeFiles struct {
	tree *image.Tree
	st   *store.Store
}

func (t treeFiles) Walk(ctx context.Context, wanted Filter, visit func(File) error) error {
	nodes, err := t.nodes()
	if err != nil {
		return err
	}
	c := newCopies(t.st, 0) // each is read once
	defer c.Close()
	for _, n := range nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		o, err := t.open(n, c)
		if err != nil {
			return err
		}
		err = o.show(ctx, candidateOf(n), wanted, func(h elfx.Handle) error { return visit(File{n.Path, n.Size, h}) })
		if err != nil {
			return err
		}
	}
	return nil
}

// open opens a regular file where it lies or, where that is in a stream, at its beginning.
func (t treeFiles) open(n *image.Node, c *copies) (contentOf, error) {
	at, err := t.tree.OpenAt(n)
	if err != nil {
		return contentOf{}, err
	}
	if at != nil {
		return contentOf{at: sizedHandle{at, n.Size}}, nil
	}
	stream, err := t.tree.Open(n)
	return contentOf{stream: stream, copies: c}, err
}

func candidateOf(n *image.Node) candidate { return candidate{n.Path, n.Size, idOf(n)} }

// nodes returns one name of each large enough file in the order in which the contents stand in the layers, so that each
// layer is decompressed once.
func (t treeFiles) nodes() ([]*image.Node, error) {
	var nodes []*image.Node
	seen := map[int]bool{} // by number, files with several names
	err := t.tree.Walk(func(n *image.Node) error {
		if n.Type != layer.Regular || n.Size <= minSize || seen[n.Inode] {
			return nil
		}
		if n.Links > 1 {
			seen[n.Inode] = true
		}
		nodes = append(nodes, n)
		return nil
	})
	slices.SortStableFunc(nodes, compareContent)
	return nodes, err
}
