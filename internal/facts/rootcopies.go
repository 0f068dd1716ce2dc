package facts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/store"
)

// copiesRoom is how much of the disk temporary copies may take, in bytes.
const copiesRoom = 8 << 30

// copies are files that can only be read from beginning to end, and are wanted in any order: the beginning of a library is read
// again and again for its symbols. They are in a file without a name, one after the other. When it has grown to half of the room,
// another is begun, and the one before that is given up with the copies that nobody has open.
type copies struct {
	st   *store.Store // may be nil
	room int64        // bytes

	mu       sync.Mutex
	kept     map[contentID]*copied
	current  *spool
	previous *spool
	closed   bool
}

// contentID names a content of an image.
type contentID struct {
	layer int
	place place
}

// copied is a copy; its content may be read when done is closed.
type copied struct {
	in   *spool
	at   int64
	size int64
	done chan struct{}
	err  error
}

// spool is a file of copies.
type spool struct {
	f     *os.File
	size  int64 // in bytes, with what is still to be written
	users int   // open handles and the places as current or previous
}

func newCopies(st *store.Store, room int64) *copies {
	return &copies{st: st, room: room, kept: map[contentID]*copied{}}
}

// open returns a copy of a content of size bytes. It is made from what content gives, unless it is there.
func (c *copies) open(ctx context.Context, id contentID, size int64, content func() (io.ReadCloser, error)) (elfx.Handle, error) {
	c.mu.Lock()
	k := c.kept[id]
	if k != nil {
		k.in.users++
		c.mu.Unlock()
		select {
		case <-k.done:
		case <-ctx.Done():
			c.release(k.in)
			return nil, ctx.Err()
		}
		return c.handle(k)
	}
	in, err := c.spoolFor(size)
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	k = &copied{in: in, at: in.size, size: size, done: make(chan struct{})}
	in.size += size
	in.users++
	c.kept[id] = k
	c.mu.Unlock()
	if k.err = k.fill(ctx, content); k.err != nil {
		c.forget(id, k)
	}
	close(k.done)
	return c.handle(k)
}

// handle gives what was opened to the user.
func (c *copies) handle(k *copied) (elfx.Handle, error) {
	if k.err != nil {
		c.release(k.in)
		return nil, k.err
	}
	return &copyHandle{SectionReader: io.NewSectionReader(k.in.f, k.at, k.size), copies: c, in: k.in}, nil
}

func (k *copied) fill(ctx context.Context, content func() (io.ReadCloser, error)) error {
	r, err := content()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.CopyBuffer(io.NewOffsetWriter(k.in.f, k.at), io.LimitReader(ctxio.Reader(ctx, r), k.size), make([]byte, min(k.size, 256<<10)))
	if err == nil && n < k.size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// spoolFor returns the file for the next copy. c.mu is held.
func (c *copies) spoolFor(size int64) (*spool, error) {
	if c.closed {
		return nil, os.ErrClosed
	}
	if c.current != nil && c.current.size+size <= c.room/2 {
		return c.current, nil
	}
	f, err := scratch(c.st)
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	c.drop(c.previous)
	c.previous, c.current = c.current, &spool{f: f, users: 1}
	return c.current, nil
}

// drop forgets the copies of a spool. c.mu is held.
func (c *copies) drop(s *spool) {
	if s == nil {
		return
	}
	for id, k := range c.kept {
		if k.in == s {
			delete(c.kept, id)
		}
	}
	s.unuse()
}

func (s *spool) unuse() {
	if s.users--; s.users == 0 {
		s.f.Close()
	}
}

func (c *copies) forget(id contentID, k *copied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept[id] == k {
		delete(c.kept, id)
	}
}

// forgetLayer forgets the copies of a layer's contents, none of which is in use.
func (c *copies) forgetLayer(number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.kept {
		if id.layer == number {
			delete(c.kept, id)
		}
	}
}

func (c *copies) release(s *spool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.unuse()
}

// Close gives up all copies. What is open stays readable until it is closed.
func (c *copies) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.drop(c.previous)
	c.drop(c.current)
	c.previous, c.current = nil, nil
	return nil
}

// copyHandle is an open copy.
type copyHandle struct {
	*io.SectionReader
	copies *copies
	in     *spool
	once   sync.Once
}

func (h *copyHandle) Close() error {
	h.once.Do(func() { h.copies.release(h.in) })
	return nil
}

// scratch makes a file without a name, in the store or, when there is none or only for reading, where temporary files are.
func scratch(st *store.Store) (*os.File, error) {
	if st != nil {
		if f, err := st.TempFile(); !errors.Is(err, store.ErrReadOnly) {
			return f, err
		}
	}
	f, err := os.CreateTemp("", "sconce-audit-*")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
