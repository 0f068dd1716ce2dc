// Package fuse serves a tree of files that does not change to the kernel, as a file system that anybody may mount in a
// user namespace of their own.
//
// It speaks the kernel's protocol (Linux, include/uapi/linux/fuse.h; Documentation/filesystems/fuse) over an open
// /dev/fuse, and only the part of it that reading needs. As nothing ever changes, the kernel may keep names, attributes
// and contents for as long as it likes; most of what a program reads twice never comes here again.
//
//	fuse.go      the tree, as it must be described     mount.go   the device and the mount
//	server.go    requests, from the kernel and back    proto.go   numbers and layout of the protocol
//	ops.go       the answer to each kind of request    table.go   what the kernel knows by number
//	handover.go  the device, from mounter to server    tell.go  contents that the kernel has not asked for yet
package fuse

import (
	"io"
	"time"
)

// Node is a file of the tree: a regular one, a directory, a link, a device. Its methods may be called at the same time.
//
// An error that is a [syscall.Errno], or wraps one, is what the program that reads is told, fs.ErrNotExist is ENOENT,
// and every other one is EIO.
type Node interface {
	Attr() Attr
	Lookup(name string) (Node, error)   // of a directory; fs.ErrNotExist when there is no such name
	ReadDir() ([]Entry, error)          // of a directory, without . and ..
	Readlink() (string, error)          // of a symbolic link
	Content() (io.ReaderAt, error)      // of a regular file
	Xattrs() (map[string]string, error) // errors.ErrUnsupported: no file of the tree has any
}

// Attr is what stat(2) says about a file.
type Attr struct {
	Ino          uint64 // the same for every name of one file, and for no other file; from 1 to 2^62
	Mode         uint32 // type (S_IFMT) and permissions
	Links        uint32
	UID, GID     uint32 // as the user namespace has them in which the tree is mounted
	Major, Minor uint32 // of a device
	Size         int64  // in bytes
	ModTime      time.Time
}

// Teller is a content of which more is known than what is asked for, as it comes in large parts. What it tells goes to the kernel, which
// then has no need to ask. Tell is called once, before the first read; tell may be called at any time and from several goroutines.
type Teller interface {
	io.ReaderAt
	Tell(tell func(data []byte, off int64))
}

// Entry is one name in a directory.
type Entry struct {
	Name string
	Ino  uint64
	Mode uint32 // the type alone will do
	Node func() (Node, error)
}

// Options are the settings of [Serve].
type Options struct {
	// Report, when set, is told of errors that programs see as EIO, which says nothing about the cause. It may be called
	// from several goroutines.
	Report func(error)

	// Owner, when set, owns all files, whatever their attributes say.
	Owner *Owner
}

// Owner is who a file belongs to, as the user namespace has them in which the tree is mounted.
type Owner struct{ UID, GID uint32 }
