package fatbin

import (
	"bytes"
	"errors"
	"fmt"
)

// Sizes of the format, in bytes.
const (
	regionHeaderSize = 16
	entryHeaderSize  = 64
	entryVersion     = 0x0101
	partListHead     = 8
	maxPartList      = 1 << 20 // fatbinary needs some 120 for each part
)

// regionMagic is the start of each region: magic, version and size of the header.
var regionMagic = []byte{0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0}

// formatError is damage at a place of the file.
type formatError struct {
	off  int64
	text string
}

func (e formatError) Error() string { return fmt.Sprintf("byte %d: %s", e.off, e.text) }

func badf(off int64, format string, args ...any) error {
	return formatError{off: off, text: fmt.Sprintf(format, args...)}
}

// note keeps damage as a problem, and gives all other errors back.
func (s *scanner) note(err error) error {
	var bad formatError
	if errors.As(err, &bad) {
		s.problem(bad.off, "%s", bad.text)
		return nil
	}
	return err
}

// regions reads the regions that fill [off, end), with zeros between them at most, into like's section and place.
func (s *scanner) regions(off, end int64, like Region) error {
	for {
		var err error
		if off, err = s.skipZeros(off, end); err != nil || off == end {
			return err
		}
		size, err := s.regionSize(off, end)
		if err != nil {
			return s.note(err) // nothing tells where the next one is
		}
		r := like
		r.Offset, r.Size = off, size
		r.Entries, err = s.regionEntries(off, size)
		if err := s.note(err); err != nil {
			return err
		}
		if err := s.add(r); err != nil {
			return err
		}
		off += size
	}
}

// skipZeros gives the offset of the first byte in [off, end) that is not zero.
func (s *scanner) skipZeros(off, end int64) (int64, error) {
	n := int64(regionHeaderSize) // mostly there are none
	for ; off < end; n = windowSize {
		b, err := s.bytes(off, min(n, end-off))
		if err != nil {
			return off, err
		}
		if rest := bytes.TrimLeft(b, "\x00"); len(rest) > 0 {
			return off + int64(len(b)-len(rest)), nil
		}
		off += int64(len(b))
	}
	return end, nil
}

// regionSize reads the header of the region at off, which has to end by end. The size includes the header.
func (s *scanner) regionSize(off, end int64) (int64, error) {
	if end-off < regionHeaderSize {
		return 0, badf(off, "%d bytes that are no region", end-off)
	}
	head, err := s.bytes(off, regionHeaderSize)
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(head, regionMagic) {
		return 0, badf(off, "no region begins here, but % x", head[:8])
	}
	size := le.Uint64(head[8:])
	if size > uint64(end-off-regionHeaderSize) {
		return 0, badf(off, "the region's size, %d bytes, is more than the %d that follow", size, end-off-regionHeaderSize)
	}
	return regionHeaderSize + int64(size), nil
}

// regionEntries reads the entries of the region of size bytes at off. With an error it gives those before the damage.
func (s *scanner) regionEntries(off, size int64) (entries []Entry, err error) {
	end := off + size
	for off += regionHeaderSize; off < end; off = entries[len(entries)-1].End() {
		e, err := s.entry(off, end)
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// count bounds how many entries a file has.
func (s *scanner) count() error {
	if s.entries++; s.entries > maxEntries {
		return limitError(fmt.Sprintf("it has more than %d entries", maxEntries))
	}
	return nil
}

// entry reads the header of the entry at off, which has to end by end.
func (s *scanner) entry(off, end int64) (Entry, error) {
	if err := s.count(); err != nil {
		return Entry{}, err
	}
	if end-off < entryHeaderSize {
		return Entry{}, badf(off, "%d bytes at the end of a region are no entry", end-off)
	}
	head, err := s.bytes(off, entryHeaderSize)
	if err != nil {
		return Entry{}, err
	}
	e := decodeEntry(head)
	e.Offset = off
	e.HeaderSize = int64(le.Uint32(head[4:]))
	padded := le.Uint64(head[8:])
	switch {
	case le.Uint16(head[2:]) != entryVersion:
		return Entry{}, badf(off, "an entry of version %#x, but only %#x is known", le.Uint16(head[2:]), entryVersion)
	case e.HeaderSize < entryHeaderSize || e.HeaderSize > end-off:
		return Entry{}, badf(off, "an entry's header of %d bytes in a region with %d left", e.HeaderSize, end-off)
	case padded > uint64(end-off-e.HeaderSize):
		return Entry{}, badf(off, "an entry's payload of %d bytes in a region with %d left", padded, end-off-e.HeaderSize)
	case padded%8 != 0:
		return Entry{}, badf(off, "an entry's payload of %d bytes, which is no multiple of 8", padded)
	}
	e.PaddedSize = int64(padded)
	if err := e.setSizes(le.Uint32(head[16:]), le.Uint64(head[56:])); err != nil {
		return Entry{}, err
	}
	if e.Kind == Concatenated {
		err = s.parts(&e, int64(le.Uint32(head[20:])))
	}
	return e, err
}

// decodeEntry reads what has the same meaning in the headers of entries and of parts.
func decodeEntry(head []byte) Entry {
	e := Entry{
		Kind:  Kind(le.Uint16(head)),
		Minor: int(le.Uint16(head[24:])),
		Major: int(le.Uint16(head[26:])),
		Flags: Flags(le.Uint64(head[40:])),
	}
	e.Arch = Arch{SM: int(min(le.Uint32(head[28:]), maxSM)), Variant: e.Flags.variant()}
	e.Compression = e.Flags.compression()
	return e
}

func (f Flags) compression() Compression {
	switch f & (FlagOldPack | FlagLZ4 | FlagZstd) {
	case 0:
		return Stored
	case FlagLZ4:
		return LZ4
	case FlagZstd:
		return Zstd
	}
	return UnknownPack
}

func (f Flags) variant() string {
	switch f & (FlagArchOnly | FlagFamily) {
	case FlagArchOnly:
		return "a"
	case FlagFamily:
		return "f"
	}
	return ""
}

// setSizes takes over the compressed and the uncompressed size, which are 0 for what is stored.
func (e *Entry) setSizes(packed uint32, unpacked uint64) error {
	if e.Compression == Stored && packed == 0 && unpacked == 0 {
		e.PayloadSize, e.UncompressedSize = e.PaddedSize, e.PaddedSize
		return nil
	}
	e.PayloadSize, e.UncompressedSize = int64(packed), int64(unpacked)
	switch {
	case e.Compression == Stored:
		return badf(e.Offset, "a stored entry has the sizes of a compressed one")
	case packed == 0 || int64(packed) > e.PaddedSize:
		return badf(e.Offset, "a compressed size of %d bytes in a payload of %d", packed, e.PaddedSize)
	case unpacked == 0 || unpacked > maxUnpacked:
		return badf(e.Offset, "an uncompressed size of %d bytes", unpacked)
	}
	return nil
}

// maxUnpacked is far above all images and bounds the work of unpacking one. Bytes.
const maxUnpacked = 1 << 34

// parts reads the list of parts of a concatenated entry, which begins at off from the entry's start.
func (s *scanner) parts(e *Entry, off int64) error {
	if !within(off, partListHead, entryHeaderSize, e.HeaderSize) {
		return badf(e.Offset, "a concatenated entry without its list of parts")
	}
	head, err := s.bytes(e.Offset+off, partListHead)
	if err != nil {
		return err
	}
	count, size := int64(le.Uint32(head)), int64(le.Uint32(head[4:]))
	if !within(off, size, entryHeaderSize, e.HeaderSize) || size > maxPartList || size < partListHead {
		return badf(e.Offset, "a list of parts of %d bytes in a header of %d", size, e.HeaderSize)
	}
	list, err := s.bytes(e.Offset+off, size)
	if err != nil {
		return err
	}
	list = list[partListHead:]
	if count == 0 || count > size/entryHeaderSize {
		return badf(e.Offset, "%d parts in a list of %d bytes", count, size)
	}
	for range count {
		if err := s.count(); err != nil {
			return err
		}
		part, length, err := e.part(list)
		if err != nil {
			return err
		}
		part.Compression = e.Compression
		e.Parts, list = append(e.Parts, part), list[length:]
	}
	if len(list) != 0 {
		return badf(e.Offset, "%d bytes after a list of parts", len(list))
	}
	return nil
}

// part reads the header of a part at the start of list and gives its length.
func (e *Entry) part(list []byte) (p Entry, length int64, err error) {
	length = headerLength(list)
	if length < 0 {
		return p, 0, badf(e.Offset, "a part's header goes beyond its list")
	}
	p = decodeEntry(list)
	p.Offset = int64(le.Uint32(list[4:]))
	size := le.Uint64(list[8:])
	if p.Kind == Concatenated || p.Compression != Stored || le.Uint16(list[2:]) != entryVersion {
		return p, 0, badf(e.Offset, "a part of kind %v and flags %#x, which no part has", p.Kind, p.Flags)
	}
	if size > maxUnpacked || !within(p.Offset, int64(size), 0, e.UncompressedSize) {
		return p, 0, badf(e.Offset, "a part of %d bytes at %d in an image of %d", size, p.Offset, e.UncompressedSize)
	}
	p.PaddedSize, p.PayloadSize, p.UncompressedSize = int64(size), int64(size), int64(size)
	return p, length, nil
}

// headerLength is where the header at the start of b ends by its records, or -1 when that is beyond b.
func headerLength(b []byte) int64 {
	size := int64(len(b))
	if size < entryHeaderSize {
		return -1
	}
	length := int64(entryHeaderSize)
	if n := int64(le.Uint32(b[36:])); n > 0 {
		length = max(length, alignUp(int64(le.Uint32(b[32:]))+n+1))
	}
	if off := int64(le.Uint32(b[20:])); off > 0 {
		if !within(off, 8, entryHeaderSize, size) {
			return -1
		}
		length = max(length, alignUp(int64(le.Uint32(b[off:]))+int64(le.Uint32(b[off+4:]))+1))
	}
	if length > size {
		return -1
	}
	return length
}
