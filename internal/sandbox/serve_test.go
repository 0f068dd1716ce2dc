package sandbox

import (
	"errors"
	"testing"

	"sconce.dev/sconce/internal/fuse"
)

// attributed is a tree with or without extended attributes.
type attributed struct {
	fuse.Node
	xattrs map[string]string
}

func (a attributed) Attr() fuse.Attr { return fuse.Attr{Ino: 1} }

func (a attributed) Lookup(string) (fuse.Node, error) { return a, nil }

func (a attributed) Xattrs() (map[string]string, error) {
	if a.xattrs == nil {
		return nil, errors.ErrUnsupported
	}
	return a.xattrs, nil
}

// If no tree has extended attributes, every file says so, which makes the kernel stop asking; otherwise none does.
func TestAttributesOfSeveralTrees(t *testing.T) {
	none, some := attributed{}, attributed{xattrs: map[string]string{}}
	for _, c := range []struct {
		name  string
		trees grove
		asked bool
	}{{"none", grove{none, none}, false}, {"one of two", grove{none, some}, true}} {
		tree, err := c.trees.Lookup("0")
		if err != nil {
			t.Fatal(err)
		}
		below, err := tree.Lookup("f")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []fuse.Node{c.trees, tree, below} {
			if _, err := n.Xattrs(); errors.Is(err, errors.ErrUnsupported) == c.asked {
				t.Errorf("%s: %T: %v", c.name, n, err)
			}
		}
	}
}
