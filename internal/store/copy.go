package store

import (
	"io"
	"os"
)

// CopyBlob copies blob d to a new file that others may read. It is the caller's to remove after an error.
func (s *Store) CopyBlob(d Digest, to string) error {
	in, err := s.OpenBlob(d)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
