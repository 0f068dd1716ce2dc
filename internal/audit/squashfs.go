package audit

import (
	"context"

	"sconce.dev/sconce/internal/squashfs"
)

// Squashfs are the files of a file system, read where they are.
func Squashfs(r *squashfs.Reader) Files { return squashFiles{r} }

type squashFiles struct{ r *squashfs.Reader }

func (s squashFiles) Walk(ctx context.Context, wanted Filter, visit func(File) error) error {
	seen := map[uint32]bool{} // by number, files with several names
	return s.r.Walk(func(p string, f *squashfs.File) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Type != squashfs.Regular || f.Size <= minSize || seen[f.Number] {
			return nil
		}
		if f.Links > 1 {
			seen[f.Number] = true
		}
		return s.look(p, f, wanted, visit)
	})
}

func (s squashFiles) look(p string, f *squashfs.File, wanted Filter, visit func(File) error) error {
	content := f.Content()
	head := make([]byte, headSize)
	// One whose first bytes cannot be read is shown: the visitor will meet the same error, and knows what it means.
	if _, err := content.ReadAt(head, 0); err == nil && !wanted(p, head) {
		return nil
	}
	return visit(File{p, f.Size, content})
}
