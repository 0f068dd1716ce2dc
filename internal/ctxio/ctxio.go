// Package ctxio lets long copies end when they are no longer wanted.
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
