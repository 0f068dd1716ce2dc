package image

import (
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
)

// stackNames are few, so that layers collide in every way, and some of them odd.
var stackNames = []string{"a", "b", "c", "é", "x\xff", "new\nline", "-", ".wh", "a b"}

// stackPath is a path of up to four components.
func stackPath(r *rand.Rand) string {
	parts := make([]string, 1+r.IntN(4))
	for i := range parts {
		parts[i] = stackNames[min(r.IntN(len(stackNames)), r.IntN(len(stackNames)))]
	}
	return path.Join(parts...)
}

// hostileLayer is a layer that no tool would write: entries in any order, several with one path, below files, and whiteouts of
// all that. Each file has an Offset of its own.
func hostileLayer(r *rand.Rand) []layer.IndexEntry {
	var entries []layer.IndexEntry
	for i := range r.IntN(14) {
		e := layer.IndexEntry{Entry: layer.Entry{Path: stackPath(r), Size: 1, ModTime: layer.DefaultModTime}, Offset: int64(i+1) * 1024}
		switch r.IntN(12) {
		case 0, 1, 2:
			e.Type = layer.Dir
		case 3:
			e.Type, e.Link = layer.Symlink, "a"
		case 4:
			e.Type = layer.Fifo
		case 5, 6:
			e.Path = path.Join(path.Dir(e.Path), layer.WhiteoutPrefix+path.Base(e.Path))
		case 7:
			e.Path = path.Join(path.Dir(e.Path), layer.WhiteoutOpaque)
		}
		entries = append(entries, e)
	}
	return entries
}

// hostileStack is a stack of such layers, with hard links to whatever file there is.
func hostileStack(t *testing.T, r *rand.Rand) []*layer.Index {
	t.Helper()
	var stack []*layer.Index
	for range 1 + r.IntN(5) {
		ix := &layer.Index{Entries: hostileLayer(r)}
		stack = append(stack, ix)
		for range r.IntN(4) {
			e := layer.IndexEntry{Entry: layer.Entry{Path: stackPath(r), Type: layer.HardLink, Link: anyFile(t, r, stack)}}
			if e.Link == "" || r.IntN(10) == 0 {
				continue
			}
			ix.Entries = append(ix.Entries, e)
		}
	}
	return stack
}

// anyFile returns a regular file of the merged stack, or nothing.
func anyFile(t *testing.T, r *rand.Rand, stack []*layer.Index) string {
	t.Helper()
	var files []string
	for _, n := range nodes(treeOf(t, stack)) {
		if n.Type == layer.Regular {
			files = append(files, n.Path)
		}
	}
	if len(files) == 0 {
		return ""
	}
	return files[r.IntN(len(files))]
}

func treeOf(t *testing.T, stack []*layer.Index) *Tree {
	t.Helper()
	tree, err := TreeOf(stack)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func nodes(tree *Tree) []*Node {
	var all []*Node
	_ = tree.Walk(func(n *Node) error { all = append(all, n); return nil })
	return all
}

// A layer that is put on a finished tree makes what merging them all at once makes, numbers of files and counts of names included.
func TestPutIsMerging(t *testing.T) {
	changed := 0
	for seed := range uint64(2000) {
		stack := hostileStack(t, rand.New(rand.NewPCG(seed, 7)))
		want := treeOf(t, stack)
		got := treeOf(t, stack[:len(stack)-1])
		if !reflect.DeepEqual(got.root, want.root) {
			changed++
		}
		if err := got.Put(stack[len(stack)-1]); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: got %d nodes, want %d, or they differ:\n%s", seed, len(nodes(got)), len(nodes(want)), describeStack(stack))
		}
	}
	if changed < 1000 {
		t.Errorf("the stacks are too simple: %d top layers change anything", changed)
	}
}

// TestCoverIsTree walks down random stacks as a reader would, and compares what Cover says with the merged tree.
func TestCoverIsTree(t *testing.T) {
	hidden, visible := 0, 0
	for seed := range uint64(4000) {
		stack := hostileStack(t, rand.New(rand.NewPCG(seed, 6)))
		h, v := checkCover(t, stack)
		hidden, visible = hidden+h, visible+v
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, describeStack(stack))
		}
	}
	if hidden < 5000 || visible < 5000 {
		t.Errorf("the stacks are too simple: %d files are hidden, %d visible", hidden, visible)
	}
}

// checkCover returns how many files layers above hide and how many they do not.
func checkCover(t *testing.T, stack []*layer.Index) (hidden, visible int) {
	t.Helper()
	full := treeOf(t, stack)
	var c Cover
	for i, ix := range slices.Backward(stack) {
		for _, n := range nodes(treeOf(t, stack[:i+1])) {
			if from, _ := n.Content(); n.Type != layer.Regular || n.Layer != i || from != i {
				continue
			}
			if !c.Hides(n.Path) {
				visible++
			} else {
				hidden++
			}
			if seen := sees(full, n); seen == c.Hides(n.Path) {
				t.Errorf("layer %d: Hides(%q) is %t, but that the tree shows it is %t", i, n.Path, !seen, seen)
			}
		}
		for _, e := range ix.Entries {
			c.Add(e.Entry)
		}
	}
	return hidden, visible
}

// sees reports whether the tree shows the node n of a tree of fewer layers: not only a file of the same content that a hard
// link of a layer above has put there.
func sees(tree *Tree, n *Node) bool {
	at := tree.Root()
	for part := range strings.SplitSeq(n.Path, "/") {
		if at = at.child(part); at == nil {
			return false
		}
	}
	_, want := n.Content()
	_, got := at.Content()
	return at.Type == layer.Regular && at.Layer == n.Layer && got.Offset == want.Offset
}

func describeStack(stack []*layer.Index) string {
	var b strings.Builder
	for i, ix := range stack {
		fmt.Fprintf(&b, "layer %d:\n", i)
		for _, e := range ix.Entries {
			fmt.Fprintf(&b, "\t%d %q %q @%d\n", e.Type, e.Path, e.Link, e.Offset)
		}
	}
	return b.String()
}

// checkTree fails unless a tree is one.
func checkTree(t *testing.T, tree *Tree, layers int) {
	t.Helper()
	names := map[int]int{}
	files := map[int]*Node{}
	for _, n := range append(nodes(tree), tree.Root()) {
		names[n.Inode]++
		first := files[n.Inode]
		if first == nil {
			files[n.Inode], first = n, n
		}
		a, at := first.Content()
		b, bt := n.Content()
		switch {
		case a != b || at.Offset != bt.Offset || at.Sparse != bt.Sparse || first.Size != n.Size || first.Type != n.Type:
			t.Fatalf("%q and %q are one file with two contents", first.Path, n.Path)
		case a < 0 || a >= layers || n.Layer < a || n.Layer >= layers && n != tree.Root():
			t.Fatalf("%q is of layer %d, its content of %d, of %d", n.Path, n.Layer, a, layers)
		case n.Type == layer.HardLink || n.Type != layer.Dir && len(n.children) > 0 || n.building != nil:
			t.Fatalf("%q is of type %d and holds %d nodes", n.Path, n.Type, len(n.children))
		}
		checkNames(t, n)
	}
	for inode, n := range files {
		if n.Links != names[inode] {
			t.Fatalf("%q has %d names, and says that it has %d", n.Path, names[inode], n.Links)
		}
	}
}

// checkNames fails unless the paths of what a directory holds are made of its own and a name, in order.
func checkNames(t *testing.T, dir *Node) {
	t.Helper()
	last := ""
	for _, n := range dir.children {
		want := n.name
		if dir.Path != "." {
			want = dir.Path + "/" + n.name
		}
		if n.Path != want || n.name <= last || strings.ContainsAny(n.name, "/\x00") || n.name == "." || n.name == ".." {
			t.Fatalf("%q holds %q, named %q, after %q", dir.Path, n.Path, n.name, last)
		}
		last = n.name
	}
}

// FuzzMerge merges entries that nobody would write. Whatever they are, the result is a tree or an error, and Cover agrees.
//
// Each line is an entry: a letter for the type, the path, and for a link a tab and its target. An empty line starts a layer.
func FuzzMerge(f *testing.F) {
	for seed := range uint64(20) {
		var text strings.Builder
		r := rand.New(rand.NewPCG(seed, 8))
		for range 3 {
			for _, e := range hostileLayer(r) {
				fmt.Fprintf(&text, "%c%s\t%s\n", "rdslcbf"[e.Type], strings.ReplaceAll(e.Path, "\n", ""), e.Link)
			}
			text.WriteString("\n")
		}
		f.Add(text.String())
	}
	f.Add("ra\n\nr.wh..\nr.wh.\nr.wh...\n")
	f.Add("ra\nlb\ta\n\nla\tb\nr.wh.b\n\nda\nra/.wh..wh..opq\n\nla/a\tb")
	f.Fuzz(func(t *testing.T, text string) {
		stack := parseStack(text)
		tree, err := TreeOf(stack)
		if err != nil {
			return
		}
		checkTree(t, tree, len(stack))
		checkCover(t, stack)
	})
}

// parseStack leaves out what no index can hold.
func parseStack(text string) []*layer.Index {
	stack := []*layer.Index{{}}
	for i, line := range strings.Split(text, "\n") {
		if line == "" && len(stack) < 20 {
			stack = append(stack, &layer.Index{})
		}
		if line == "" {
			continue
		}
		e := layer.IndexEntry{Offset: int64(i + 1)}
		e.Path, e.Link, _ = strings.Cut(line[1:], "\t")
		e.Type = layer.Type(max(0, strings.IndexByte("rdslcbf", line[0])))
		if !canHold(e.Path) || e.Type == layer.HardLink && !canHold(e.Link) || e.Path == "." && e.Type != layer.Dir {
			continue
		}
		top := stack[len(stack)-1]
		top.Entries = append(top.Entries, e)
	}
	return stack
}

// canHold reports whether p is a path that an entry may have.
func canHold(p string) bool {
	return p != "" && p[0] != '/' && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../") && !strings.Contains(p, "\x00")
}
