package store

import (
	"os"
	"path/filepath"
)

// TempFile makes a file for work that leaves nothing behind. It has no name any more, and goes away when it is closed.
func (s *Store) TempFile() (*os.File, error) {
	dir, err := s.TempDir("file-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = RemoveAll(dir) }() // prune removes what stays
	return os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}
