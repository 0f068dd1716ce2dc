package layer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"slices"
	"sort"
	"sync"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/inflate"
)

// chunkReader reads a part of a layer that is made of chunks. One of at most [ChunkSize] bytes is decompressed whole, and
// kept for whoever reads next; a longer one, which is a file, is decompressed while it is read.
type chunkReader struct {
	ix       *Index
	at, left int64
	long     *longChunk // the one that at lies in, once it has been entered
}

func (r *chunkReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.read(p[:min(int64(len(p)), r.left)])
	r.at += int64(n)
	r.left -= int64(n)
	return n, err
}

// read reads from the chunk that r.at lies in.
func (r *chunkReader) read(p []byte) (int, error) {
	if r.long == nil {
		number := r.ix.chunkAt(r.at)
		if number < 0 {
			return 0, io.ErrUnexpectedEOF
		}
		within := r.at - r.ix.chunks[number].raw
		if r.ix.rawLen(number) <= ChunkSize {
			return r.ix.copyChunk(p, number, within)
		}
		var err error
		if r.long, err = r.ix.openLong(number, within); err != nil {
			return 0, err
		}
	}
	n, err := r.long.Read(p)
	if errors.Is(err, io.EOF) {
		err = r.Close() // the next chunk follows
	}
	return n, err
}

// Close ends what was not read to its end.
func (r *chunkReader) Close() error {
	l := r.long
	r.long = nil
	if l == nil {
		return nil
	}
	return l.Close()
}

// chunkAt returns the number of the chunk that holds a byte of the uncompressed tar, or -1.
func (ix *Index) chunkAt(at int64) int {
	n := len(ix.chunks) - 1 // the last mark is the end
	i := sort.Search(n, func(i int) bool { return ix.chunks[i+1].raw > at })
	if i == n {
		return -1
	}
	return i
}

// rawLen returns the uncompressed length of a chunk, in bytes.
func (ix *Index) rawLen(number int) int64 { return ix.chunks[number+1].raw - ix.chunks[number].raw }

// chunkID names a chunk in this process.
type chunkID struct {
	from   backing
	number int
}

// decoded is a chunk's uncompressed bytes.
type decoded struct {
	id    chunkID
	raw   *[]byte // data's memory
	data  []byte
	users int // who read data now, and one while it is kept
}

// keptChunks keeps the chunks that were read last, of all layers: files that lie side by side mostly share one, and a file whose
// parts are read in turn has several. Chunks of at most [ChunkSize] bytes are kept.
type keptChunks struct {
	mu   sync.Mutex
	room int
	list []*decoded // the one used last is the last
}

// chunksRead has room for the chunk that each processor's goroutine goes on from, and for some with tables that they come back to.
var chunksRead = keptChunks{room: min(runtime.GOMAXPROCS(0)+2, 8)}

// use returns a chunk that is kept, or nil. The caller releases it.
func (k *keptChunks) use(id chunkID) *decoded {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.list, func(d *decoded) bool { return d.id == id })
	if i < 0 {
		return nil
	}
	d := k.list[i]
	k.list = append(slices.Delete(k.list, i, i+1), d)
	d.users++
	return d
}

// keep keeps a chunk, in place of the one that was not used for the longest time.
func (k *keptChunks) keep(d *decoded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.list) == k.room {
		k.list[0].release()
		k.list = slices.Delete(k.list, 0, 1)
	}
	d.users++
	k.list = append(k.list, d)
}

func (k *keptChunks) release(d *decoded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.release()
}

func (d *decoded) release() {
	if d.users--; d.users == 0 {
		rawBuffers.Put(d.raw)
	}
}

// copyChunk copies what fits of a chunk of at most ChunkSize bytes, from a place in it.
func (ix *Index) copyChunk(p []byte, number int, within int64) (int, error) {
	d, err := ix.chunk(number)
	if err != nil {
		return 0, err
	}
	defer chunksRead.release(d)
	return copy(p, d.data[within:]), nil
}

// chunk returns a chunk of at most ChunkSize bytes. The caller releases it.
func (ix *Index) chunk(number int) (*decoded, error) {
	id := chunkID{ix.from, number}
	if d := chunksRead.use(id); d != nil {
		return d, nil
	}
	d := &decoded{id: id, raw: rawBuffers.Get().(*[]byte), users: 1}
	if err := ix.decodeChunk(d); err != nil {
		rawBuffers.Put(d.raw)
		return nil, fmt.Errorf("chunk %d: %w", number, err)
	}
	chunksRead.keep(d)
	return d, nil
}

func (ix *Index) decodeChunk(d *decoded) error {
	f, err := ix.from.open()
	if err != nil {
		return err
	}
	defer f.Close()
	buf := outBuffers.Get().(*[]byte)
	defer outBuffers.Put(buf)
	packed, err := ix.readChunk(f, d.id.number, (*buf)[:0])
	if err != nil {
		return err
	}
	d.data, err = unpackChunk(ix.format, packed, (*d.raw)[:ix.rawLen(d.id.number)])
	return err
}

// readChunk reads the compressed bytes of a chunk of at most ChunkSize bytes into buf, if there is room.
func (ix *Index) readChunk(f io.ReaderAt, number int, buf []byte) ([]byte, error) {
	from, to := ix.chunks[number], ix.chunks[number+1]
	size := to.blob - from.blob
	if size > 2*ChunkSize {
		return nil, errors.New("the layer index is damaged")
	}
	if int64(cap(buf)) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if n, err := f.ReadAt(buf, from.blob); n < len(buf) {
		return nil, unexpected(err)
	}
	return buf, nil
}

var chunkDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(ChunkSize), zstd.WithDecoderMaxWindow(ChunkSize))
})

// unpackChunk decompresses a chunk that fills data.
func unpackChunk(f format, packed, data []byte) ([]byte, error) {
	if f == formatZstd {
		z, err := chunkDecoder()
		if err != nil {
			return nil, err
		}
		got, err := z.DecodeAll(packed, data[:0])
		if err == nil && len(got) != len(data) {
			err = fmt.Errorf("it has %d bytes, not %d", len(got), len(data))
		}
		return got, err
	}
	if f == formatGzip && bytes.HasPrefix(packed, plainMember) && len(packed) > len(gzipHeader)+gzipTrailer {
		return data, unpackMember(packed, data)
	}
	z, err := decompress(bufio.NewReader(bytes.NewReader(packed)), f)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	if _, err := io.ReadFull(z, data); err != nil {
		return nil, err
	}
	return data, atEnd(z)
}

// plainMember starts a gzip member without a name, a comment and the like, as ours are (RFC 1952, section 2.3).
var plainMember = gzipHeader[:4]

// unpackMember decompresses a plain member that fills data. In one piece that is faster than as a stream.
func unpackMember(packed, data []byte) error {
	stream, trailer := packed[len(gzipHeader):len(packed)-gzipTrailer], packed[len(packed)-gzipTrailer:]
	n, used, err := inflate.Decode(data, stream)
	switch {
	case err != nil:
		return err
	case n != len(data) || used != len(stream):
		return fmt.Errorf("it has %d bytes in %d, not %d in %d", n, used, len(data), len(stream))
	case binary.LittleEndian.Uint32(trailer) != crc32.ChecksumIEEE(data) || binary.LittleEndian.Uint32(trailer[4:]) != uint32(n):
		return inflate.ErrGzipChecksum
	}
	return nil
}

// atEnd makes sure that r ends here. Only there does a decompressor compare the checksum.
func atEnd(r io.Reader) error {
	var more [1]byte
	switch n, err := io.ReadFull(r, more[:]); {
	case n > 0:
		return errors.New("it is longer than it should be")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// longChunk is a chunk that is decompressed while it is read. Its Read gives io.EOF only when all of it was right.
type longChunk struct {
	f    io.Closer
	z    io.ReadCloser
	left int64
}

// openLong opens a chunk at a place in it.
func (ix *Index) openLong(number int, within int64) (*longChunk, error) {
	f, err := ix.from.open()
	if err != nil {
		return nil, err
	}
	from, to := ix.chunks[number], ix.chunks[number+1]
	packed := io.NewSectionReader(f, from.blob, to.blob-from.blob)
	z, err := decompress(bufio.NewReaderSize(packed, 64<<10), ix.format)
	if err != nil {
		f.Close()
		return nil, err
	}
	l := &longChunk{f: f, z: z, left: to.raw - from.raw}
	if _, err := io.CopyN(io.Discard, l, within); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *longChunk) Read(p []byte) (int, error) {
	n, err := l.z.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	switch {
	case l.left > 0 && errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	case l.left == 0 && err == nil:
		if err = atEnd(l.z); err == nil {
			err = io.EOF
		}
	}
	return n, err
}

func (l *longChunk) Close() error { return errors.Join(l.z.Close(), l.f.Close()) }
