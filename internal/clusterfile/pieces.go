package clusterfile

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// A layer may be too large to be compressed in the time that a job has. So it is compressed in pieces, each a segment of the file system
// and kept when it is done: whoever comes after one that was killed goes on behind the last piece that was kept. Where a piece ends
// depends on the layer alone, so that the bytes of the file do not tell how often it was begun.

// pieceSize is how much of a layer's tar, in bytes, makes a piece: seconds of work for one core, and few enough pieces of the largest
// layers. Several pieces share what a file lies in that is larger. Tests make it smaller.
var pieceSize int64 = 256 << 20

// piecewise writes the files of a layer, piece by piece.
type piecewise struct {
	sq    *squashfs.Writer
	packs func(piece int64) []*squashfs.Pack // of the layer, to be copied
	done  func(piece int64, seg *squashfs.Segment) error

	open  bool
	piece int64 // that is being written, if one is
}

// enter ends the piece that is being written unless what lies at an offset of the tar belongs to it, and then begins that one.
func (p *piecewise) enter(offset int64) error {
	piece := offset / pieceSize
	if p.open && p.piece == piece {
		return nil
	}
	if err := p.end(); err != nil {
		return err
	}
	p.open, p.piece = true, piece
	return p.sq.StartSegment(p.packs(piece)...)
}

// end ends the piece that is being written, if one is.
func (p *piecewise) end() error {
	if !p.open {
		return nil
	}
	p.open = false
	seg, err := p.sq.EndSegment()
	if err != nil {
		return err
	}
	return p.done(p.piece, seg)
}

// blobState tells the file of a layer's blob from another that the store has had or will have in its place; "" when it has none.
//
// A piece is kept before the layer was read to its end, where a damaged blob shows itself. Until then the piece is as good as the file
// that it was made of, and with another one in its place it is worth nothing.
func blobState(st *store.Store, layer store.Digest) string {
	if layer == "" {
		return ""
	}
	path, err := st.BlobPath(layer)
	if err != nil {
		return ""
	}
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return ""
	}
	return fmt.Sprintf("%d %d %d", s.Ino, s.Mtim.Nano(), s.Size) // not the ctime, which a use changes
}
