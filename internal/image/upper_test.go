package image

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
)

// seen is a file as somebody sees it who looks at layers over each other.
type seen struct {
	node     *Node
	children map[string]seen
}

// over puts a tree over what is seen of those below it, nil for nothing, as an overlay does.
func over(up *Node, down *seen) seen {
	s := seen{up, map[string]seen{}}
	if up.Type != layer.Dir {
		return s
	}
	if down != nil && down.node.Type == layer.Dir && up.Hides != EverythingBelow {
		s.children = down.children
	}
	for _, n := range up.children {
		var below *seen
		if d, ok := s.children[n.name]; ok {
			below = &d
		}
		delete(s.children, n.name)
		if n.Hides != NameBelow {
			s.children[n.name] = over(n, below)
		}
	}
	return s
}

// String lists all files: their paths and kinds, and where their contents are.
func (s seen) String() string {
	var lines []string
	var list func(string, seen)
	list = func(p string, s seen) {
		line := fmt.Sprintf("%q %d", p, s.node.Type)
		if s.node.Type == layer.Regular {
			_, at := s.node.Content()
			line += fmt.Sprintf(" @%d", at.Offset)
		}
		lines = append(lines, line)
		for name, c := range s.children {
			list(p+"/"+name, c)
		}
	}
	list("", s)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// separateStack is a stack of hostile layers that can be unpacked alone: a hard link is to a file of its layer.
func separateStack(t *testing.T, r *rand.Rand) []*layer.Index {
	t.Helper()
	stack := make([]*layer.Index, 2+r.IntN(4))
	for i := range stack {
		ix := &layer.Index{Entries: hostileLayer(r)}
		if target := anyFile(t, r, []*layer.Index{ix}); target != "" {
			ix.Entries = append(ix.Entries, layer.IndexEntry{Entry: layer.Entry{Path: stackPath(r), Type: layer.HardLink, Link: target}})
		}
		for e := range ix.Entries {
			ix.Entries[e].Offset += int64(i) << 32 // which tells the layers' contents apart
		}
		stack[i] = ix
	}
	return stack
}

// Layers that were merged hide of others what each of them would hide.
func TestUpperTree(t *testing.T) {
	marks := 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 15))
		stack := separateStack(t, r)
		split := 1 + r.IntN(len(stack)-1)
		base := over(upperTreeOf(t, stack[:1]).Root(), nil)
		for _, ix := range stack[1:split] {
			base = over(upperTreeOf(t, []*layer.Index{ix}).Root(), &base)
		}
		before := base.String()
		merged := upperTreeOf(t, stack[split:])
		for _, n := range nodes(merged) {
			if n.Hides != NothingMore {
				marks++
			}
		}
		got := over(merged.Root(), clone(base)).String()
		for _, ix := range stack[split:] {
			base = over(upperTreeOf(t, []*layer.Index{ix}).Root(), &base)
		}
		if want := base.String(); got != want {
			t.Fatalf("seed %d, from layer %d on:\n%s\nover\n%s\ngives\n%s\nwant\n%s", seed, split, describeStack(stack), before, got, want)
		}
	}
	if marks < 5000 {
		t.Errorf("the stacks are too simple: %d marks", marks)
	}
}

func clone(s seen) *seen {
	c := seen{s.node, make(map[string]seen, len(s.children))}
	for name, child := range s.children {
		c.children[name] = *clone(child)
	}
	return &c
}

func upperTreeOf(t *testing.T, stack []*layer.Index) *Tree {
	t.Helper()
	tree, err := UpperTreeOf(stack)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
