package facts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/fatbin"
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
	defer o.Close()
	head, err := o.head()
	switch {
	case err != nil && !o.tolerant:
		return fmt.Errorf("read %q: %w", f.path, err)
	case err == nil && !wanted(f.path, head):
		return nil
	case o.at != nil:
		return visit(o.at)
	}
	h, err := o.copies.open(ctx, f.id, f.size, func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(head), o.stream)), nil
	})
	if err != nil {
		return fmt.Errorf("read %q: %w", f.path, err)
	}
	defer h.Close()
	if err := o.stream.Close(); err != nil && !errors.Is(err, io.EOF) { // the next file of the layer goes on from there
		return fmt.Errorf("read %q: %w", f.path, err)
	}
	return visit(h)
}

// lookAt looks for machine code in an open file of an image that has layers, and remembers its headers for the loader. It closes the
// file.
func lookAt(ctx context.Context, f candidate, o contentOf, p *pages) (facts fileFacts, err error) {
	slow := o.stream != nil
	err = o.show(ctx, f, fatbin.MayHold, func(h elfx.Handle) error {
		headers := &pagedFile{pages: p, id: f.id, size: f.size, file: h, slow: slow}
		facts, err = lookThrough(ctx, File{f.path, f.size, h}, headers)
		return err
	})
	return facts, err
}
