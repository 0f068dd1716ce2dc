package facts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/host"
)

// candidate is a file that may be worth a look.
type candidate struct {
	path string
	size int64     // bytes, more than headSize
	id   contentID // of its bytes in an image that has layers
}

// contentOf is an open file: either at or stream is there.
type contentOf struct {
	at       elfx.Handle // to be read in any order
	tolerant bool        // if its beginning cannot be read, that is for the visitor to find out and to judge

	stream io.ReadCloser // to be read from the beginning only
	copies *copies       // what makes it readable in any order
}

func (o contentOf) Close() error {
	if o.at != nil {
		return o.at.Close()
	}
	return o.stream.Close()
}

// head returns the first bytes.
func (o contentOf) head() ([]byte, error) {
	head := make([]byte, headSize)
	var err error
	if o.at != nil {
		_, err = o.at.ReadAt(head, 0)
	} else {
		_, err = io.ReadFull(o.stream, head)
	}
	return head, err
}

// show asks by the first bytes of a file whether it is wanted, and then shows its content to visit: a copy of what cannot be
// read in any order. It closes the file.
func (o contentOf) show(ctx context.Context, f candidate, wanted Filter, visit func(elfx.Handle) error) error {
	h, err := o.take(ctx, f, wanted)
	if err != nil || h == nil {
		return err
	}
	defer h.Close()
	return visit(h)
}

// take asks by the first bytes of a file whether it is wanted, and returns its content: a copy of what cannot be read in any order.
// It is nil when the file is not wanted. The file is closed, or is what is returned.
func (o contentOf) take(ctx context.Context, f candidate, wanted Filter) (elfx.Handle, error) {
	head, err := o.head()
	switch {
	case err != nil && !o.tolerant:
		o.Close()
		return nil, fmt.Errorf("read %q: %w", f.path, err)
	case err == nil && !wanted(f.path, head):
		o.Close()
		return nil, nil
	case o.at != nil:
		return o.at, nil
	}
	defer o.stream.Close()
	h, err := o.copies.open(ctx, f.id, f.size, func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(head), o.stream)), nil
	})
	if err == nil {
		if err = o.stream.Close(); err == nil || errors.Is(err, io.EOF) { // the next file of the layer goes on from there
			return h, nil
		}
		h.Close()
	}
	return nil, fmt.Errorf("read %q: %w", f.path, err)
}

// lookAt looks for machine code in a file that was taken, whose bytes may be slow to get at, and remembers its headers for the loader.
// It closes the file.
func lookAt(ctx context.Context, f candidate, h elfx.Handle, slow bool, p *pages) (fileFacts, error) {
	defer h.Close()
	headers := &pagedFile{pages: p, id: f.id, size: f.size, file: h, slow: slow}
	return lookThrough(ctx, File{f.path, f.size, h}, headers)
}

// looks are looks at copies. Whoever reads the files of a layer one after the other goes on meanwhile: it is the one that all wait for.
type looks struct{ slots chan struct{} }

// What a look holds, in bytes: two windows on a file of 1 MiB and what is listed of it. All together take at most one part in
// looksShare of the memory that there is.
const (
	lookMemory = 4 << 20
	looksShare = 16
)

// looksAtOnce says how many looks there are at once on so many cores, where so many bytes may be used.
func looksAtOnce(cores int, available int64) int {
	return max(1, int(min(int64(cores), available/looksShare/lookMemory)))
}

func newLooks() looks {
	return looks{make(chan struct{}, looksAtOnce(runtime.GOMAXPROCS(0), host.AvailableMemory().Available))}
}

// begin has a look made, and waits while there are too many.
func (l looks) begin(group *sync.WaitGroup, look func()) {
	l.slots <- struct{}{}
	group.Go(func() {
		defer func() { <-l.slots }()
		look()
	})
}
