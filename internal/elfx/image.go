package elfx

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
)

// image is the bytes of a file and how numbers and addresses in them are meant.
type image struct {
	r     io.ReaderAt
	size  int64
	order binary.ByteOrder
	wide  bool // 64 bits
	loads []segment
}

// segment is a part of the file that is loaded.
type segment struct {
	address uint64
	region
}

// region is a part of the file, always inside it.
type region struct {
	offset int64
	size   int64
}

// region makes a region of what a header says, cut off at the end of the file.
func (im *image) region(offset, size uint64) region {
	if offset >= uint64(im.size) {
		return region{}
	}
	return region{int64(offset), int64(min(size, uint64(im.size)-offset))}
}

// mapped returns what of the file is loaded from address on, at most size bytes. It may go on in the next segment, where that follows in
// memory and in the file: patchelf puts a segment for its tables before the others, and what does not fit in a page of it lies beyond.
func (im *image) mapped(address, size uint64) region {
	for i, s := range im.loads {
		skip := address - s.address
		if address < s.address || skip >= uint64(s.size) {
			continue
		}
		end := s.address + uint64(s.size)
		r := region{s.offset + int64(skip), s.size - int64(skip)}
		for _, next := range im.loads[i+1:] { // in the order of addresses (System V ABI, "Program header")
			if next.address != end || next.offset != r.offset+r.size {
				break
			}
			end += uint64(next.size)
			r.size += next.size
		}
		r.size = int64(min(size, uint64(r.size)))
		return r
	}
	return region{}
}

// readAt fills p. An end of the file that comes too early is a format error.
func (im *image) readAt(p []byte, offset int64) error {
	n, err := im.r.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError("it ends at byte %d: %w", offset+int64(n), io.ErrUnexpectedEOF)
	}
	return err
}

// word returns the address or size at the beginning of p.
func (im *image) word(p []byte) uint64 {
	if im.wide {
		return im.order.Uint64(p)
	}
	return uint64(im.order.Uint32(p))
}

// choose returns the size of a structure for the class of the file.
func (im *image) choose(narrow, wide int64) int64 {
	if im.wide {
		return wide
	}
	return narrow
}

// window reads small pieces of a file through a few buffers, for the tables lie together, but in three or four places.
type window struct {
	image *image
	parts [4]part
	next  int
}

type part struct {
	offset int64
	data   []byte
}

const (
	partSize  = 16 << 10
	partAlign = 4 << 10
	maxPiece  = partSize - partAlign // of what at returns, in bytes
)

// at returns n bytes at offset, which are good until the next call. n is at most maxPiece.
func (w *window) at(offset, n int64) ([]byte, error) {
	if offset < 0 || n > w.image.size-offset {
		return nil, formatError("it ends at byte %d, inside a table: %w", w.image.size, io.ErrUnexpectedEOF)
	}
	for _, p := range w.parts {
		if skip := offset - p.offset; skip >= 0 && skip+n <= int64(len(p.data)) {
			return p.data[skip : skip+n], nil
		}
	}
	p := &w.parts[w.next]
	w.next = (w.next + 1) % len(w.parts)
	start := offset &^ (partAlign - 1)
	want := min(partSize, w.image.size-start)
	if int64(cap(p.data)) < want {
		p.data = make([]byte, want)
	}
	p.offset, p.data = start, p.data[:want]
	if err := w.image.readAt(p.data, start); err != nil {
		p.data = p.data[:0]
		return nil, err
	}
	return p.data[offset-start : offset-start+n], nil
}

// in returns n bytes at offset of a region.
func (w *window) in(r region, offset, n int64) ([]byte, error) {
	if offset < 0 || n > r.size-offset {
		return nil, formatError("a table ends inside an entry, at byte %d", r.offset+r.size)
	}
	return w.at(r.offset+offset, n)
}

// text returns the string at offset of a string table. One without an end, or longer than limit, is an error.
func (w *window) text(table region, offset uint64, limit int) (string, error) {
	if offset >= uint64(table.size) {
		return "", formatError("a name at %d of a string table of %d bytes", offset, table.size)
	}
	const step = 256
	var text []byte
	for at := int64(offset); len(text) <= limit; at += step {
		p, err := w.in(table, at, min(step, table.size-at))
		if err != nil {
			return "", err
		}
		for i, c := range p {
			if c == 0 {
				return string(append(text, p[:i]...)), nil
			}
		}
		if len(p) < step {
			return "", formatError("the string table has no end")
		}
		text = append(text, p...)
	}
	return "", formatError("a name of more than %d bytes", limit)
}

// archName returns what Go calls a machine.
func archName(m elf.Machine, wide bool, order binary.ByteOrder) string {
	little := order == binary.LittleEndian
	switch {
	case m == elf.EM_X86_64 && wide:
		return "amd64"
	case m == elf.EM_X86_64:
		return "amd64p32" // x32
	case m == elf.EM_386:
		return "386"
	case m == elf.EM_AARCH64 && wide && little:
		return "arm64"
	case m == elf.EM_ARM && little:
		return "arm"
	case m == elf.EM_PPC64 && little:
		return "ppc64le"
	case m == elf.EM_PPC64:
		return "ppc64"
	case m == elf.EM_S390 && wide:
		return "s390x"
	case m == elf.EM_RISCV && wide:
		return "riscv64"
	case m == elf.EM_LOONGARCH && wide:
		return "loong64"
	}
	return m.String()
}
