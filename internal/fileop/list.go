package fileop

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/layer"
)

// FileSum is one file of what a Copy takes, with what [Copy.Digest] knows it by.
type FileSum struct {
	Path string `json:"path"`
	Sum  string `json:"sum"` // its type and permissions, and its content or target
}

// List lists the files that the copy takes, at most limit of them, by the paths they have among its sources. After
// [Copy.Digest] nothing is read again.
func (c Copy) List(ctx context.Context, from Files, limit int) ([]FileSum, error) {
	list, err := c.chosen(ctx, from)
	if err != nil {
		return nil, err
	}
	if err := hashAll(ctx, list); err != nil {
		return nil, err
	}
	var sums []FileSum
	for _, p := range list {
		if p.node == nil {
			continue
		}
		err := p.node.walk("", func(n *node, _ string) error {
			if len(sums) < limit && (n.Type != layer.Dir || n.Path != "") {
				sums = append(sums, FileSum{Path: n.Path, Sum: n.summary()})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func (n *node) summary() string {
	return fmt.Sprintf("%d %o %s%s", n.Type, n.Mode, n.known(), n.Link)
}
