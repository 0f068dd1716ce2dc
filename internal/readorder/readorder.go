// Package readorder finds out which files of a tree are read, and in which order. It watches a tree that package fuse serves: no
// program needs to be traced for that, and what is mapped into memory is seen like what is read.
package readorder

import (
	"io"
	"slices"
	"sync"

	"sconce.dev/sconce/internal/fuse"
)

// Log is what was read of a tree.
type Log struct {
	mu    sync.Mutex
	seen  map[uint64]bool // inode numbers
	paths []string
}

// Watch returns a tree that is the same as root's, and the log of what is read of it.
func Watch(root fuse.Node) (fuse.Node, *Log) {
	log := &Log{seen: map[uint64]bool{}}
	return &node{Node: root, log: log}, log
}

// Paths returns the regular files that were read, in the order of the first read of each, without a slash in front. A file with several
// names has the one by which it was found first.
func (l *Log) Paths() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.paths)
}

func (l *Log) read(ino uint64, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.seen[ino] {
		l.seen[ino] = true
		l.paths = append(l.paths, path)
	}
}

// node is a file of a watched tree.
type node struct {
	fuse.Node
	log  *Log
	path string // "" is the root
}

func (n *node) child(name string, of fuse.Node) *node {
	if n.path != "" {
		name = n.path + "/" + name
	}
	return &node{Node: of, log: n.log, path: name}
}

// Lookup finds a file of a directory.
func (n *node) Lookup(name string) (fuse.Node, error) {
	found, err := n.Node.Lookup(name)
	if err != nil {
		return nil, err
	}
	return n.child(name, found), nil
}

// ReadDir lists a directory.
func (n *node) ReadDir() ([]fuse.Entry, error) {
	list, err := n.Node.ReadDir()
	for i := range list {
		name, open := list[i].Name, list[i].Node
		list[i].Node = func() (fuse.Node, error) {
			found, err := open()
			if err != nil {
				return nil, err
			}
			return n.child(name, found), nil
		}
	}
	return list, err
}

// Content opens a file.
func (n *node) Content() (io.ReaderAt, error) {
	r, err := n.Node.Content()
	if err != nil {
		return nil, err
	}
	return &content{ReaderAt: r, node: n}, nil
}

// content is the content of a file of a watched tree.
type content struct {
	io.ReaderAt
	node *node
}

// ReadAt notes that the file is read.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	c.node.log.read(c.node.Attr().Ino, c.node.path)
	return c.ReaderAt.ReadAt(p, off)
}
