// Package inflate decompresses deflate streams (RFC 1951): the members of wheels and the data of gzip files, of which
// building layers reads gigabytes.
//
// It decodes from a buffer of 64 bits that a single load refills, by tables that mostly need one look-up for a symbol, in
// a loop that leaves everything rare to careful code near the ends of input and output. What is accepted is what zlib
// and compress/flate accept; hostile input costs time in proportion to its length and to what it unpacks to, and memory
// in proportion to nothing.
package inflate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Reader decompresses a stream. It is not safe for concurrent use.
type Reader struct {
	m *machine // nil when closed
}

// Options of a Reader.
type Options struct {
	// ReadAhead lets the Reader take more bytes from its source than the stream has. Without it, precisely those of the
	// stream are taken: slowly, byte after byte, unless the source is a *bufio.Reader.
	ReadAhead bool

	// Points, unless 0, has the Reader note the places where decoding can begin anew, at least so many bytes of output apart. See
	// [Reader.Points].
	Points int64
}

// CorruptError reports a stream that is not a valid one.
type CorruptError struct {
	Offset int64  // bytes of the stream that were used when it was noticed
	Reason string // what the stream has that it must not have
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt deflate stream at byte %d: %s", e.Offset, e.Reason)
}

// Sizes of a Reader's buffers, in bytes.
const (
	inputSize  = 64 << 10
	outputSize = windowSize + 96<<10 + outputMargin
)

// machine is the large part of a Reader, to be used again.
type machine struct {
	decoder
	input
	given  int     // bytes of dst that were handed out
	err    error   // after all that was decoded
	notes  *listed // of places to begin anew; nil: nobody wants them
	buffer [outputSize]byte
}

var machines = sync.Pool{New: func() any { return new(machine) }}

// NewReader makes a Reader of the stream that r starts with. Close gives its memory to the next one.
//
// Reading ends in io.EOF after the stream's last block, in io.ErrUnexpectedEOF when r ends before, in a *CorruptError,
// or in r's own error.
func NewReader(r io.Reader, o Options) *Reader {
	z := new(Reader)
	z.Reset(r, o)
	return z
}

// Reset makes z, closed or not, read another stream.
func (z *Reader) Reset(r io.Reader, o Options) {
	if z.m == nil {
		z.m = machines.Get().(*machine)
	}
	m := z.m
	m.input.start(r, o)
	m.decoder.start(m.buffer[:], nil, &m.input)
	m.given, m.err, m.notes = 0, nil, nil
	if o.Points > 0 {
		m.notes = &listed{points: points{spacing: o.Points}}
	}
}

var errClosed = errors.New("read of a closed deflate stream")

// Read reads up to len(p) decompressed bytes.
func (z *Reader) Read(p []byte) (int, error) {
	if z.m == nil {
		return 0, errClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	b, err := z.m.more()
	n := copy(p, b)
	z.m.given += n
	return n, err
}

// WriteTo writes all that is left to w, without a copy in between.
func (z *Reader) WriteTo(w io.Writer) (int64, error) {
	if z.m == nil {
		return 0, errClosed
	}
	var total int64
	for {
		b, err := z.m.more()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		z.m.given += n
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// InputOffset is how many bytes of the stream were used so far; at io.EOF, it is the stream's length. Whatever follows in
// the source is not part of the stream.
func (z *Reader) InputOffset() int64 {
	if z.m == nil {
		return 0
	}
	return z.m.offset()
}

// Close makes z give up its memory. It does not close the source.
func (z *Reader) Close() error {
	if m := z.m; m != nil {
		z.m = nil
		m.input.r, m.input.peek, m.decoder.src, m.notes = nil, nil, nil, nil
		machines.Put(m)
	}
	return nil
}

// more is what was decoded and not handed out, never nothing without an error.
func (m *machine) more() ([]byte, error) {
	for m.given == m.out {
		if m.err != nil {
			return nil, m.err
		}
		m.slide()
		m.decode()
	}
	return m.buffer[m.given:m.out], nil
}

// slide makes room for output, leaving what matches may reach back into.
func (m *machine) slide() {
	if m.out > len(m.dst)-outputMargin {
		m.out = copy(m.dst, m.dst[m.out-windowSize:m.out])
		m.given = m.out
	}
}

// decode goes on until the output is full, the stream at its end, or at a point that its writer flushed it to.
func (m *machine) decode() {
	for m.err == nil && len(m.dst)-m.out >= outputMargin {
		flushed := m.state == inStored && m.left == 0 && m.out > m.given
		before := m.out
		m.err = m.step()
		if m.notes != nil && m.err == nil {
			m.notes.take(&m.decoder, before)
		}
		switch {
		case m.err != nil || m.state == atEnd:
			m.input.done(m.pos)
		case flushed:
			return
		}
		if m.err == nil && m.state == atEnd {
			m.err = io.EOF
		}
	}
}

// input is where a stream comes from.
type input struct {
	r     io.Reader
	peek  *bufio.Reader // r, if it is one and must not be read ahead
	limit int           // bytes to read at once
	err   error         // to return after what was read
	buf   [inputSize]byte
}

func (in *input) start(r io.Reader, o Options) {
	in.r, in.peek, in.limit, in.err = r, nil, len(in.buf), nil
	if !o.ReadAhead {
		in.peek, _ = r.(*bufio.Reader)
		in.limit = 1
	}
}

// next returns the bytes that follow, one or more, given how many it returned last time.
func (in *input) next(last int) ([]byte, error) {
	if in.peek != nil {
		return in.nextPeeked(last)
	}
	for range 100 {
		if in.err != nil {
			return nil, in.err
		}
		n, err := in.r.Read(in.buf[:in.limit])
		if in.err = err; err == io.EOF {
			in.err = io.ErrUnexpectedEOF
		}
		if n > 0 {
			return in.buf[:n], nil
		}
	}
	return nil, io.ErrNoProgress
}

func (in *input) nextPeeked(last int) ([]byte, error) {
	_, _ = in.peek.Discard(last) // they were there
	_, err := in.peek.Peek(1)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return in.peek.Peek(in.peek.Buffered())
}

// done is called at the stream's end, when used bytes were of those that next returned last.
func (in *input) done(used int) {
	if in.peek != nil {
		_, _ = in.peek.Discard(used)
	}
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// Decode decompresses the stream that src starts with into dst, which it must fit: a longer one ends in
// io.ErrShortBuffer. It returns how many bytes it has written and how many of src are the stream. What is beyond them in
// dst is overwritten too. Errors are those of a Reader.
func Decode(dst, src []byte) (n, consumed int, err error) {
	d := decoders.Get().(*decoder)
	d.start(dst, src, nil)
	for err == nil && d.state != atEnd {
		err = d.step()
	}
	n, consumed = d.out, int(d.offset())
	d.start(nil, nil, nil)
	decoders.Put(d)
	return n, consumed, err
}
