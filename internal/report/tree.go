package report

import (
	"cmp"
	"encoding/json"
	"math"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
)

// kind says what a file is for, which is its colour in the map. The script has the same list.
type kind int

const (
	deviceCode kind = iota // for GPUs
	binary                 // other programs and libraries
	pythonCode
	forBuilding // headers, static libraries
	otherFiles
	smallFiles // several in one
	kinds
)

var kindNames = [kinds]string{
	"with code for GPUs", "other programs and libraries", "Python code", "headers, static libraries", "other files", "small files together",
}

// kindsOf knows the kinds of files that were looked into.
type kindsOf map[string]kind

func newKinds(f *facts.Facts) kindsOf {
	k := kindsOf{}
	for i := range f.Objects {
		k[f.Objects[i].Path] = binary
	}
	if f.GPU != nil {
		for i := range f.GPU.Libraries {
			k[f.GPU.Libraries[i].Path] = deviceCode
		}
	}
	return k
}

func (k kindsOf) of(p string) kind {
	if known, ok := k[p]; ok {
		return known
	}
	base := path.Base(p)
	switch ext := strings.ToLower(path.Ext(base)); ext {
	case ".py", ".pyc", ".pyi", ".pyx", ".pxd":
		return pythonCode
	case ".h", ".hpp", ".hh", ".cuh", ".hxx", ".a", ".o", ".cmake", ".inl":
		return forBuilding
	case ".so":
		return binary
	}
	if strings.Contains(base, ".so.") {
		return binary
	}
	return otherFiles
}

// dir is a directory of the image.
type dir struct {
	name  string
	size  int64 // bytes, of everything below
	count int   // files
	dirs  []*dir
	files []leaf
}

// leaf is a file, or several that are small.
type leaf struct {
	name  string
	count int // of files, when name is ""
	size  int64
	layer int
	kind  kind
	pkg   int
}

// treeOf puts the files into their directories.
func treeOf(files []File, o *owners, k kindsOf) *dir {
	root := &dir{}
	known := map[string]*dir{".": root}
	for i := range files {
		f := &files[i]
		d := directory(known, path.Dir(f.Path))
		l := leaf{name: path.Base(f.Path), count: 1, size: max(f.Size, 0), layer: f.Layer, kind: k.of(f.Path), pkg: o.of(f.Path)}
		p := &o.packages[l.pkg]
		p.Size, p.Files = p.Size+l.size, p.Files+1
		d.files = append(d.files, l)
	}
	root.sum()
	return root
}

// directory returns the directory at a clean path, and makes it and those above it where they are missing. An image has no path
// deeper than its longest name has slashes, so that this ends.
func directory(known map[string]*dir, p string) *dir {
	if d, ok := known[p]; ok {
		return d
	}
	d := &dir{name: path.Base(p)}
	known[p] = d
	above := directory(known, path.Dir(p))
	above.dirs = append(above.dirs, d)
	return d
}

// sum fills in the sizes and puts everything in order, the largest first.
func (d *dir) sum() {
	for i := range d.files {
		d.size, d.count = d.size+d.files[i].size, d.count+1
	}
	for _, below := range d.dirs {
		below.sum()
		d.size, d.count = d.size+below.size, d.count+below.count
	}
	slices.SortFunc(d.dirs, func(a, b *dir) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name)) })
	slices.SortFunc(d.files, func(a, b leaf) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name)) })
}

// small collects what is too small to be shown by itself: for each layer and package one leaf.
type small map[[2]int]*leaf

func (s small) add(l leaf) {
	key := [2]int{l.layer, l.pkg}
	if s[key] == nil {
		s[key] = &leaf{layer: l.layer, pkg: l.pkg, kind: smallFiles}
	}
	s[key].count += l.count
	s[key].size += l.size
}

func (s small) addAll(d *dir) {
	for _, l := range d.files {
		s.add(l)
	}
	for _, below := range d.dirs {
		s.addAll(below)
	}
}

// list returns the leaves in order.
func (s small) list() []leaf {
	var all []leaf
	for _, l := range s {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b leaf) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.layer, b.layer), cmp.Compare(a.pkg, b.pkg))
	})
	return all
}

// coarse returns the directory with files and directories of less than least bytes put together. One such file alone stays.
func (d *dir) coarse(least int64) *dir {
	if least <= 0 {
		return d
	}
	c := &dir{name: d.name, size: d.size, count: d.count}
	few := small{}
	for _, l := range d.files {
		if l.size < least {
			few.add(l)
		} else {
			c.files = append(c.files, l)
		}
	}
	for _, below := range d.dirs {
		if below.size < least {
			few.addAll(below)
		} else {
			c.dirs = append(c.dirs, below.coarse(least))
		}
	}
	c.files = append(c.files, few.list()...)
	return c
}

// jsonDir is a directory as the script reads it.
type jsonDir struct {
	Name  string     `json:"n"`
	Dirs  []*jsonDir `json:"d,omitempty"`
	Files []any      `json:"f,omitempty"` // for each: name, or the number of small ones; bytes; layer; kind; package
}

func (d *dir) encode() *jsonDir {
	j := &jsonDir{Name: shown(d.name), Files: make([]any, 0, 5*len(d.files))}
	for i := range d.files {
		l := &d.files[i]
		var name any = l.count
		if l.name != "" {
			name = shown(l.name)
		}
		j.Files = append(j.Files, name, l.size, l.layer, l.kind, l.pkg)
	}
	for _, below := range d.dirs {
		j.Dirs = append(j.Dirs, below.encode())
	}
	return j
}

// maxTree bounds the JSON of the files, in bytes: what a browser reads in a fraction of a second.
const maxTree = 3 << 19

// leafCost is what a leaf or directory takes in the JSON besides its name, in bytes, roughly.
const leafCost = 24

// cost is roughly how much JSON the directory takes when files and directories of less than least bytes are put together.
func (d *dir) cost(least int64) int {
	n := len(d.name) + leafCost
	for i := range d.files { // the largest first
		if d.files[i].size < least {
			n += leafCost
			break
		}
		n += len(d.files[i].name) + leafCost
	}
	for _, below := range d.dirs {
		if below.size < least {
			break
		}
		n += below.cost(least)
	}
	return n
}

// encodeTree writes the tree with as many files as there is room for, and says from which size on there are all, in bytes.
func encodeTree(root *dir) (data json.RawMessage, least int64, err error) {
	for room := maxTree; ; room -= room / 8 { // as the cost is a rough one
		least = root.leastFor(room)
		data, err = json.Marshal(root.coarse(least).encode())
		if err != nil || len(data) <= maxTree || room < leafCost {
			return data, least, err
		}
	}
}

// leastFor returns the size from which on files and directories have room, in bytes, within about a fiftieth.
func (d *dir) leastFor(room int) int64 {
	if d.cost(0) <= room {
		return 0
	}
	low, high := int64(0), int64(256)
	for d.cost(high) > room && high < math.MaxInt64/2 {
		low, high = high, 2*high
	}
	for high-low > max(high/50, 1) {
		if middle := low + (high-low)/2; d.cost(middle) > room {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}
