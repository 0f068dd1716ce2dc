package image

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestHidden: what an upper layer removes or replaces is still in the image, and its size is known.
func TestHidden(t *testing.T) {
	st := storetest.Alone(t)
	tree := makeTree(t, st,
		[]object{file("a/kept", "kept"), file("a/removed", "removed!"), file("a/replaced", "before"), dir("a"), file("b/x", "in an opaque directory"), dir("b")},
		[]object{dir("a"), file("a/.wh.removed", ""), file("a/replaced", "after"), dir("b"), file("b/.wh..wh..opq", ""), file("b/y", "y")},
		[]object{dir("a"), file("a/replaced", "once more")},
	)
	type seen struct {
		Layer, Files int
		Size         int64
		Largest      []string
	}
	var got []seen
	for _, h := range tree.Hidden() {
		s := seen{Layer: h.Layer, Files: h.Files, Size: h.Size}
		for _, e := range h.Largest {
			s.Largest = append(s.Largest, e.Path)
		}
		got = append(got, s)
	}
	want := []seen{
		{0, 3, int64(len("in an opaque directory") + len("removed!") + len("before")), []string{"b/x", "a/removed", "a/replaced"}},
		{1, 1, int64(len("after")), []string{"a/replaced"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestHiddenLink: a file is seen as long as one of its names is.
func TestHiddenLink(t *testing.T) {
	st := storetest.Alone(t)
	tree := makeTree(t, st,
		[]object{file("a", "content"), {Entry: layer.Entry{Path: "b", Type: layer.HardLink, Link: "a"}}},
		[]object{file(".wh.a", "")},
	)
	if len(tree.Hidden()) != 0 {
		t.Error(tree.Hidden())
	}
}
