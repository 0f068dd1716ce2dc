package fileop

import (
	"context"
	"fmt"
)

// Find looks whether every source of the copy is there, and returns an error for each that is not. It reads no file.
func (c Copy) Find(ctx context.Context, from Files) []error {
	var missing []error
	for _, source := range c.Sources {
		one := c
		one.Sources = []string{source}
		_, err := one.pick(ctx, from)
		if ctx.Err() != nil {
			return []error{context.Cause(ctx)}
		}
		if err != nil {
			missing = append(missing, fmt.Errorf("copy to %s: %w", quote(c.Dest), err))
		}
	}
	return missing
}
