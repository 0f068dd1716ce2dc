package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"sconce.dev/sconce/internal/store"
)

// Source is a layer whose contents are wanted in the order in which they lie in its tar. It is used by one goroutine.
type Source interface {
	// Walk calls visit for each entry of the tar in its order, whiteouts included. open gives the content of a regular file;
	// it may be called once, what it gives is readable until visit returns and need not be read to its end, and contents that
	// nobody opens cost little. What visit returns ends the walk and is returned as it is. After another error what was
	// visited may have been wrong.
	Walk(ctx context.Context, visit Visitor) error

	// Index returns the index of the layer, which a Walk that came to the end has made on its way.
	Index(ctx context.Context) (*Index, error)
}

// ErrAgain is the error of a Walk that has shown what turned out to be wrong, of a layer that can now be walked again.
var ErrAgain = errors.New("the layer has come again, as what came first was wrong")

// Stored returns a layer of the store. Whether the store knows its index or not, its blob is decompressed once at most. The
// layer must be what d.DiffID, unless that is empty, promises; when that has to be found out, it is known at the end.
func Stored(st *store.Store, d Descriptor) Source { return &stored{st: st, d: d} }

type stored struct {
	st *store.Store
	d  Descriptor
	ix *Index
}

func (s *stored) Walk(ctx context.Context, visit Visitor) error {
	ix, fresh, err := passThrough(ctx, s.st, s.d, visit)
	if err == nil && !fresh {
		err = ix.visit(ctx, visit)
	}
	if err != nil {
		return explain("read layer "+s.d.Digest.Short(), err)
	}
	s.ix = ix
	return nil
}

func (s *stored) Index(ctx context.Context) (_ *Index, err error) {
	if s.ix == nil {
		s.ix, err = OpenIndex(ctx, s.st, s.d)
	}
	return s.ix, err
}

// TarFile returns the tar of a root file system: a regular file that is not in the store, compressed or not. It is refused when
// it has absolute paths or was cut off. The file must stay open as long as the Source and its Index are used, and is read
// without moving its offset. st has room for temporary things.
//
// An uncompressed tar is read where it lies. The Index has no DiffID.
func TarFile(st *store.Store, f *os.File) Source { return &tarFile{st: st, f: f} }

// Archive is TarFile for a tar that somebody packed for any directory: each of its names is below that directory, whatever it
// says, as for tar(1) and BuildKit. An absolute one is relative, and ".." at the top stays there.
func Archive(st *store.Store, f *os.File) Source { return &tarFile{st: st, f: f, clamp: true} }

type tarFile struct {
	st    *store.Store
	f     *os.File
	clamp bool
	ix    *Index
}

func (s *tarFile) Walk(ctx context.Context, visit Visitor) error {
	if s.ix != nil { // the headers have been read
		return explain("read the tar "+quotePath(s.f.Name()), s.ix.visit(ctx, visit))
	}
	ix, err := s.read(ctx, visit)
	if err != nil {
		return explain("read the tar "+quotePath(s.f.Name()), err)
	}
	s.ix = ix
	return nil
}

func (s *tarFile) Index(ctx context.Context) (*Index, error) {
	if s.ix == nil {
		if err := s.Walk(ctx, nil); err != nil {
			return nil, err
		}
	}
	return s.ix, nil
}

func (s *tarFile) read(ctx context.Context, visit Visitor) (*Index, error) {
	info, err := s.f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	from := ownFile{f: s.f, size: info.Size(), st: s.st}
	b, err := from.open()
	if err != nil {
		return nil, err
	}
	head := make([]byte, len(magicXZ))
	n, err := readAt(b, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	ix := &Index{format: sniff(head[:n]), from: from}
	if ix.format == formatTar {
		ix.RawSize = from.size
		return ix, ix.readRoot(ctx, readInPlace(b), s.clamp, visit)
	}
	tar, err := decompressAhead(ctx, b, nil)
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	return ix, ix.readRoot(ctx, tar, s.clamp, visit)
}

// readRoot reads the entries of a root file system.
func (ix *Index) readRoot(ctx context.Context, r forward, clamp bool, visit Visitor) (err error) {
	tr := newTarReader(r)
	tr.strict, tr.clamp = !clamp, clamp
	if ix.Entries, err = readEntries(ctx, ix.from, tr, visit); err != nil {
		return err
	}
	if tr.cut() {
		return fmt.Errorf("it ends after %d entries without an end marker: it was cut off, or is no tar", len(ix.Entries))
	}
	if ix.format != formatTar {
		ix.RawSize, err = tr.drain() // to the checksum
	}
	return err
}
