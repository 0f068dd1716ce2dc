package audit

import (
	"context"
	"fmt"
	"io"
	"slices"

	"sconce.dev/sconce/internal/ctxio"
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
	for _, n := range nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.look(ctx, n, wanted, visit); err != nil {
			return err
		}
	}
	return nil
}

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

// look shows a file that is wanted: where it lies, or else in a temporary copy.
func (t treeFiles) look(ctx context.Context, n *image.Node, wanted Filter, visit func(File) error) error {
	r, err := t.tree.OpenAt(n)
	if err != nil {
		return err
	}
	if r == nil {
		return t.lookCopied(ctx, n, wanted, visit)
	}
	defer r.Close()
	head := make([]byte, headSize)
	if _, err := r.ReadAt(head, 0); err != nil {
		return fmt.Errorf("read %q: %w", n.Path, err)
	}
	if !wanted(n.Path, head) {
		return nil
	}
	return visit(File{n.Path, n.Size, r})
}

func (t treeFiles) lookCopied(ctx context.Context, n *image.Node, wanted Filter, visit func(File) error) error {
	r, err := t.tree.Open(n)
	if err != nil {
		return err
	}
	defer r.Close()
	head := make([]byte, headSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("read %q: %w", n.Path, err)
	}
	if !wanted(n.Path, head) {
		return nil
	}
	f, err := scratch(t.st)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(head); err != nil {
		return err
	}
	if _, err := io.CopyN(f, ctxio.Reader(ctx, r), n.Size-headSize); err != nil {
		return fmt.Errorf("read %q: %w", n.Path, err)
	}
	return visit(File{n.Path, n.Size, f})
}
