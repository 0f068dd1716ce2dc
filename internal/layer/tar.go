package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// tarReader reads entries from somebody else's tar and knows at which offset their content lies.
type tarReader struct {
	tr    *tar.Reader
	in    *counter
	names int64
	count int

	// Where the next header starts, or, after a sparse file, where the first of a run of them started: how many bytes
	// those take is not to be had.
	headerAt int64
	sparse   int

	strict bool // refuse absolute paths instead of taking them as relative to the root
	clamp  bool // take ".." for what is below the root instead of refusing it
}

// maxSparse is the most bytes a file with holes may unfold to. Without a limit a few hundred bytes of tar would fill any
// disk.
const maxSparse = 16 << 30

// counter counts the bytes read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.n += int64(n); c.n > maxRawSize {
		return n, errTooLarge
	}
	return n, err
}

var errTooLarge = fmt.Errorf("the layer is larger than %d bytes", int64(maxRawSize))

// Seek lets archive/tar pass over contents, which it does if a seek to where it stands succeeds.
func (c *counter) Seek(offset int64, whence int) (int64, error) {
	f, ok := c.r.(forward)
	if !ok || whence != io.SeekCurrent || offset < 0 {
		return -1, errors.ErrUnsupported
	}
	if offset > maxRawSize-c.n {
		return -1, errTooLarge
	}
	c.n += offset
	return c.n, f.skip(offset)
}

// newTarReader reads from r in small pieces; r should be buffered.
func newTarReader(r io.Reader) *tarReader {
	in := &counter{r: r}
	return &tarReader{tr: tar.NewReader(in), in: in}
}

// Read reads the content of the entry that next returned.
func (t *tarReader) Read(p []byte) (int, error) { return t.tr.Read(p) }

// each shows all entries to visit, whose errors name the entry.
func (t *tarReader) each(visit func(IndexEntry) error) error {
	for {
		e, err := t.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(e); err != nil {
			return fmt.Errorf("entry %s: %w", quotePath(e.Path), err)
		}
	}
}

// next returns the next entry, or io.EOF.
func (t *tarReader) next() (IndexEntry, error) {
	for {
		h, err := t.tr.Next()
		if errors.Is(err, io.EOF) {
			return IndexEntry{}, io.EOF
		}
		if err != nil {
			return IndexEntry{}, fmt.Errorf("after %d entries: %w", t.count, err)
		}
		e, err := t.entry(h)
		if err != nil {
			return e, fmt.Errorf("entry %s: %w", quotePath(h.Name), err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == volumeLabel {
			continue
		}
		t.names += e.nameBytes()
		if t.count++; t.count > maxEntries || t.names > maxNameBytes {
			return e, errTooManyEntries
		}
		return e, nil
	}
}

// volumeLabel is the type of GNU tar's archive labels, which describe no file.
const volumeLabel = 'V'

func (t *tarReader) entry(h *tar.Header) (IndexEntry, error) {
	at := t.in.n
	if !isSparse(h) {
		e, err := t.plain(h)
		if e.Type == Regular {
			e.Offset = at
		}
		t.sparse = 0
		t.headerAt = at + e.Size + padding(e.Size)
		return e, err
	}
	t.sparse++
	e, err := t.plain(h)
	e.Offset, e.Sparse = t.headerAt, t.sparse
	if err == nil && e.Size > maxSparse {
		err = fmt.Errorf("it unfolds to %d bytes; at most %d are accepted for a file with holes", e.Size, int64(maxSparse))
	}
	return e, err
}

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// plain makes an entry of a header.
func (t *tarReader) plain(h *tar.Header) (IndexEntry, error) {
	var ie IndexEntry
	if err := CheckPAX(h); err != nil {
		return ie, err
	}
	e := &ie.Entry
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		e.Type, e.Size = Regular, h.Size
	case tar.TypeDir:
		e.Type = Dir
	case tar.TypeSymlink:
		e.Type, e.Link = Symlink, h.Linkname
	case tar.TypeLink:
		e.Type = HardLink
	case tar.TypeChar, tar.TypeBlock:
		e.Type = Char
		if h.Typeflag == tar.TypeBlock {
			e.Type = Block
		}
		if h.Devmajor < 0 || h.Devmajor > maxDevice || h.Devminor < 0 || h.Devminor > maxDevice {
			return ie, fmt.Errorf("device number %d:%d is out of range", h.Devmajor, h.Devminor)
		}
		e.Major, e.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	case tar.TypeFifo:
		e.Type = Fifo
	case tar.TypeXGlobalHeader, volumeLabel:
		return ie, nil
	default:
		return ie, fmt.Errorf("a tar entry of type %q is not something a layer can hold", h.Typeflag)
	}
	var err error
	if e.Path, err = t.cleanPath(h.Name); err != nil {
		return ie, err
	}
	if e.Type == HardLink {
		if e.Link, err = t.cleanPath(h.Linkname); err != nil {
			return ie, fmt.Errorf("hard link to %s: %w", quotePath(h.Linkname), err)
		}
	}
	e.Mode = uint32(h.Mode & 0o7777)
	e.UID, e.GID = h.Uid, h.Gid
	e.ModTime = h.ModTime.UTC()
	e.Xattrs = xattrs(h)
	return ie, e.validate()
}

// cleanPath brings "./usr//bin/" to the form "usr/bin".
func (t *tarReader) cleanPath(p string) (string, error) {
	if strings.HasPrefix(p, "/") && t.strict {
		return "", errors.New("the path is absolute")
	}
	p = strings.TrimLeft(p, "/")
	if p == "" {
		return ".", nil
	}
	if t.clamp {
		if p = path.Clean("/" + p)[1:]; p == "" {
			p = "."
		}
		return p, nil
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", errors.New(`the path contains ".."`)
		}
	}
	return path.Clean(p), nil
}

func xattrs(h *tar.Header) map[string]string {
	var m map[string]string
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, xattrPrefix)
		if !ok {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[name] = v
	}
	return m
}

// cut reports whether the tar, which next has read to its end, stops without the zeros that should stand there.
func (t *tarReader) cut() bool { return t.sparse == 0 && t.in.n <= t.headerAt }

// drain reads what follows the tar's end and returns the number of bytes in all.
func (t *tarReader) drain() (int64, error) {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{t.in})
	return t.in.n, err
}
