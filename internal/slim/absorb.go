package slim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/fatbin"
)

// What of an entry's header is written. Package fatbin explains all of it.
const (
	entryHeaderSize  = 64
	headerSizeField  = 4 // u32
	paddedSizeField  = 8 // u64
	paddedFieldBytes = 8
	maxHeader        = 64 << 10 // bytes that a header may hold, zeros at its end not counted; 192 is the most seen
)

var le = binary.LittleEndian

// doubtError is why a file is left alone.
type doubtError string

func (e doubtError) Error() string { return string(e) }

func doubtf(format string, args ...any) error { return doubtError(fmt.Sprintf(format, args...)) }

// absorb adds the edits that take the entries out of a region that do not stay.
func (p *Plan) absorb(r io.ReaderAt, region *fatbin.Region, keep []bool) error {
	var last *fatbin.Entry // that stays
	var moved []byte       // its header, when that is written anew
	run := int64(-1)       // where the entries since then begin that go
	for i := range region.Entries {
		e := &region.Entries[i]
		if !keep[i] {
			if run < 0 {
				run = e.Offset
			}
			continue
		}
		last, moved = e, nil
		if run >= 0 {
			var err error
			if moved, err = p.moveHeader(r, e, run); err != nil {
				return err
			}
			run = -1
		}
	}
	if run >= 0 && last != nil {
		end := region.Offset + region.Size
		p.edits = append(p.edits, edit{Off: run, Size: end - run})
		p.growPayload(last, moved, end)
	}
	return nil
}

// moveHeader writes the header of an entry to an earlier place, grown to reach its payload. It gives what it writes.
func (p *Plan) moveHeader(r io.ReaderAt, e *fatbin.Entry, to int64) ([]byte, error) {
	header, err := readHeader(r, e)
	if err != nil {
		return nil, err
	}
	size := e.Offset + e.HeaderSize - to
	le.PutUint32(header[headerSizeField:], uint32(size)) // regions are below 2 GiB
	p.edits = append(p.edits, edit{Off: to, Size: size, Data: header})
	return header, nil
}

// growPayload makes what follows a payload, up to end, a part of its padding.
func (p *Plan) growPayload(e *fatbin.Entry, moved []byte, end int64) {
	size := uint64(end - e.Offset - e.HeaderSize)
	if moved != nil {
		le.PutUint64(moved[paddedSizeField:], size)
		return
	}
	p.edits = append(p.edits, edit{Off: e.Offset + paddedSizeField, Size: paddedFieldBytes, Data: le.AppendUint64(nil, size)})
}

// readHeader reads a header without the zeros at its end. Of files that were slimmed before, headers are long, and zero but for their
// start.
func readHeader(r io.ReaderAt, e *fatbin.Entry) ([]byte, error) {
	header, err := readBytes(r, e.Offset, min(e.HeaderSize, maxHeader))
	if err != nil {
		return nil, err
	}
	for off := int64(len(header)); off < e.HeaderSize; {
		more, err := readBytes(r, e.Offset+off, min(e.HeaderSize-off, maxHeader))
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimLeft(more, "\x00")) > 0 {
			return nil, doubtf("the header at byte %d is longer than any known", e.Offset)
		}
		off += int64(len(more))
	}
	header = header[:max(len(bytes.TrimRight(header, "\x00")), entryHeaderSize)]
	return bytes.Clone(header), nil
}

func readBytes(r io.ReaderAt, off, n int64) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); int64(got) < n {
		return nil, fmt.Errorf("read %d bytes at byte %d: %w", n, off, err)
	}
	return b, nil
}
