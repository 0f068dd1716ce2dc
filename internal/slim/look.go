package slim

import (
	"context"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/fatbin"
)

// Look finds what slimming changes in the size bytes of r, and reads only headers for it. A file with anything unexpected in it
// gives an empty plan whose report says why. Errors wrap [fatbin.ErrFormat] for files without GPU code; others are those of r and
// of ctx, or of options that mean nothing.
func Look(ctx context.Context, r io.ReaderAt, size int64, o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("slim: %w", err)
	}
	r = contextReader{ctx, r}
	f, err := fatbin.Scan(r, size, fatbin.Options{SectionsOnly: true})
	if err != nil {
		return nil, fmt.Errorf("slim: %w", err)
	}
	if len(f.Regions)+len(f.Problems)+len(f.Bundles) == 0 {
		return nil, fmt.Errorf("slim: %w", fatbin.ErrFormat)
	}
	return &Plan{Report: FileReport{Refused: "unfinished"}}, nil
}

// contextReader makes a long scan end with its context.
type contextReader struct {
	ctx context.Context
	r   io.ReaderAt
}

func (r contextReader) ReadAt(b []byte, off int64) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.ReadAt(b, off)
}
