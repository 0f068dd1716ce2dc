package squashfs

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// fileLayout is where the contents of a regular file are.
type fileLayout struct {
	start    int64  // of the blocks, which follow each other
	count    int64  // of blocks
	fragment uint32 // the fragment block that has the rest, or noFragment
	offset   uint32 // in that
	tail     int64  // bytes there
	sizesAt  uint64 // where the sizes of the blocks are in the inode table, as references are
}

const (
	fragmentSize  = 16      // of an entry of the fragment table, in bytes
	maxFileBlocks = 1 << 28 // of one file: a terabyte in the smallest blocks, 256 in the largest
	runBlocks     = 1024    // sizes of blocks that are read at once
)

// layOut checks and notes where a file of size bytes that starts at a place has its blocks.
func (f *File) layOut(start, size uint64) error {
	s, l := &f.r.super, &f.contents
	if size>>s.BlockLog >= maxFileBlocks {
		return formatError("file of %d bytes in blocks of %d", size, s.BlockSize)
	}
	if start > s.BytesUsed {
		return formatError("file that begins at %d of %d bytes", start, s.BytesUsed)
	}
	f.Size, l.start = int64(size), int64(start)
	l.count = f.Size >> s.BlockLog
	rest := f.Size & int64(s.BlockSize-1)
	switch {
	case rest > 0 && l.fragment == noFragment:
		l.count++
	case rest > 0 && l.fragment >= s.Fragments:
		return formatError("file in fragment block %d of %d", l.fragment, s.Fragments)
	case rest > 0:
		l.tail = rest
	}
	if l.tail > 0 && int64(l.offset)+l.tail > int64(s.BlockSize) {
		return formatError("fragment of %d bytes at %d", l.tail, l.offset)
	}
	return nil
}

// parts is how many pieces of at most a block size a file has.
func (f *File) parts() int64 {
	size := int64(f.r.super.BlockSize)
	return (f.Size + size - 1) / size
}

// partSize is the length of the i-th part.
func (f *File) partSize(i int64) int {
	size := int64(f.r.super.BlockSize)
	return int(min(size, f.Size-i*size))
}

// blockList finds the blocks of a file. The sizes of the blocks may be many (a sparse file takes nothing but them), so it
// remembers only where every 1024th block is, and the last 1024 that were asked for.
type blockList struct {
	f       *File
	runs    []blockRunStart
	current atomic.Pointer[blockRun]
}

// blockRunStart is where a run of blocks begins, and where its sizes do.
type blockRunStart struct {
	place   int64
	sizesAt uint64
}

// blockRun is a run of blocks.
type blockRun struct {
	first int64 // number of the first block
	words []uint32
	place []int64
}

// blockList makes the list of a file's blocks, all of which are then known to be inside the file system.
func (f *File) blockList() (*blockList, error) {
	f.once.Do(func() { f.blocks, f.blockErr = f.readBlockList() })
	return f.blocks, f.blockErr
}

func (f *File) readBlockList() (*blockList, error) {
	l := &blockList{f: f}
	at := blockRunStart{f.contents.start, f.contents.sizesAt}
	for first := int64(0); first < f.contents.count; first += runBlocks {
		l.runs = append(l.runs, at)
		run, next, err := l.read(first)
		if err != nil {
			return nil, fmt.Errorf("list of blocks: %w", err)
		}
		l.current.Store(run)
		at = next
	}
	return l, nil
}

// read reads the run that begins with block first, and tells where the next one begins.
func (l *blockList) read(first int64) (*blockRun, blockRunStart, error) {
	r, at := l.f.r, l.runs[first/runBlocks]
	n := min(runBlocks, l.f.contents.count-first)
	c, err := r.cursor(r.inodes, int64(at.sizesAt>>16), int(at.sizesAt&0xffff))
	if err != nil {
		return nil, at, err
	}
	b, err := c.bytes(4 * n)
	if err != nil {
		return nil, at, err
	}
	run := &blockRun{first, make([]uint32, n), make([]int64, n)}
	for i := range run.words {
		word := binary.LittleEndian.Uint32(b[4*i:])
		size := int64(word & blockMask)
		if word > blockStored|blockMask || size > int64(r.super.BlockSize) || size > r.end()-at.place {
			return nil, at, formatError("block of %#x bytes at %d", word, at.place)
		}
		run.words[i], run.place[i] = word, at.place
		at.place += size
	}
	at.sizesAt = inodeRef(c.block(), c.offset)
	return run, at, nil
}

// block returns the place and size of a block.
func (l *blockList) block(i int64) (int64, uint32, error) {
	run := l.current.Load()
	if run == nil || i < run.first || i >= run.first+int64(len(run.words)) {
		var err error
		if run, _, err = l.read(i / runBlocks * runBlocks); err != nil {
			return 0, 0, err
		}
		l.current.Store(run)
	}
	return run.place[i-run.first], run.words[i-run.first], nil
}

// readPart decompresses the i-th part of a file into p, which is as long as that is.
func (f *File) readPart(i int64, p []byte) error {
	if i >= f.contents.count {
		tail, err := f.tail()
		copy(p, tail)
		return err
	}
	l, err := f.blockList()
	if err != nil {
		return err
	}
	place, word, err := l.block(i)
	if err != nil {
		return err
	}
	if word&blockMask == 0 { // a hole
		clear(p)
		return nil
	}
	n, err := f.r.unpack(p, place, word)
	if err == nil && n != len(p) {
		return formatError("block at %d has %d bytes and should have %d", place, n, len(p))
	}
	return err
}

// part returns the i-th part of a file, which must not be changed, or nil for a hole. It is remembered for some time.
func (f *File) part(i int64) ([]byte, error) {
	if i >= f.contents.count {
		return f.tail()
	}
	l, err := f.blockList()
	if err != nil {
		return nil, err
	}
	place, word, err := l.block(i)
	if err != nil {
		return nil, err
	}
	if word&blockMask == 0 {
		return nil, nil
	}
	n := f.partSize(i)
	b, err := f.r.data(dataKey{place, word, n})
	if err == nil && len(b) != n {
		return nil, formatError("block at %d has %d bytes and should have %d", place, len(b), n)
	}
	return b, err
}

// tail returns what a file has in a fragment block.
func (f *File) tail() ([]byte, error) {
	l := &f.contents
	place, word, err := f.r.fragment(int64(l.fragment))
	if err != nil {
		return nil, err
	}
	b, err := f.r.data(dataKey{place, word, int(f.r.super.BlockSize)})
	if err != nil {
		return nil, fmt.Errorf("fragment %d: %w", l.fragment, err)
	}
	end := int64(l.offset) + l.tail
	if end > int64(len(b)) {
		return nil, formatError("fragment that ends at byte %d of a block of %d", end, len(b))
	}
	return b[l.offset:end], nil
}

// fragment returns the place and size of a fragment block.
func (r *Reader) fragment(n int64) (int64, uint32, error) {
	b, err := r.tableEntry(r.fragments, n, fragmentSize)
	if err != nil {
		return 0, 0, fmt.Errorf("fragment table: %w", err)
	}
	place, word := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	size := uint64(word & blockMask)
	if word > blockStored|blockMask || size == 0 || size > uint64(r.super.BlockSize) ||
		place < superblockSize || place > r.super.BytesUsed || size > r.super.BytesUsed-place {
		return 0, 0, formatError("fragment block %d has %#x bytes at %d", n, word, place)
	}
	return int64(place), word, nil
}

// dataKey names a decompressed block.
type dataKey struct {
	place int64
	word  uint32 // its size and flag, as they are written
	limit int    // of its length when decompressed, in bytes
}

// data returns a block, decompressed.
func (r *Reader) data(key dataKey) ([]byte, error) {
	return r.dataCache.Get(key, func(key dataKey) ([]byte, int64, error) {
		b := make([]byte, key.limit)
		n, err := r.unpack(b, key.place, key.word)
		return b[:n:n], int64(len(b)) + metaOverhead, err
	})
}

// unpack reads a block of a place and size that were checked, decompresses it into dst and returns its length.
func (r *Reader) unpack(dst []byte, place int64, word uint32) (int, error) {
	n := int(word & blockMask)
	if word&blockStored != 0 {
		if n > len(dst) {
			return 0, formatError("block at %d has %d bytes and should have at most %d", place, n, len(dst))
		}
		return n, r.readAt(dst[:n], place)
	}
	packed := r.buffer(n)
	defer r.buffers.Put(packed)
	if err := r.readAt((*packed)[:n], place); err != nil {
		return 0, err
	}
	m, err := r.expand(dst, (*packed)[:n])
	if err != nil {
		return 0, fmt.Errorf("%w: block at %d: %w", ErrFormat, place, err)
	}
	return m, nil
}

// buffer returns memory for n bytes, at most a block's; it goes back to r.buffers.
func (r *Reader) buffer(n int) *[]byte {
	if b, ok := r.buffers.Get().(*[]byte); ok && len(*b) >= n {
		return b
	}
	b := make([]byte, r.super.BlockSize)
	return &b
}
