package readorder

import (
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fuse"
)

// file is a regular file with a text, or a directory.
type file struct {
	fuse.Node // what is not asked for here
	ino       uint64
	text      string
	files     map[string]*file
}

func (f *file) Attr() fuse.Attr { return fuse.Attr{Ino: f.ino} }

func (f *file) Lookup(name string) (fuse.Node, error) {
	if found := f.files[name]; found != nil {
		return found, nil
	}
	return nil, fs.ErrNotExist
}

func (f *file) ReadDir() (list []fuse.Entry, err error) {
	for name, of := range f.files {
		list = append(list, fuse.Entry{Name: name, Node: func() (fuse.Node, error) { return of, nil }})
	}
	return list, nil
}

func (f *file) Content() (io.ReaderAt, error) { return strings.NewReader(f.text), nil }

// at finds a file of a watched tree.
func at(t *testing.T, root fuse.Node, path string) fuse.Node {
	t.Helper()
	for name := range strings.SplitSeq(path, "/") {
		var err error
		if root, err = root.Lookup(name); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t *testing.T, n fuse.Node) {
	t.Helper()
	r, err := n.Content()
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(io.NewSectionReader(r, 0, 100)); err != nil || len(data) == 0 {
		t.Errorf("read %q, %v", data, err)
	}
}

// The log has files in the order in which they are first read, by whichever way they were found, each once.
func TestWatch(t *testing.T) {
	shared := &file{ino: 5, text: "shared"}
	root, log := Watch(&file{ino: 1, files: map[string]*file{
		"a":   {ino: 2, text: "a"},
		"dir": {ino: 3, files: map[string]*file{"b": {ino: 4, text: "b"}, "one": shared, "two": shared}},
	}})
	if _, err := root.Lookup("nothing"); err == nil {
		t.Error("what is not there was found")
	}
	if _, err := at(t, root, "a").Content(); err != nil { // opened, not read
		t.Fatal(err)
	}
	read(t, at(t, root, "dir/two"))
	list, err := at(t, root, "dir").ReadDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		n, err := e.Node()
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "b" {
			read(t, n)
			read(t, n)
		}
	}
	read(t, at(t, root, "dir/one"))
	read(t, at(t, root, "a"))
	if got, want := log.Paths(), []string{"dir/two", "dir/b", "a"}; !slices.Equal(got, want) {
		t.Errorf("read were %q, want %q", got, want)
	}
}
