// Package ctxio has what package io lacks: copies that can be stopped, and reads that tell an end from one that came too early.
package ctxio

import (
	"context"
	"io"
)

// Reader returns a reader of r that fails with the context's cause once ctx has ended. A read that is under way is not
// broken off.
func Reader(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// Fill reads until p is full or r ends. Unlike [io.ReadFull] it returns r's own error: io.EOF where r has ended, and what r says where it was
// cut, so that the one cannot be taken for the other.
func Fill(r io.Reader, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := r.Read(p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
