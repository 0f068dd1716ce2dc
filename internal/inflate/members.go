package inflate

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
)

// Members says what is to be told of a gzip file while it is read. All members must have plain headers, of which nothing is
// optional: another one, or what is no header, ends reading in [ErrNotPlain]. What a function returns ends reading, too.
type Members struct {
	// Spacing is how far apart points are at least, in bytes of content.
	Spacing int64

	// Point is told of the places where decoding can begin anew, counted from the start of the member's stream and in order. They are
	// those of [Reader.Points], the last one of each member being its end.
	Point func(Point) error

	// Member is told how many bytes a member's deflate stream and its content have, once the checksum is known to be right. Around
	// the stream are 10 bytes of header and 8 of trailer.
	Member func(stream, content int64) error
}

// ErrNotPlain is what a file ends in that has something other than a plain header where a member should begin.
var ErrNotPlain = errors.New("not a plain gzip header")

// plainHeader starts a member without a name, a comment and the like (RFC 1952 section 2.3).
var plainHeader = []byte{0x1f, 0x8b, 8, 0}

// plainLength is how many bytes a plain header has.
const plainLength = 10

// OpenMembers decompresses a gzip file as [OpenGzip] does and tells of its members as far as it is read. What it tells, and in which
// order, does not depend on how many cores there are.
func OpenMembers(r io.Reader, m Members) (io.ReadCloser, error) {
	return openMembers(r, cutting{chunk: chunkSize, overlap: chunkOverlap, workers: usefulWorkers(runtime.GOMAXPROCS(0))}, m)
}

func openMembers(r io.Reader, c cutting, m Members) (*ParallelGzipReader, error) {
	return startParallel(r, c, &notes{Members: m, points: points{spacing: m.Spacing}})
}

// readPlainHeader is readGzipHeader for a file of [Members].
func readPlainHeader(src io.Reader) error {
	var head [plainLength]byte
	n, err := io.ReadFull(src, head[:])
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return err
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case err != nil || !bytes.HasPrefix(head[:], plainHeader):
		return ErrNotPlain
	}
	return nil
}

// blockEnd is where a block of a piece ends.
type blockEnd struct {
	bit   int64 // of the piece's input
	at    int32 // in what comes out of the piece, in bytes
	final bool  // the stream ends with it
}

// blockEnds are those of a piece. Of several at one place, which empty blocks have, the first is enough, so that they take room in
// proportion to what comes out.
type blockEnds []blockEnd

func (l *blockEnds) add(e blockEnd) {
	if n := len(*l); n > 0 && !e.final && (*l)[n-1].at == e.at && !(*l)[n-1].final {
		return
	}
	*l = append(*l, e)
}

// notes makes points of the ends of blocks. Trials cannot: where a point is depends on all before it.
type notes struct {
	Members
	points
	window window
	start  int64 // the byte of the file where the member's stream starts, counted as in [chunk]
	end    int64 // its last bit; 0 before it has come
}

// look goes through a part of a piece, to the end of a member or of the piece.
func (n *notes) look(p *piece, from, to int) error {
	for n.end == 0 && len(p.ends) > 0 && int(p.ends[0].at) <= to {
		e := p.ends[0]
		p.ends = p.ends[1:]
		n.pass(p.data[from:e.at])
		from = int(e.at)
		bit := p.from + e.bit
		if e.final {
			n.end = bit
		}
		if !e.final && !n.due() {
			continue
		}
		if err := n.Point(n.point(bit-8*n.start, e.final)); err != nil {
			return err
		}
	}
	n.pass(p.data[from:to])
	return nil
}

// pass goes on behind what came out.
func (n *notes) pass(b []byte) {
	n.points.pass(b)
	n.window.keep(b)
}

func (n *notes) point(bit int64, final bool) Point {
	if final {
		return n.points.mark(bit, nil)
	}
	return n.points.mark(bit, slices.Clone(n.window.bytes()))
}

// member ends a member whose checksum is right.
func (n *notes) member() error {
	end := (n.end + 7) / 8
	stream, content := end-n.start, n.out
	n.start, n.end = end+gzipTrailer+plainLength, 0
	n.points, n.window.known = points{spacing: n.spacing}, 0
	return n.Member(stream, content)
}
