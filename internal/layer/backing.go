package layer

import (
	"errors"
	"io"
	"os"

	"sconce.dev/sconce/internal/store"
)

// backing is where a layer's bytes, compressed or not, are kept.
type backing interface {
	open() (blob, error)        // all of them; may be called again and again
	scratch() (*os.File, error) // an empty file without a name, for what is worth keeping while the process runs
	String() string             // for messages
}

// blob is the bytes of a backing, from their beginning.
type blob interface {
	io.Reader
	io.ReaderAt
	io.Closer
}

// storedBlob is a layer of a store.
type storedBlob struct {
	st     *store.Store
	digest store.Digest
}

func (b storedBlob) open() (blob, error)        { return b.st.OpenBlob(b.digest) }
func (b storedBlob) scratch() (*os.File, error) { return b.st.TempFile() }
func (b storedBlob) String() string             { return "layer " + b.digest.Short() }

// ownFile is a file that somebody else opened and will close.
type ownFile struct {
	f    *os.File
	size int64
	st   *store.Store // has room for temporary things
}

func (o ownFile) open() (blob, error) {
	return struct {
		*io.SectionReader
		io.Closer
	}{io.NewSectionReader(o.f, 0, o.size), io.NopCloser(nil)}, nil
}

func (o ownFile) scratch() (*os.File, error) { return o.st.TempFile() }
func (o ownFile) String() string             { return quotePath(o.f.Name()) }

// inPlace reads an uncompressed tar where it lies. What is passed over is not read.
type inPlace struct {
	blob
	at  int64
	buf []byte // what was read ahead of at
	all []byte // the memory of buf
}

// inPlaceBuffer is large enough for the headers and contents of many small files, and what is read in vain for a large one
// costs little.
const inPlaceBuffer = 32 << 10

func readInPlace(b blob) *inPlace { return &inPlace{blob: b, all: make([]byte, inPlaceBuffer)} }

func (r *inPlace) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.buf) == 0 {
		if len(p) >= len(r.all) {
			n, err := readAt(r.blob, p, r.at)
			r.at += int64(n)
			return n, err
		}
		n, err := readAt(r.blob, r.all, r.at)
		if n == 0 {
			return 0, err
		}
		r.buf = r.all[:n]
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	r.at += int64(n)
	return n, nil
}

// readAt is r.ReadAt whose errors come after all bytes that are there.
func readAt(r io.ReaderAt, p []byte, at int64) (int, error) {
	n, err := r.ReadAt(p, at)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (r *inPlace) skip(n int64) error {
	r.at += n
	r.buf = r.buf[min(n, int64(len(r.buf))):]
	return nil
}
