package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// FilesDirName is the directory that sconce keeps files of jobs in, in the directory that they are submitted from.
const FilesDirName = ".sconce"

// FilesDir is a directory in which files of jobs lie that are submitted from dir: .sconce there, or one below that. It need not be there
// yet. A link in its place, such as a repository may bring along, is an error: whoever made it would choose where files are written.
func FilesDir(dir string, below ...string) (string, error) {
	path := dir
	for _, name := range append([]string{FilesDirName}, below...) {
		path = filepath.Join(path, name)
		info, err := os.Lstat(path)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			return "", fault.Hint(fmt.Errorf("%s is a symbolic link, and sconce writes its files through none", path), "remove it: rm "+quote.Word(path))
		case err == nil && !info.IsDir():
			return "", fault.Hint(fmt.Errorf("%s is not a directory, and sconce keeps its files there", path), "remove it: rm "+quote.Word(path))
		}
	}
	return path, nil
}
