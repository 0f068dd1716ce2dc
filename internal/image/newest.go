package image

import (
	"time"

	"sconce.dev/sconce/internal/layer"
)

// Newest returns the time of the tree's newest file. It depends on the tree alone, but for times more than a day from now: they are
// mistakes, and do not count.
func (t *Tree) Newest() time.Time {
	var newest time.Time
	t.root.newest(&newest, time.Now().AddDate(0, 0, 1))
	return newest.Truncate(time.Second).UTC()
}

func (n *Node) newest(newest *time.Time, limit time.Time) {
	if n.ModTime.After(*newest) && n.ModTime.Before(limit) {
		*newest = n.ModTime
	}
	for _, c := range n.children {
		c.newest(newest, limit)
	}
}

// After returns the time of what a step makes on the tree: fixed, or a second more than that of the newest file, so that later steps
// see that it was made after everything that was there. A zero fixed is [layer.DefaultModTime].
func (t *Tree) After(fixed time.Time) time.Time {
	if fixed.IsZero() {
		fixed = layer.DefaultModTime
	}
	if after := t.Newest().Add(time.Second); after.After(fixed) {
		return after
	}
	return fixed
}
