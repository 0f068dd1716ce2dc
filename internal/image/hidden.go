package image

import (
	"cmp"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// Hidden are the files of a layer whose content nobody sees, because layers above replace or remove them. They still are a
// part of the image, and are fetched with it.
type Hidden struct {
	Layer   int // 0 the lowest
	Files   int
	Size    int64 // bytes, unpacked
	Largest []layer.Entry
}

// largestHidden is how many files are named.
const largestHidden = 5

// Hidden returns the layers that have hidden files, lowest first. A tree that [TreeOf] made does not know.
func (t *Tree) Hidden() []Hidden { return t.hidden }

// place is where a content is.
type place struct {
	layer  int
	offset int64
	sparse int
}

func findHidden(root *Node, indexes []*layer.Index) []Hidden {
	seen := map[place]bool{}
	root.walkContents(func(n *Node) { seen[place{n.from, n.content.Offset, n.content.Sparse}] = true })
	var hidden []Hidden
	for i, ix := range indexes {
		h := Hidden{Layer: i}
		for j := range ix.Entries {
			e := &ix.Entries[j]
			if e.Type != layer.Regular || e.Size == 0 || seen[place{i, e.Offset, e.Sparse}] || isWhiteout(e.Path) {
				continue
			}
			h.Files++
			h.Size += e.Size
			h.Largest = addLargest(h.Largest, e.Entry)
		}
		if h.Files > 0 {
			hidden = append(hidden, h)
		}
	}
	return hidden
}

func addLargest(largest []layer.Entry, e layer.Entry) []layer.Entry {
	if len(largest) == largestHidden && e.Size <= largest[largestHidden-1].Size {
		return largest
	}
	at, _ := slices.BinarySearchFunc(largest, e, func(a, b layer.Entry) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(a.Path, b.Path))
	})
	largest = slices.Insert(largest, at, e)
	return largest[:min(len(largest), largestHidden)]
}

// walkContents visits every regular file below the node.
func (n *Node) walkContents(visit func(*Node)) {
	for _, c := range n.children {
		if c.Type == layer.Regular {
			visit(c)
		}
		c.walkContents(visit)
	}
}
