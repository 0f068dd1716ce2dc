package layer

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recent"
	"sconce.dev/sconce/internal/store"
)

// SeekableIndex returns the index of a layer if each of its contents can be read from anywhere at little cost, with a checksum over
// what is read; else nil. That can be in layers that were made here and are compressed. The blob must be in the store.
func SeekableIndex(st *store.Store, d Descriptor) (*Index, error) {
	ix := storedIndex(st, d.Digest)
	if ix == nil || !ix.seekable() {
		return nil, nil
	}
	if err := ix.promised(d); err != nil {
		return nil, fmt.Errorf("read layer %s: %w", d.Digest.Short(), err)
	}
	return ix, nil
}

func (ix *Index) seekable() bool {
	if ix.chunks == nil || ix.format == formatTar {
		return false
	}
	for number := range len(ix.chunks) - 1 {
		if ix.rawLen(number) <= ChunkSize {
			continue
		}
		if list, err := ix.seekPoints(number); err != nil || list == nil {
			return false
		}
	}
	for i := range ix.Entries {
		if ix.Entries[i].Sparse != 0 {
			return false
		}
	}
	return true
}

// Pieces keeps the parts of layers that were decompressed last, for who reads files from anywhere, and has what lies beside them
// decompressed by processors that would be idle.
type Pieces struct {
	kept  recent.Cache[pieceID, []byte]
	slots chan struct{} // who decompresses what is waited for
	idle  chan struct{} // who decompresses ahead

	mu   sync.Mutex
	seen map[pieceID]bool // what was decompressed; true: somebody has wanted it
}

// pieceID names a chunk, or a part of a long one.
type pieceID struct {
	ix           *Index
	number, part int
}

// NewPieces makes one that keeps room bytes. Besides, a few MiB are in use for each processor.
func NewPieces(room int64) *Pieces {
	cores := runtime.GOMAXPROCS(0)
	p := &Pieces{slots: make(chan struct{}, max(2, cores)), idle: make(chan struct{}, max(1, cores-1)), seen: map[pieceID]bool{}}
	p.kept.Room = room
	return p
}

// ReaderAt reads the content of a regular file of a layer of [SeekableIndex] from anywhere. It may be used by several at once. No byte
// is returned whose checksum was not compared.
func (ix *Index) ReaderAt(e IndexEntry, p *Pieces) (*PiecedFile, error) {
	if e.Type != Regular || e.Sparse != 0 || e.Offset < 0 || e.Size < 0 || e.Offset > ix.RawSize-e.Size {
		return nil, fmt.Errorf("open %s in %s: %w", quotePath(e.Path), ix.from, errBeyondEnd)
	}
	return &PiecedFile{ix: ix, pieces: p, at: e.Offset, size: e.Size}, nil
}

// PiecedFile is the content of a file, decompressed by pieces of its layer.
type PiecedFile struct {
	ix       *Index
	pieces   *Pieces
	at, size int64
	tell     func(data []byte, off int64)

	mu   sync.Mutex
	told map[pieceID]bool
}

// Tell has f called with what is decompressed besides what is asked for, and its place in the file: once for each piece, at any time
// and from several goroutines. It is set before the first read.
func (f *PiecedFile) Tell(tell func(data []byte, off int64)) {
	f.tell, f.told = tell, map[pieceID]bool{}
}

// ReadAt is io.ReaderAt.
func (f *PiecedFile) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read before the beginning")
	}
	n := 0
	for n < len(p) && off < f.size {
		data, err := f.pieces.at(f, f.at+off)
		if err != nil {
			return n, f.ix.damaged(err)
		}
		m := copy(p[n:min(int64(len(p)), int64(n)+f.size-off)], data)
		n, off = n+m, off+int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// pass tells what a piece, which begins at raw of the layer, has of the file. It does not wait for whoever is told.
func (f *PiecedFile) pass(id pieceID, raw int64, data []byte) {
	from, to := max(raw, f.at), min(raw+int64(len(data)), f.at+f.size)
	if f.tell == nil || from >= to {
		return
	}
	f.mu.Lock()
	again := f.told[id]
	f.told[id] = true
	f.mu.Unlock()
	if !again {
		go f.tell(data[from-raw:to-raw], from-f.at)
	}
}

func (ix *Index) damaged(err error) error {
	return fault.Hint(fmt.Errorf("%s cannot be read: %w", ix.from, err),
		"run `sconce cache verify --remove`: what is damaged goes, and is fetched or made again")
}

// pieceAt finds the piece with a byte of the uncompressed tar, and where it begins there.
func (ix *Index) pieceAt(at int64) (id pieceID, raw int64, err error) {
	number := ix.chunkAt(at)
	if number < 0 {
		return id, 0, io.ErrUnexpectedEOF
	}
	id, raw = pieceID{ix, number, 0}, ix.chunks[number].raw
	if ix.rawLen(number) <= ChunkSize {
		return id, raw, nil
	}
	list, err := ix.seekPoints(number)
	if err != nil || list == nil {
		return id, 0, errors.Join(err, errSeeks)
	}
	id.part = partAt(list, at-raw)
	return id, raw + partOf(list, id.part).raw, nil
}

// beside returns the piece that lies n pieces behind another, and where it begins: in the same long chunk, or among the short ones of
// the layer.
func (id pieceID) beside(n int) (_ pieceID, raw int64, ok bool) {
	ix := id.ix
	if ix.rawLen(id.number) <= ChunkSize {
		id.number += n
		ok = id.number >= 0 && id.number < len(ix.chunks)-1 && ix.rawLen(id.number) <= ChunkSize
		if ok {
			raw = ix.chunks[id.number].raw
		}
		return id, raw, ok
	}
	list, err := ix.seekPoints(id.number)
	id.part += n
	if err != nil || id.part < 0 || id.part >= len(list) {
		return id, 0, false
	}
	return id, ix.chunks[id.number].raw + partOf(list, id.part).raw, true
}

// at returns the bytes from a place in the uncompressed tar to the end of the piece it lies in, one or more.
func (p *Pieces) at(f *PiecedFile, at int64) ([]byte, error) {
	id, raw, err := f.ix.pieceAt(at)
	if err != nil {
		return nil, err
	}
	data, err := p.kept.Get(id, p.load)
	if err != nil {
		return nil, fmt.Errorf("chunk %d: %w", id.number, err)
	}
	f.pass(id, raw, data)
	for _, n := range p.wanted(id) {
		if next, raw, ok := id.beside(n); ok {
			p.ahead(f, next, raw)
		}
	}
	return data[at-raw:], nil
}

// How far pieces are decompressed ahead, in pieces: on both sides of one that is wanted, and at most in one direction.
const (
	aheadLeast = 4
	aheadMost  = 16
)

// wanted notes that a piece is wanted, and says which ones beside it may be wanted next, the nearest first: as many behind it as were
// wanted before it, one after the other, and likewise in the other direction. Destructors go through a library backwards.
func (p *Pieces) wanted(id pieceID) (beside []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[id] {
		return nil
	}
	p.seen[id] = true
	forward, backward := max(aheadLeast, p.run(id, -1)), max(aheadLeast, p.run(id, 1))
	for n := 1; n <= max(forward, backward); n++ {
		if n <= forward {
			beside = append(beside, n)
		}
		if n <= backward {
			beside = append(beside, -n)
		}
	}
	return beside
}

// run counts the pieces that were decompressed beside one, in one direction.
func (p *Pieces) run(id pieceID, step int) int {
	for n := 1; n <= aheadMost; n++ {
		next, _, ok := id.beside(n * step)
		if _, seen := p.seen[next]; !ok || !seen {
			return n - 1
		}
	}
	return aheadMost
}

// ahead has a piece decompressed that nobody has wanted yet, unless all processors are in use.
func (p *Pieces) ahead(f *PiecedFile, id pieceID, raw int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, seen := p.seen[id]; seen {
		return
	}
	select {
	case p.idle <- struct{}{}:
	default:
		return
	}
	p.seen[id] = false
	go func() {
		defer func() { <-p.idle }()
		if data, err := p.kept.Get(id, p.load); err == nil { // who wants it hears of an error
			f.pass(id, raw, data)
		}
	}()
}

func (p *Pieces) load(id pieceID) ([]byte, int64, error) {
	p.slots <- struct{}{}
	defer func() { <-p.slots }()
	data, err := id.ix.readPiece(id)
	return data, int64(len(data)), err
}

func (ix *Index) readPiece(id pieceID) ([]byte, error) {
	f, err := ix.from.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if ix.rawLen(id.number) > ChunkSize {
		list, err := ix.seekPoints(id.number)
		if err != nil {
			return nil, err
		}
		return ix.readPart(f, id.number, partOf(list, id.part))
	}
	buf := outBuffers.Get().(*[]byte)
	defer outBuffers.Put(buf)
	packed, err := ix.readChunk(f, id.number, (*buf)[:0])
	if err != nil {
		return nil, err
	}
	return unpackChunk(ix.format, packed, make([]byte, ix.rawLen(id.number)))
}
