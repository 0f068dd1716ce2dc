// Package layer reads and writes image layers.
//
// A layer is a tar archive. The ones made here are deterministic: the same entries give the same bytes, whatever the
// machine, the time and the number of workers. The uncompressed tar is cut into chunks of at most [ChunkSize] bytes and
// each chunk is compressed on its own, as one zstd frame or one gzip member. RFC 8878 section 3 and RFC 1952 section 2.2
// make a sequence of those a valid stream, so any other tool reads the blob as one, while this package compresses
// chunks in parallel and later decompresses only the chunk that holds a wanted file.
//
// In a gzip layer a file may also be a chunk of its own, of any size, whose compressed bytes were made by somebody else:
// see [Deflated].
//
// Beside each blob the store keeps an [Index] of the entries and chunks. A layer that came from elsewhere is scanned once to
// make its index.
package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"sconce.dev/sconce/internal/store"
)

// Writer writes one layer into the store. Entries are added in the order of [Less]; exactly one of Close and Abort ends
// it, and Abort after Close does nothing, so that it can be deferred. A Writer is used by one goroutine.
type Writer struct {
	ctx     context.Context
	st      *store.Store
	opts    Options
	blob    *store.BlobWriter
	chunks  *chunker
	entries []IndexEntry
	names   int64 // bytes of names held in entries
	header  []byte
	failed  error
	ended   bool
}

// Options says how a layer is made. The zero value is usable.
type Options struct {
	Compression Compression // empty: Gzip
	Workers     int         // goroutines that compress; 0: GOMAXPROCS. Memory is about 12 MiB for each
	ModTime     time.Time   // of entries that have none, and the latest that FromTar and FromDir keep; zero: DefaultModTime
}

// DefaultModTime is the time of everything in a layer unless something better is known: 1980-01-02T00:00:00Z. A zip archive,
// and so a wheel, holds local times from 1980-01-01 on, in steps of two seconds (APPNOTE 4.4.6), and Python's zipfile refuses
// earlier ones: a day later it is 1980 in every time zone, also in UTC-12.
var DefaultModTime = time.Unix(315619200, 0)

// KeepTimes is an Options.ModTime that keeps every time of a tar or directory: the last second of the year 9999. Byte code
// made by Python itself names the time of its source, and is ignored when that has changed.
var KeepTimes = time.Unix(253402300799, 0)

// Compression is how a layer's blob is compressed.
type Compression string

// The compressions a layer can be written with.
const (
	Zstd Compression = "zstd"
	Gzip Compression = "gzip"
	None Compression = "none"
)

// MediaType returns the OCI media type of a layer compressed this way (OCI image-spec, media-types).
func (c Compression) MediaType() string {
	switch c {
	case Zstd:
		return mediaTypeTar + "+zstd"
	case Gzip, "":
		return mediaTypeTar + "+gzip"
	default:
		return mediaTypeTar
	}
}

const mediaTypeTar = "application/vnd.oci.image.layer.v1.tar"

func (o Options) withDefaults() (Options, error) {
	if o.Compression == "" {
		o.Compression = Gzip
	}
	if _, ok := codecs[o.Compression]; !ok {
		return o, fmt.Errorf("unknown layer compression %q: use %q, %q or %q", o.Compression, Zstd, Gzip, None)
	}
	if o.ModTime.IsZero() {
		o.ModTime = DefaultModTime
	}
	o.ModTime = o.ModTime.Truncate(time.Second).UTC()
	return o, nil
}

// NewWriter starts a layer.
func NewWriter(ctx context.Context, st *store.Store, o Options) (*Writer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	blob, err := st.NewBlob()
	if err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	w := &Writer{ctx: ctx, st: st, opts: o, blob: blob}
	w.chunks = newChunker(blob, codecs[o.Compression], o.Workers)
	return w, nil
}

// Add appends an entry. Its path must come after all earlier ones in the order of [Less]. open is called for a regular
// file only, and must give exactly e.Size bytes. The parent directories are the caller's to add (see [Parents]).
// After an error the layer cannot be finished.
func (w *Writer) Add(e Entry, open Content) error { return w.AddDeflated(e, open, Deflated{}) }

// AddDeflated is [Writer.Add] for a file that somebody has compressed already. A gzip layer takes d as it is, if it is
// large enough; else only open is used.
//
// The caller vouches that open inflates d, from the same bytes, and that reading it fails unless the stream ends exactly
// where d does. d is not opened before that has been read to its end.
func (w *Writer) AddDeflated(e Entry, open Content, d Deflated) error {
	if w.failed != nil {
		return w.failed
	}
	if w.ended {
		return errors.New("write layer: it is closed")
	}
	if err := w.add(e, open, d); err != nil {
		w.failed = fmt.Errorf("write layer: %s: %w", quotePath(e.Path), err)
		return w.failed
	}
	return nil
}

func (w *Writer) add(e Entry, open Content, d Deflated) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	e = w.normalise(e)
	if err := w.check(e); err != nil {
		return err
	}
	header, err := appendHeader(w.header[:0], e)
	if err != nil {
		return err
	}
	w.header = header
	if _, err := w.chunks.Write(header); err != nil {
		return err
	}
	ie := IndexEntry{Entry: e}
	if e.Type == Regular {
		ie.Offset = w.chunks.total
		if err := w.copyContent(e.Size, open, d); err != nil {
			return err
		}
	}
	w.entries = append(w.entries, ie)
	return nil
}

func (w *Writer) normalise(e Entry) Entry {
	if e.ModTime.IsZero() {
		e.ModTime = w.opts.ModTime
	}
	e.ModTime = e.ModTime.Truncate(time.Second).UTC()
	if e.Type != Regular {
		e.Size = 0
	}
	if e.Type != Symlink && e.Type != HardLink {
		e.Link = ""
	}
	if e.Type != Char && e.Type != Block {
		e.Major, e.Minor = 0, 0
	}
	return e
}

// check refuses what would make a layer that extracts differently in different hands.
func (w *Writer) check(e Entry) error {
	if err := e.validate(); err != nil {
		return err
	}
	if w.names += e.nameBytes(); len(w.entries) >= maxEntries || w.names > maxNameBytes {
		return errTooManyEntries
	}
	if n := len(w.entries); n > 0 {
		last := &w.entries[n-1]
		if !Less(last.Path, e.Path) {
			return fmt.Errorf("it is out of order: %s is there already", quotePath(last.Path))
		}
		// Everything below a path follows it directly, so looking at the last entry is enough.
		if last.Type != Dir && isBelow(e.Path, last.Path) {
			return fmt.Errorf("it lies below %s, which is not a directory", quotePath(last.Path))
		}
	}
	if e.Type != HardLink {
		return nil
	}
	i := sort.Search(len(w.entries), func(i int) bool { return !Less(w.entries[i].Path, e.Link) })
	if i == len(w.entries) || w.entries[i].Path != e.Link || w.entries[i].Type != Regular {
		return fmt.Errorf("it is a hard link to %s, which is no earlier regular file of this layer", quotePath(e.Link))
	}
	return nil
}

func (w *Writer) copyContent(size int64, open Content, d Deflated) error {
	if size == 0 && open == nil {
		return nil
	}
	if open == nil {
		return errors.New("a regular file needs content")
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if w.opts.Compression == Gzip && d.worthTaking(size) {
		err = w.chunks.splice(w.ctx, r, size, d, false)
	} else {
		err = w.chunks.readExactly(w.ctx, r, size)
	}
	if err != nil {
		return err
	}
	return w.chunks.pad()
}

// Close finishes the layer and stores its blob and index.
func (w *Writer) Close() (Descriptor, error) {
	if w.failed != nil {
		w.Abort()
		return Descriptor{}, w.failed
	}
	if w.ended {
		return Descriptor{}, errors.New("write layer: it is closed")
	}
	d, err := w.close()
	if err != nil {
		w.failed = fmt.Errorf("write layer: %w", err)
		return Descriptor{}, w.failed
	}
	return d, nil
}

func (w *Writer) close() (Descriptor, error) {
	defer w.blob.Close()
	w.ended = true
	// POSIX ustar: an archive ends with two blocks of zeros.
	_, writeErr := w.chunks.Write(make([]byte, 2*blockSize))
	if err := errors.Join(writeErr, w.chunks.close(), w.ctx.Err()); err != nil {
		return Descriptor{}, err
	}
	return w.commit()
}

// commit stores the blob, whose chunks are all written, and its index.
func (w *Writer) commit() (Descriptor, error) {
	size := w.blob.Size()
	digest, err := w.blob.Commit("")
	if err != nil {
		return Descriptor{}, err
	}
	d := Descriptor{
		Digest:    digest,
		DiffID:    digest,
		Size:      size,
		RawSize:   w.chunks.total,
		MediaType: w.opts.Compression.MediaType(),
	}
	if sum := w.chunks.diffID; sum != nil {
		d.DiffID = store.SumDigest(sum)
	}
	ix := &Index{Entries: w.entries, DiffID: d.DiffID, RawSize: d.RawSize, format: formatOf(w.opts.Compression), chunks: w.chunks.marks, seeks: func() (seeks, error) { return w.chunks.seeks, nil }}
	return d, ix.record(w.st, d)
}

// Abort discards the layer. After Close it does nothing.
func (w *Writer) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	_ = w.chunks.close() // its result is discarded with the blob
	w.blob.Close()
}

// Compare is [Less] for sorting and searching: -1, 0 or 1.
func Compare(a, b string) int {
	switch {
	case a == b:
		return 0
	case Less(a, b):
		return -1
	}
	return 1
}

// Less reports whether path a stands before path b in a layer: names are compared one component at a time, so that a
// directory is directly followed by everything below it. The root, ".", is first.
func Less(a, b string) bool {
	if a == "." || b == "." {
		return a == "." && b != "."
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] == b[i] {
			continue
		}
		if a[i] == '/' || b[i] == '/' {
			return a[i] == '/'
		}
		return a[i] < b[i]
	}
	return len(a) < len(b)
}

// Parents returns the directories above p, outermost first, without the root.
func Parents(p string) []string {
	var dirs []string
	for i := range len(p) {
		if p[i] == '/' {
			dirs = append(dirs, p[:i])
		}
	}
	return dirs
}

// isBelow reports whether p lies inside the directory dir.
func isBelow(p, dir string) bool {
	return dir == "." || (len(p) > len(dir) && p[len(dir)] == '/' && strings.HasPrefix(p, dir))
}

// readCloser joins a reader to what ends it.
type readCloser struct {
	io.Reader
	close func() error
}

func (r readCloser) Close() error { return r.close() }
