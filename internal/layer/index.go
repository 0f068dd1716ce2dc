package layer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Index says what a layer holds and where. Entries stand in the order of the tar; whiteouts appear as the files named
// .wh.* that they are (OCI image-spec, layer, "Whiteouts"). Its methods may be called from many goroutines.
type Index struct {
	Entries []IndexEntry // may be set to nil by an owner who keeps what it needs of them
	DiffID  store.Digest // of the uncompressed tar; empty when it is in no store
	RawSize int64        // of the uncompressed tar, in bytes

	format format
	chunks []mark // where each chunk starts, then the end; nil when the blob is not made of chunks

	from backing

	seeks      func() (seeks, error)    // of chunks that are longer than ChunkSize; nil: there are none
	pointsBlob func() (*os.File, error) // has their windows

	mu      sync.Mutex
	stream  *stream  // a decompressor that stands somewhere in the tar, ready to go on
	rewinds int      // how often a decompressor had to start again
	spill   *os.File // the uncompressed tar, once reading it has cost too much
}

// IndexEntry is an entry and the place of its content.
type IndexEntry struct {
	Entry
	Offset int64 // of a regular file's content in the uncompressed tar, in bytes
	// Sparse is not 0 for a file that the tar stores with holes (GNU tar manual, "Storing Sparse Files"). Then Offset is that
	// of a header, and the file is the Sparse-th entry from there.
	Sparse int
}

type indexRecord struct {
	Index   store.Digest `json:"index"`
	DiffID  store.Digest `json:"diffID"`
	RawSize int64        `json:"rawSize"`
	Points  store.Digest `json:"points,omitempty"` // see seekMagic
}

// OpenIndex returns the index of a layer whose blob is in the store. A layer that was not made here is read once, from
// beginning to end, to make it. The layer must be what d.DiffID, unless that is empty, promises.
func OpenIndex(ctx context.Context, st *store.Store, d Descriptor) (*Index, error) {
	ix, _, err := passThrough(ctx, st, d, nil)
	if err != nil {
		return nil, fmt.Errorf("read layer %s: %w", d.Digest.Short(), err)
	}
	return ix, nil
}

// passThrough returns the index of a layer. When the store does not have it, it is made by reading the layer, and made is
// true; then the entries were shown to visit, unless that is nil.
func passThrough(ctx context.Context, st *store.Store, d Descriptor, visit Visitor) (ix *Index, made bool, err error) {
	if ix = storedIndex(st, d.Digest); ix == nil {
		ix, made, err = makeIndex(ctx, st, d, visit)
	}
	if err == nil {
		err = ix.promised(d)
	}
	if err != nil {
		return nil, false, err
	}
	return ix, made, nil
}

// promised makes sure that a layer is what an image says.
func (ix *Index) promised(d Descriptor) error {
	if d.DiffID != "" && d.DiffID != ix.DiffID {
		return fmt.Errorf("the image says that it unpacks to %s, but it unpacks to %s", d.DiffID, ix.DiffID)
	}
	return nil
}

// Refs are the blobs that a record of the layer is based on: none of an empty one.
func (d Descriptor) Refs() []store.Digest {
	if d.Digest == "" {
		return nil
	}
	return []store.Digest{d.Digest}
}

// Confirm makes sure that what somebody else says of a layer is true: that its blob is in the store, and is a layer of that size,
// content and compression.
func (d Descriptor) Confirm(ctx context.Context, st *store.Store) error {
	size, err := st.BlobSize(d.Digest)
	if err != nil {
		return err
	}
	ix, err := OpenIndex(ctx, st, d)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc([]Compression{None, Gzip, Zstd}, func(c Compression) bool {
		return formatOf(c) == ix.format && c.MediaType() == d.MediaType
	})
	if !known || size != d.Size || ix.DiffID != d.DiffID || ix.RawSize != d.RawSize {
		return fmt.Errorf("layer %s is not what is said of it: %d bytes of type %q", d.Digest.Short(), d.Size, d.MediaType)
	}
	return nil
}

func makeIndex(ctx context.Context, st *store.Store, d Descriptor, visit Visitor) (ix *Index, made bool, err error) {
	once := store.Once[indexRecord]{
		Kind: store.KindLayerIndex, Key: d.Digest.Hex(), Refs: indexRecord.refs,
		Valid: func(indexRecord) bool { ix = storedIndex(st, d.Digest); return ix != nil },
	}
	_, found, err := once.Do(ctx, st, func(ctx context.Context) (indexRecord, error) {
		if ix, err = scanBlob(ctx, st, d, visit); err != nil || st.ReadOnly() {
			return indexRecord{}, err
		}
		return ix.save(st)
	})
	return ix, !found, err
}

// refs leaves out the layer itself: what it holds stays true when its blob is gone.
func (r indexRecord) refs() []store.Digest {
	if r.Points == "" {
		return []store.Digest{r.Index}
	}
	return []store.Digest{r.Index, r.Points}
}

// Known returns d completed with what the store knows about the blob, which need not be there: DiffID and RawSize. It
// reports whether the store has an index of it.
func Known(st *store.Store, d Descriptor) (Descriptor, bool) {
	var r indexRecord
	if ok, err := st.GetRecord(store.KindLayerIndex, d.Digest.Hex(), &r); err != nil || !ok {
		return d, false
	}
	if d.DiffID == "" {
		d.DiffID = r.DiffID
	}
	d.RawSize = r.RawSize
	return d, true
}

// storedIndex is loadIndex for a blob that must be in the store.
func storedIndex(st *store.Store, blob store.Digest) *Index {
	if !st.HasBlob(blob) {
		return nil
	}
	return loadIndex(st, blob)
}

// loadIndex returns the stored index of a blob, which need not be there itself, or nil when there is none that can be used.
func loadIndex(st *store.Store, blob store.Digest) *Index {
	var r indexRecord
	if ok, err := st.GetRecord(store.KindLayerIndex, blob.Hex(), &r); err != nil || !ok {
		return nil
	}
	data, err := st.ReadBlob(r.Index, maxIndexBytes)
	if err != nil {
		return nil
	}
	ix, err := decodeIndex(data)
	if err != nil || ix.chunks != nil && ix.chunks[len(ix.chunks)-1].raw != r.RawSize {
		return nil
	}
	ix.DiffID, ix.RawSize, ix.from = r.DiffID, r.RawSize, storedBlob{st, blob}
	if r.Points != "" {
		ix.seeks = storedSeeks(st, r.Points)
		ix.pointsBlob = func() (*os.File, error) { return st.OpenBlob(r.Points) }
	}
	return ix
}

func (ix *Index) save(st *store.Store) (indexRecord, error) {
	data, err := ix.encode()
	if err != nil {
		return indexRecord{}, err
	}
	blob, err := st.PutBlob(data)
	if err != nil {
		return indexRecord{}, err
	}
	points, err := ix.saveSeeks(st)
	return indexRecord{Index: blob, DiffID: ix.DiffID, RawSize: ix.RawSize, Points: points}, err
}

// record keeps the index of a layer that was made or read just now.
func (ix *Index) record(st *store.Store, d Descriptor) error {
	r, err := ix.save(st)
	if err != nil {
		return err
	}
	return st.PutRecord(store.KindLayerIndex, d.Digest.Hex(), r.refs(), r)
}

// scanBlob makes an index by reading the whole layer.
func scanBlob(ctx context.Context, st *store.Store, d Descriptor, visit Visitor) (*Index, error) {
	from := storedBlob{st, d.Digest}
	f, err := from.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	task := progress.Begin(ctx, "index", d.Digest.Short(), d.Size)
	ix, err := scan(ctx, from, io.TeeReader(f, task), visit)
	return ix, task.End(err)
}

// scan makes the index of a layer's bytes, compressed or not, and shows the entries to visit, unless that is nil.
func scan(ctx context.Context, from backing, r io.Reader, visit Visitor) (*Index, error) {
	hash := sha256.New()
	tar, err := decompressAhead(ctx, r, hash)
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	ix := &Index{format: tar.format, from: from}
	tr := newTarReader(tar)
	if ix.Entries, err = readEntries(ctx, from, tr, visit); err != nil {
		return nil, err
	}
	// The tar may be followed by padding, which the hash covers.
	if ix.RawSize, err = tr.drain(); err != nil {
		return nil, err
	}
	if err := tar.Close(); err != nil {
		return nil, err
	}
	ix.DiffID = store.SumDigest(hash)
	return ix, nil
}

// Verify reads a layer's blob and reports whether it still has its digest and, unless that is empty, its DiffID.
func Verify(ctx context.Context, st *store.Store, d Descriptor) error {
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	blob, raw := sha256.New(), sha256.New()
	rc, err := Decompress(ctxio.Reader(ctx, io.TeeReader(f, blob)))
	if err != nil {
		return fmt.Errorf("verify layer %s: %w", d.Digest.Short(), err)
	}
	defer rc.Close()
	size, err := io.Copy(raw, io.LimitReader(rc, maxRawSize))
	if err == nil {
		_, err = io.Copy(blob, f) // what a decompressor leaves unread
	}
	if got := store.SumDigest(blob); err == nil && got != d.Digest {
		err = &store.MismatchError{Want: d.Digest, Got: got, Size: d.Size}
	}
	if got := store.SumDigest(raw); err == nil && d.DiffID != "" && got != d.DiffID {
		err = &store.MismatchError{Want: d.DiffID, Got: got, Size: size}
	}
	if err != nil {
		return fmt.Errorf("verify layer %s: %w", d.Digest.Short(), err)
	}
	return nil
}

// The stored form of an index: indexMagic, then, compressed with zstd, numbers as varints (encoding/binary) and texts as a
// length and bytes:
//
//	format  count of chunks + 1, or 0 without  of each chunk: length in the blob, length uncompressed
//	count of entries, then each: path type mode uid gid size link major minor mtime offset sparse
//	                             count of xattrs, then each: name value
//
// JSON would change paths that are not UTF-8.
const indexMagic = "sconce layer index 2\n"

// maxIndexBytes bounds a stored index, before and after decompression.
const maxIndexBytes = 1 << 30

func (ix *Index) encode() ([]byte, error) {
	b := binary.AppendUvarint(nil, uint64(ix.format))
	if ix.chunks == nil {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(ix.chunks)))
		for i := 1; i < len(ix.chunks); i++ {
			b = binary.AppendUvarint(b, uint64(ix.chunks[i].blob-ix.chunks[i-1].blob))
			b = binary.AppendUvarint(b, uint64(ix.chunks[i].raw-ix.chunks[i-1].raw))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(ix.Entries)))
	for i := range ix.Entries {
		b = ix.Entries[i].append(b)
	}
	return compressZstd([]byte(indexMagic), b)
}

func (e *IndexEntry) append(b []byte) []byte {
	b = appendText(b, e.Path)
	for _, v := range []int64{int64(e.Type), int64(e.Mode), int64(e.UID), int64(e.GID), e.Size} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = appendText(b, e.Link)
	b = binary.AppendUvarint(b, uint64(e.Major))
	b = binary.AppendUvarint(b, uint64(e.Minor))
	b = binary.AppendVarint(b, e.ModTime.Unix())
	b = binary.AppendUvarint(b, uint64(e.Offset))
	b = binary.AppendUvarint(b, uint64(e.Sparse))
	b = binary.AppendUvarint(b, uint64(len(e.Xattrs)))
	for _, k := range slices.Sorted(maps.Keys(e.Xattrs)) {
		b = appendText(appendText(b, k), e.Xattrs[k])
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var indexDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxIndexBytes), zstd.WithDecoderMaxWindow(ChunkSize))
})

func decodeIndex(data []byte) (*Index, error) {
	if len(data) < len(indexMagic) || string(data[:len(indexMagic)]) != indexMagic {
		return nil, errors.New("not a layer index")
	}
	z, err := indexDecoder()
	if err != nil {
		return nil, err
	}
	if data, err = z.DecodeAll(data[len(indexMagic):], nil); err != nil {
		return nil, err
	}
	d := indexDecoding{rest: string(data)}
	ix := &Index{format: format(d.number(uint64(formatXZ)))}
	if n := d.number(maxChunks + 1); n > 0 {
		ix.chunks = d.marks(n - 1)
	}
	n := d.number(maxEntries)
	ix.Entries = make([]IndexEntry, 0, min(n, uint64(len(d.rest)/minEntryBytes)))
	for range n {
		if d.bad {
			break
		}
		ix.Entries = append(ix.Entries, d.entry())
	}
	if d.bad || d.rest != "" {
		return nil, errors.New("the layer index is damaged")
	}
	return ix, nil
}

// maxChunks is how many chunks a layer can have: full ones, and one for each file with one before it.
const maxChunks = maxRawSize/ChunkSize + 2*maxEntries

// marks reads where n chunks start and the last ends.
func (d *indexDecoding) marks(n uint64) []mark {
	var at mark
	marks := []mark{at}
	for range n {
		at.blob += int64(d.number(maxRawSize))
		at.raw += int64(d.number(maxRawSize))
		if d.bad = d.bad || at.blob > maxRawSize || at.raw > maxRawSize; d.bad {
			break
		}
		marks = append(marks, at)
	}
	return marks
}

// minEntryBytes is the least that an entry takes: one byte for each of its fields.
const minEntryBytes = 13

// indexDecoding takes an index apart. The texts are parts of rest, so that all of them are one allocation.
type indexDecoding struct {
	rest string
	bad  bool
}

func (d *indexDecoding) entry() IndexEntry {
	var e IndexEntry
	e.Path = d.text()
	e.Type = Type(d.number(uint64(Fifo)))
	e.Mode = uint32(d.number(0o7777))
	e.UID = int(d.number(maxID))
	e.GID = int(d.number(maxID))
	e.Size = int64(d.number(maxRawSize))
	e.Link = d.text()
	e.Major = uint32(d.number(maxDevice))
	e.Minor = uint32(d.number(maxDevice))
	e.ModTime = time.Unix(d.signed(), 0).UTC()
	e.Offset = int64(d.number(maxRawSize))
	e.Sparse = int(d.number(maxEntries))
	for range d.number(maxXattrs) {
		if d.bad {
			break
		}
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		k := d.text()
		e.Xattrs[k] = d.text()
	}
	if !d.bad && e.validate() != nil {
		d.bad = true
	}
	return e
}

// maxXattrs is how many attributes of one byte fit in what a tar reader accepts as one extended header.
const maxXattrs = maxPaxHeader / 8

// number reads a number of at most limit.
func (d *indexDecoding) number(limit uint64) uint64 {
	var v uint64
	for shift := 0; shift < 64 && len(d.rest) > 0; shift += 7 {
		c := d.rest[0]
		d.rest = d.rest[1:]
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if v > limit {
				break
			}
			return v
		}
	}
	d.bad = true
	return 0
}

// signed reads a number in the zigzag form of binary.AppendVarint.
func (d *indexDecoding) signed() int64 {
	v := d.number(1<<64 - 1)
	return int64(v>>1) ^ -int64(v&1)
}

func (d *indexDecoding) text() string {
	n := d.number(maxPaxHeader)
	if uint64(len(d.rest)) < n {
		d.bad = true
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}
