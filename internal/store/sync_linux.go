package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFS puts everything of the file system that holds dir on disk: one call for tens of thousands of small files.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}
