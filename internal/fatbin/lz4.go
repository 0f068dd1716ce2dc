package fatbin

import (
	"bufio"
	"errors"
	"io"
)

// LZ4 blocks (lz4_Block_format.md of the LZ4 project), unpacked as a stream: the images are single blocks of any size, and the
// format looks back 64 KiB only.
const (
	lz4Window   = 64 << 10
	lz4Room     = 256 << 10 // history and what is not yet written, in bytes
	lz4MinMatch = 4
	lz4More     = 15 // a length in a token that is continued in bytes
)

var errLZ4 = errors.New("damaged LZ4 block")

// lz4Block unpacks one block.
type lz4Block struct {
	in      *bufio.Reader
	out     io.Writer
	buf     []byte // history, then what is not yet written
	written int    // how much of buf is history
}

func newLZ4Block() *lz4Block {
	return &lz4Block{in: bufio.NewReaderSize(nil, lz4Window), buf: make([]byte, 0, lz4Room)}
}

// unpack reads a block up to the end of in.
func (b *lz4Block) unpack(out io.Writer, in io.Reader) error {
	b.in.Reset(in)
	b.out, b.buf, b.written = out, b.buf[:0], 0
	for {
		token, err := b.in.ReadByte()
		if err != nil {
			return b.inside(err)
		}
		if err := b.literals(int(token >> 4)); err != nil {
			return err
		}
		if _, err := b.in.Peek(1); errors.Is(err, io.EOF) { // the last sequence has literals only
			return b.flush()
		}
		if err := b.match(int(token & 15)); err != nil {
			return err
		}
	}
}

// inside turns an end within a sequence into damage.
func (b *lz4Block) inside(err error) error {
	if errors.Is(err, io.EOF) {
		return errLZ4
	}
	return err
}

// length reads the rest of a length that begins in the token.
func (b *lz4Block) length(n int) (int, error) {
	if n < lz4More {
		return n, nil
	}
	for {
		c, err := b.in.ReadByte()
		if err != nil {
			return 0, b.inside(err)
		}
		if n += int(c); n > maxUnpacked {
			return 0, errLZ4
		}
		if c < 255 {
			return n, nil
		}
	}
}

func (b *lz4Block) literals(n int) error {
	n, err := b.length(n)
	if err != nil {
		return err
	}
	for n > 0 {
		if err := b.makeRoom(); err != nil {
			return err
		}
		part := b.buf[len(b.buf):min(cap(b.buf), len(b.buf)+n)]
		if _, err := io.ReadFull(b.in, part); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errLZ4
			}
			return b.inside(err)
		}
		b.buf = b.buf[:len(b.buf)+len(part)]
		n -= len(part)
	}
	return nil
}

func (b *lz4Block) match(n int) error {
	low, err := b.in.ReadByte()
	if err != nil {
		return b.inside(err)
	}
	high, err := b.in.ReadByte()
	if err != nil {
		return b.inside(err)
	}
	distance := int(low) | int(high)<<8
	if distance == 0 || distance > len(b.buf) {
		return errLZ4
	}
	if n, err = b.length(n); err != nil {
		return err
	}
	for n += lz4MinMatch; n > 0; {
		if err := b.makeRoom(); err != nil {
			return err
		}
		from := b.buf[len(b.buf)-distance:]
		part := from[:min(n, len(from), cap(b.buf)-len(b.buf))]
		b.buf = append(b.buf, part...)
		n -= len(part)
	}
	return nil
}

// makeRoom makes sure that something can be appended.
func (b *lz4Block) makeRoom() error {
	if len(b.buf) < cap(b.buf) {
		return nil
	}
	if err := b.flush(); err != nil {
		return err
	}
	n := copy(b.buf, b.buf[len(b.buf)-lz4Window:])
	b.buf, b.written = b.buf[:n], n
	return nil
}

func (b *lz4Block) flush() error {
	_, err := b.out.Write(b.buf[b.written:])
	b.written = len(b.buf)
	return err
}
