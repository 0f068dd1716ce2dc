// Package atomicfile replaces files at once: who reads one meets the old content or the new one, never a part, whatever ends the
// writer and whenever.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// maxBase is how much of the file's name, in bytes, the temporary one repeats: names end at 255.
const maxBase = 200

// Write makes data the content of the file name.
//
// The file is a new one: it belongs to who calls, has the permissions perm less the umask, and takes the place of a symbolic link
// rather than following it. The content is on the disk (fsync(2)) before the name leads to it.
func Write(name string, data []byte, perm fs.FileMode) error {
	return Fill(name, perm, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// Replace is Write for a file that a user names: a pipe or a device, such as /dev/stdout, is written to.
func Replace(name string, data []byte, perm fs.FileMode) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(name, data, perm)
	}
	return Write(name, data, perm)
}

// Fill is Write for content that fill writes itself. Until it is whole it lies beside the file under a hidden name that tells what it
// is, and nothing is left of it when fill fails.
func Fill(name string, perm fs.FileMode, fill func(*os.File) error) error {
	base := filepath.Base(name)
	base = base[:min(len(base), maxBase)]
	temporary := filepath.Join(filepath.Dir(name), "."+base+".sconce-"+rand.Text())
	// Not os.CreateTemp, whose files nobody else may read whatever the umask says.
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, remove(temporary))
	}
	return nil
}

func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
