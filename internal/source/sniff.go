package source

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"sconce.dev/sconce/internal/layer"
)

// nothingError says that a path holds nothing that is recognised as an image.
type nothingError struct{ path string }

func (e *nothingError) Error() string {
	return fmt.Sprintf("%s is neither an OCI layout, nor an archive of an image, nor a squashfs or SIF file, nor a root file system", e.path)
}

func isNothing(err error) bool {
	var nothing *nothingError
	return errors.As(err, &nothing)
}

// recognise finds out what kind of image is at a path, by content and never by name.
func recognise(name string) (Transport, error) {
	st, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	switch {
	case st.IsDir():
		return recogniseDir(name)
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("%s is neither a file nor a directory", name)
	}
	return recogniseFile(name)
}

func recogniseDir(name string) (Transport, error) {
	if _, err := os.Stat(filepath.Join(name, layoutFile)); err == nil {
		return OCI, nil
	}
	for _, d := range []string{"usr", "bin", "etc"} {
		if st, err := os.Stat(filepath.Join(name, d)); err == nil && st.IsDir() {
			return Dir, nil
		}
	}
	return "", &nothingError{name}
}

func recogniseFile(name string) (Transport, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head, err := readHead(f)
	if err != nil {
		return "", err
	}
	if t, _ := recogniseCluster(head); t != "" {
		return t, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return recogniseTar(name, f)
}

// sniffMembers is how many members of a tar are looked at. Archives of images hold little else than what tells them
// apart, but their big members may come first.
const sniffMembers = 4096

func recogniseTar(name string, f *os.File) (Transport, error) {
	tr, closer, err := tarReader(f)
	if err != nil {
		return "", &nothingError{name}
	}
	defer func() { _ = closer() }() // only read
	var oci, docker, root bool
	members := 0
	for ; members < sniffMembers && !oci; members++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && members == 0 {
			return "", &nothingError{name}
		}
		if err != nil {
			break // reading it for real will say so
		}
		switch clean := path.Clean(h.Name); clean {
		case layoutFile:
			oci = true
		case dockerManifest:
			docker = true
		default:
			root = root || rootMember(clean)
		}
		if root && !docker { // no archive of an image holds such a member
			return Tar, nil
		}
	}
	switch {
	case oci:
		return OCIArchive, nil
	case docker:
		return DockerArchive, nil
	case root || members > 0:
		return Tar, nil
	}
	return "", &nothingError{name}
}

// rootMember recognises what a root file system has at its top.
func rootMember(name string) bool {
	for dir := path.Clean("/" + name); dir != "/"; dir = path.Dir(dir) {
		switch dir {
		case "/usr", "/bin", "/etc":
			return true
		}
	}
	return false
}

// tarReader reads a tar file that may be compressed. Over a plain one it seeks, so that what is skipped is not read.
func tarReader(f *os.File) (tr *tar.Reader, closer func() error, err error) {
	plain, err := isPlainTar(f)
	if err != nil {
		return nil, nil, err
	}
	if plain {
		return tar.NewReader(f), func() error { return nil }, nil
	}
	r, err := layer.Decompress(f)
	if err != nil {
		return nil, nil, err
	}
	return tar.NewReader(r), r.Close, nil
}

// The place of "ustar" in a tar header (POSIX.1-2017, pax, "ustar Header Block").
const ustarOffset = 257

func isPlainTar(f *os.File) (bool, error) {
	var magic [5]byte
	n, err := f.ReadAt(magic[:], ustarOffset)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(magic[:n]) == "ustar", nil
}
