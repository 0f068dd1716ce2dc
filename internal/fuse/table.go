package fuse

import (
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// table holds the files that the kernel knows, by the number that it was given for each. A file is held until the kernel
// has forgotten it as often as it was told of it.
type table struct {
	root  *inode
	owner *Owner
	mu    sync.RWMutex
	all   map[uint64]*inode
}

// inode is a file that the kernel knows.
type inode struct {
	node    Node
	id      uint64
	attr    Attr
	lookups uint64 // how often the kernel was told; guarded by the table

	mu      sync.Mutex
	content io.ReaderAt      // nil until it is read
	list    []Entry          // of a directory that is being listed
	split   map[int64][]byte // pages by number of which one of two parts was told
}

// maxIno keeps numbers made from inode numbers in range.
const maxIno = 1 << 62

func newTable(root Node, owner *Owner) *table {
	t := &table{owner: owner, all: map[uint64]*inode{}}
	t.root = &inode{node: root, id: rootID, attr: t.attr(root)}
	t.all[rootID] = t.root
	return t
}

// attr returns what the kernel is told of a file.
func (t *table) attr(n Node) Attr {
	a := n.Attr()
	if t.owner != nil {
		a.UID, a.GID = t.owner.UID, t.owner.GID
	}
	return a
}

// get returns the file with a number, nil if the kernel cannot know it.
func (t *table) get(id uint64) *inode {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[id]
}

// tell notes that the kernel is about to be told of a file. All names of a file share one number, and so its pages in
// memory. Two files with one inode number, which only a damaged or hostile tree has, must not be confused with each other.
func (t *table) tell(n Node) (*inode, error) {
	a := t.attr(n)
	if a.Ino == 0 || a.Ino > maxIno || a.Ino == t.root.attr.Ino {
		return nil, fmt.Errorf("inode number %d: %w", a.Ino, unix.EIO)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := a.Ino + rootID // never the root's own
	in, known := t.all[id]
	if !known {
		in = &inode{node: n, id: id, attr: a}
		t.all[id] = in
	} else if in.attr.Mode != a.Mode || in.attr.Size != a.Size {
		return nil, fmt.Errorf("two files have the inode number %d: %w", a.Ino, unix.EIO)
	}
	in.lookups++
	return in, nil
}

// forget takes back n times that the kernel was told of a file.
func (t *table) forget(id, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.all[id]
	if in == nil || in == t.root {
		return
	}
	in.lookups -= min(n, in.lookups)
	if in.lookups == 0 {
		delete(t.all, id)
	}
}

// entries returns the names in a directory. The kernel asks for them piece by piece, by offset alone; they are kept from
// the first piece to the last.
func (in *inode) entries(first bool) ([]Entry, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.list != nil && !first {
		return in.list, nil
	}
	list, err := in.node.ReadDir()
	if err != nil {
		return nil, err
	}
	in.list = list
	return list, nil
}

func (in *inode) listed() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.list = nil
}
