package fatbin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Verification is what [File.Verify] found.
type Verification struct {
	Images   int       // that are what their headers say
	Opaque   int       // of which only the sizes could be checked, or not even they: scrambled LTO-IR and unknown kinds
	Bytes    int64     // unpacked
	Problems []Problem // at most 100
}

// Verify unpacks every image and compares it with its header: the size, a cubin's architecture and ABI, the directives of a PTX
// text. What is wrong is told in the Verification; errors are those of the reader and of ctx.
func (f *File) Verify(ctx context.Context) (Verification, error) {
	u := newUnpacker()
	defer u.close()
	var v Verification
	for i := range f.Regions {
		r := &f.Regions[i]
		for j := range r.Entries {
			if err := ctx.Err(); err != nil {
				return v, err
			}
			if err := f.verify(ctx, u, &v, r, &r.Entries[j]); err != nil {
				return v, fmt.Errorf("verify the image at byte %d: %w", r.Entries[j].Offset, err)
			}
		}
	}
	return v, nil
}

// Unpack writes the payload of an entry, unpacked, to w. Not for parts, which lie in the payload of their entry.
func (f *File) Unpack(ctx context.Context, w io.Writer, e *Entry) error {
	u := newUnpacker()
	defer u.close()
	if err := u.unpack(ctx, w, f.r, e); err != nil {
		return fmt.Errorf("unpack the image at byte %d: %w", e.Offset, err)
	}
	return nil
}

func (f *File) verify(ctx context.Context, u *unpacker, v *Verification, r *Region, e *Entry) error {
	images := e.Parts
	if e.Kind != Concatenated {
		images = []Entry{*e}
		images[0].Offset = 0
	}
	if e.scrambled() {
		v.Opaque += len(images)
		return nil
	}
	heads := newPrefixes(images)
	err := u.unpack(ctx, heads, f.r, e)
	v.Bytes += heads.pos
	var bad formatError
	if err != nil && !errors.As(err, &bad) {
		return err
	}
	if err != nil {
		v.problem(r, e, "%v", bad.text)
		return nil //nolint:nilerr // noted as a problem
	}
	for i := range images {
		opaque, err := images[i].check(heads.heads[i])
		switch {
		case err != nil:
			v.problem(r, e, "%v %v: %v", images[i].Kind, images[i].Arch, err)
		case opaque:
			v.Opaque++
		default:
			v.Images++
		}
	}
	return nil
}

func (v *Verification) problem(r *Region, e *Entry, format string, args ...any) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, Problem{Member: r.Member, Offset: e.Offset, Text: fmt.Sprintf(format, args...)})
	}
}

// scrambled is whether the payload cannot be unpacked.
func (e *Entry) scrambled() bool { return e.Flags&FlagScramble != 0 || e.Compression == UnknownPack }

// check compares an image, of which head is the start, with its header.
func (e *Entry) check(head []byte) (opaque bool, err error) {
	switch e.Kind {
	case ELFImage:
		return false, e.checkCubin(head)
	case PTX, RelocatablePTX:
		return false, e.checkPTX(head)
	case LTOIR:
		if !bytes.HasPrefix(head, []byte{0xED, 0x43, 0x4E, 0x7F}) {
			return false, errors.New("it does not begin as LTO-IR does")
		}
		return false, nil
	}
	return true, nil
}

func (e *Entry) checkCubin(head []byte) error {
	h, is := decodeCubin(head)
	switch {
	case !is:
		return errors.New("the image is no cubin")
	case h.arch.SM != e.Arch.SM:
		return fmt.Errorf("the image is for %v", h.arch)
	case h.abi != e.Minor:
		return fmt.Errorf("the image has ABI %d, its header says %d", h.abi, e.Minor)
	case h.arch.Variant == "a" && e.Arch.Variant != "a", h.abi <= 7 && h.arch.Variant == "" && e.Arch.Variant == "a":
		return fmt.Errorf("the image is for %v", h.arch)
	case !within(0, h.shnum*sectionHeaderSize, 0, e.UncompressedSize) ||
		h.shoff > uint64(e.UncompressedSize-h.shnum*sectionHeaderSize):
		return errors.New("the image ends before its section headers do")
	}
	return nil
}

func (e *Entry) checkPTX(head []byte) error {
	h, is := decodePTX(head)
	switch {
	case !is:
		return errors.New("the image is no PTX text")
	case h.arch != e.Arch:
		return fmt.Errorf("the text is for %v", h.arch)
	case h.major != e.Major || h.minor != e.Minor:
		return fmt.Errorf("the text is of PTX %d.%d, its header says %d.%d", h.major, h.minor, e.Major, e.Minor)
	}
	return nil
}

// prefixes keeps the starts of images as they are written.
type prefixes struct {
	images []Entry
	heads  [][]byte
	pos    int64
}

func newPrefixes(images []Entry) *prefixes {
	return &prefixes{images: images, heads: make([][]byte, len(images))}
}

// headSize is how much of an image is checked, in bytes.
func (e *Entry) headSize() int64 {
	if e.Kind == PTX || e.Kind == RelocatablePTX {
		return min(e.UncompressedSize, maxPreface)
	}
	return min(e.UncompressedSize, elfHeaderSize)
}

func (p *prefixes) Write(b []byte) (int, error) {
	end := p.pos + int64(len(b))
	for i := range p.images {
		start := p.images[i].Offset + int64(len(p.heads[i])) // of what is missing
		stop := min(p.images[i].Offset+p.images[i].headSize(), end)
		if start >= p.pos && start < stop {
			p.heads[i] = append(p.heads[i], b[start-p.pos:stop-p.pos]...)
		}
	}
	p.pos = end
	return len(b), nil
}

// unpacker unpacks payloads, one after the other.
type unpacker struct {
	zstd *zstd.Decoder
	lz4  *lz4Block
}

func newUnpacker() *unpacker { return &unpacker{} }

func (u *unpacker) close() {
	if u.zstd != nil {
		u.zstd.Close()
	}
}

// unpack writes the image of e. Errors are a formatError when the payload is damaged or not of the size that its header says.
func (u *unpacker) unpack(ctx context.Context, w io.Writer, r io.ReaderAt, e *Entry) error {
	if e.scrambled() {
		return badf(e.Offset, "the payload is scrambled or packed in an unknown way")
	}
	in := &payload{ctx: ctx, in: io.NewSectionReader(r, e.Offset+e.HeaderSize, e.PayloadSize)}
	out := &bounded{w: w, left: e.UncompressedSize}
	err := u.copy(out, in, e.Compression)
	switch {
	case in.err != nil:
		return in.err
	case out.err != nil:
		return out.err
	case out.full:
		return badf(e.Offset, "the payload unpacks to more than %d bytes", e.UncompressedSize)
	case err != nil:
		return badf(e.Offset, "the payload cannot be unpacked: %v", err)
	case out.left > 0:
		return badf(e.Offset, "the payload unpacks to %d bytes, its header says %d", e.UncompressedSize-out.left, e.UncompressedSize)
	}
	return nil
}

func (u *unpacker) copy(out io.Writer, in io.Reader, c Compression) error {
	switch c {
	case Zstd:
		return u.copyZstd(out, in)
	case LZ4:
		return u.copyLZ4(out, in)
	}
	_, err := io.Copy(out, in)
	return err
}

func (u *unpacker) copyZstd(out io.Writer, in io.Reader) error {
	var err error
	if u.zstd == nil {
		u.zstd, err = newZstd(in)
	} else {
		err = u.zstd.Reset(in)
	}
	if err != nil {
		return err
	}
	_, err = u.zstd.WriteTo(out)
	return err
}

// lz4Frame begins a frame. No block begins so: it would look back before its start.
var lz4Frame = []byte{0x04, 0x22, 0x4D, 0x18}

func (u *unpacker) copyLZ4(out io.Writer, in io.Reader) error {
	head := make([]byte, len(lz4Frame))
	n, err := io.ReadFull(in, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	in = io.MultiReader(bytes.NewReader(head[:n]), in)
	if bytes.Equal(head, lz4Frame) {
		_, err := lz4.NewReader(in).WriteTo(out)
		return err
	}
	if u.lz4 == nil {
		u.lz4 = newLZ4Block()
	}
	return u.lz4.unpack(out, in)
}

// payload reads a payload and keeps the errors that are not the payload's fault.
type payload struct {
	ctx context.Context
	in  io.Reader
	err error
}

func (p *payload) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		p.err = err
		return 0, err
	}
	n, err := p.in.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		p.err = err
	}
	return n, err
}

// bounded writes no more than it should.
type bounded struct {
	w    io.Writer
	left int64
	full bool
	err  error // of w
}

var errFull = errors.New("more than expected")

func (o *bounded) Write(b []byte) (int, error) {
	if int64(len(b)) > o.left {
		o.full = true
		return 0, errFull
	}
	n, err := o.w.Write(b)
	o.left -= int64(n)
	o.err = err
	return n, err
}
