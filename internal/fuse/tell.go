package fuse

import (
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// reader returns the content of a regular file, opened once.
func (s *server) reader(in *inode) (io.ReaderAt, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.content != nil {
		return in.content, nil
	}
	c, err := in.node.Content()
	if err != nil {
		return nil, err
	}
	if t, ok := c.(Teller); ok && in.attr.Size > readAround {
		t.Tell(func(data []byte, off int64) { s.told(in, data, off) })
	}
	in.content = c
	return c, nil
}

// readAround is how much the kernel reads at once around a page of a mapped file, in bytes. It reads shorter files whole.
const readAround = 128 << 10

// told has the kernel keep a part of a file, in whole pages. Where a page is split between two parts, it follows with the second.
//
// It waits for pages that the kernel is asking for, and so must not be called by a worker: all of them could wait for each other.
func (s *server) told(in *inode, data []byte, off int64) {
	if off < 0 || off+int64(len(data)) > in.attr.Size {
		return
	}
	page := int64(os.Getpagesize())
	if rest := off % page; rest > 0 {
		n := min(page-rest, int64(len(data)))
		s.toldSplit(in, data[:n], off)
		data, off = data[n:], off+n
	}
	whole := int64(len(data))
	if off+whole < in.attr.Size {
		whole -= whole % page
	}
	s.store(in, data[:whole], off)
	s.toldSplit(in, data[whole:], off+whole)
}

// toldSplit joins what two parts have of one page.
func (s *server) toldSplit(in *inode, data []byte, off int64) {
	if len(data) == 0 {
		return
	}
	page := int64(os.Getpagesize())
	number := off / page
	in.mu.Lock()
	other := in.split[number]
	if other == nil {
		if in.split == nil {
			in.split = map[int64][]byte{}
		}
		in.split[number] = slices.Clone(data)
		in.mu.Unlock()
		return
	}
	delete(in.split, number)
	in.mu.Unlock()
	if off%page == 0 {
		data, other = other, data
	}
	if joined := slices.Concat(other, data); int64(len(joined)) == min(page, in.attr.Size-number*page) {
		s.store(in, joined, number*page)
	}
}

// store has the kernel keep whole pages of a file: struct fuse_notify_store_out (number, offset, size, padding), and the bytes. The
// kernel may refuse; it asks then, when it wants them.
func (s *server) store(in *inode, data []byte, off int64) {
	if len(data) == 0 {
		return
	}
	const size = outHeaderSize + 24
	head := order.AppendUint32(make([]byte, 0, size), uint32(size+len(data)))
	head = order.AppendUint32(head, notifyStore)
	for _, v := range []uint64{0, in.id, uint64(off)} {
		head = order.AppendUint64(head, v)
	}
	head = order.AppendUint32(head, uint32(len(data)))
	head = order.AppendUint32(head, 0)
	_ = s.raw.Control(func(fd uintptr) {
		_, _ = unix.Writev(int(fd), [][]byte{head, data})
	})
}
