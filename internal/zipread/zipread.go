// Package zipread opens zip archives that every program reads alike.
//
// A zip says twice which files it has: in a header before each, and in a directory at its end, which may itself be found in several
// ways. Programs differ in what they believe, so that one archive can be two: the one that a scanner saw, and the one that is installed
// (CVE-2025-54368). [Check] refuses an archive where that could be, instead of choosing: its headers follow each other from the first byte
// on, the directory follows the last of them and says the same, and the archive ends where the directory's end says.
package zipread

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Open is [zip.NewReader] with [Check].
func Open(r io.ReaderAt, size int64) (*zip.Reader, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, err
	}
	return z, Check(z, r, size)
}

// Check returns an error if another program may read something else in r, of size bytes, than z, which was made of it. Contents
// are not read.
func Check(z *zip.Reader, r io.ReaderAt, size int64) error {
	d, err := findDirectory(r, size)
	if err != nil {
		return err
	}
	members, err := d.members(z, r)
	if err != nil {
		return err
	}
	slices.SortStableFunc(members, func(a, b member) int { return cmp.Compare(a.at, b.at) })
	seen := make(map[string]bool, len(members))
	at, last := uint64(0), ""
	for i, m := range members {
		switch {
		case seen[m.Name]:
			return fmt.Errorf("%q is there twice", m.Name)
		case m.at < at:
			return fmt.Errorf("%q overlaps that of %q: its header lies in it", m.Name, last)
		case m.at > at:
			return errHidden(at, m.at)
		}
		seen[m.Name] = true
		next := d.at
		if i+1 < len(members) {
			next = members[i+1].at
		}
		if at, err = m.check(r, next); err != nil {
			return fmt.Errorf("%q: %w", m.Name, err)
		}
		last = m.Name
	}
	if at != d.at {
		return errHidden(at, d.at)
	}
	return nil
}

func errHidden(from, to uint64) error {
	return fmt.Errorf("bytes %d to %d belong to no member that its directory lists, and other programs may read members there", from, to)
}

// Signatures and lengths of records, and what stands in a field for "see the zip64 record" (APPNOTE 4.3, 4.4.1.4).
const (
	signHeader     = "PK\x03\x04"
	signEntry      = "PK\x01\x02"
	signEnd        = "PK\x05\x06"
	signEnd64      = "PK\x06\x06"
	signLocator    = "PK\x06\x07"
	signDescriptor = "PK\x07\x08"

	lenHeader  = 30
	lenEntry   = 46
	lenEnd     = 22
	lenEnd64   = 56
	lenLocator = 20
	maxComment = 1<<16 - 1

	far16 = 1<<16 - 1
	far32 = 1<<32 - 1
)

// Bits of a member's flags (APPNOTE 4.4.4).
const (
	flagEncrypted  = 1 << 0
	flagDescriptor = 1 << 3
	flagUTF8       = 1 << 11
)

// Extra fields that say something that stands elsewhere as well (APPNOTE 4.5.3, 4.6.9).
const (
	extraZip64       = 0x0001
	extraUnicodePath = 0x7075
)

var le = binary.LittleEndian

// directory is where the list of members lies.
type directory struct{ at, size, count uint64 }

// findDirectory reads the end of the archive, which has to be where each way of looking for it finds it.
func findDirectory(r io.ReaderAt, size int64) (directory, error) {
	tail := make([]byte, min(size, lenEnd+maxComment))
	if _, err := io.ReadFull(io.NewSectionReader(r, size-int64(len(tail)), int64(len(tail))), tail); err != nil {
		return directory{}, err
	}
	i := bytes.LastIndex(tail[:max(0, len(tail)-lenEnd+len(signEnd))], []byte(signEnd))
	if i < 0 {
		return directory{}, zip.ErrFormat
	}
	end := tail[i:]
	if lenEnd+int(le.Uint16(end[20:])) != len(end) {
		return directory{}, errors.New("it does not end where its directory says: something follows it, or is cut off")
	}
	d := directory{at: uint64(le.Uint32(end[16:])), size: uint64(le.Uint32(end[12:])), count: uint64(le.Uint16(end[10:]))}
	if le.Uint16(end[8:]) != le.Uint16(end[10:]) {
		return d, errors.New("it is a part of an archive in several files")
	}
	endAt := uint64(size) - uint64(len(end))
	if err := d.wide(r, &endAt); err != nil {
		return d, err
	}
	if d.at > endAt || d.size != endAt-d.at {
		return d, errors.New("its directory is not where its end says: something stands before the archive, or is hidden in it")
	}
	return d, nil
}

// wide takes the numbers of the zip64 record, if there is one, which some programs always believe, and others only where the short ones do
// not suffice. Then endAt becomes where that record begins.
func (d *directory) wide(r io.ReaderAt, endAt *uint64) error {
	if *endAt < lenLocator+lenEnd64 {
		return nil
	}
	b := make([]byte, lenLocator+lenEnd64)
	if _, err := r.ReadAt(b, int64(*endAt)-int64(len(b))); err != nil {
		return err
	}
	record, locator := b[:lenEnd64], b[lenEnd64:]
	if string(locator[:4]) != signLocator {
		return nil
	}
	at := *endAt - uint64(len(b))
	wide := directory{at: le.Uint64(record[48:]), size: le.Uint64(record[40:]), count: le.Uint64(record[32:])}
	same := func(short, far, long uint64) bool { return short == far || short == long }
	if string(record[:4]) != signEnd64 || le.Uint64(locator[8:]) != at || le.Uint64(record[4:]) != lenEnd64-12 || le.Uint64(record[24:]) != wide.count ||
		!same(d.at, far32, wide.at) || !same(d.size, far32, wide.size) || !same(d.count, far16, wide.count) {
		return errors.New("it has two ends that do not say the same")
	}
	*d, *endAt = wide, at
	return nil
}

// member is a file as the directory lists it.
type member struct {
	*zip.File
	at uint64 // of its header
}

// members reads the directory, which has to be what z was made of.
func (d directory) members(z *zip.Reader, r io.ReaderAt) ([]member, error) {
	other := errors.New("its directory can be read in two ways")
	if d.count != uint64(len(z.File)) {
		return nil, other
	}
	in := bufio.NewReader(io.NewSectionReader(r, int64(d.at), int64(d.size)))
	head := make([]byte, lenEntry)
	all := make([]member, 0, len(z.File))
	for _, f := range z.File {
		if _, err := io.ReadFull(in, head); err != nil || string(head[:4]) != signEntry {
			return nil, other
		}
		name, extra := make([]byte, le.Uint16(head[28:])), make([]byte, le.Uint16(head[30:]))
		_, errName := io.ReadFull(in, name)
		_, errExtra := io.ReadFull(in, extra)
		_, errComment := in.Discard(int(le.Uint16(head[32:])))
		if errors.Join(errName, errExtra, errComment) != nil || string(name) != f.Name || le.Uint32(head[16:]) != f.CRC32 {
			return nil, other
		}
		at := uint64(le.Uint32(head[42:]))
		long, err := parseExtra(extra, f.Name)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", f.Name, err)
		}
		for _, short := range []uint32{le.Uint32(head[24:]), le.Uint32(head[20:])} { // the sizes, which z has
			if short == far32 && len(long) >= 8 {
				long = long[8:]
			}
		}
		if at == far32 && len(long) >= 8 {
			at = le.Uint64(long)
		}
		all = append(all, member{f, at})
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, other
	}
	return all, nil
}

// parseExtra returns the zip64 field, nil if there is none, and refuses fields that say another name.
func parseExtra(b []byte, name string) (long []byte, err error) {
	for len(b) >= 4 {
		tag, n := le.Uint16(b), int(le.Uint16(b[2:]))
		if b = b[4:]; n > len(b) {
			return nil, errors.New("its extra fields are damaged")
		}
		field := b[:n]
		b = b[n:]
		switch {
		case tag == extraZip64 && long != nil:
			return nil, errors.New("it has two sizes")
		case tag == extraZip64:
			long = field
		case tag == extraUnicodePath && (n < 5 || string(field[5:]) != name):
			return nil, errors.New("it has a second name")
		}
	}
	return long, nil
}

// check compares the member's own header with the directory. It returns where the member ends, which is to be next.
func (m member) check(r io.ReaderAt, next uint64) (uint64, error) {
	head := make([]byte, lenHeader, lenHeader+256)
	if err := m.read(r, head, m.at); err != nil {
		return 0, err
	}
	if string(head[:4]) != signHeader {
		return 0, errors.New("it has no header where the directory says")
	}
	n := int(le.Uint16(head[26:]))
	rest := make([]byte, n+int(le.Uint16(head[28:])))
	if err := m.read(r, rest, m.at+lenHeader); err != nil {
		return 0, err
	}
	long, err := parseExtra(rest[n:], m.Name)
	if err != nil {
		return 0, err
	}
	flags := le.Uint16(head[6:])
	const telling = flagEncrypted | flagUTF8
	if string(rest[:n]) != m.Name || le.Uint16(head[8:]) != m.Method || (flags^m.Flags)&telling != 0 || !m.sized(head, long, flags&flagDescriptor != 0) {
		return 0, errors.New("its own header says something else of it than the directory")
	}
	end := m.at + lenHeader + uint64(len(rest)) + m.CompressedSize64
	switch {
	case end < m.at || end > next:
		return 0, fmt.Errorf("its data overlaps what follows: it has %d bytes", m.CompressedSize64)
	case flags&flagDescriptor != 0:
		return m.descriptor(r, end, next)
	}
	return end, nil
}

func (m member) read(r io.ReaderAt, b []byte, at uint64) error {
	if n, err := r.ReadAt(b, int64(at)); n < len(b) {
		return fmt.Errorf("its header is cut off: %w", err)
	}
	return nil
}

// sized reports whether a header has the member's checksum and sizes. One with a descriptor, which stands behind the data, may leave them
// open.
func (m member) sized(head, long []byte, later bool) bool {
	size, packed := uint64(le.Uint32(head[22:])), uint64(le.Uint32(head[18:]))
	for _, v := range []*uint64{&size, &packed} {
		if *v == far32 && len(long) >= 8 {
			*v, long = le.Uint64(long), long[8:]
		}
	}
	is := func(v, want uint64) bool { return v == want || later && (v == 0 || v == far32) }
	return is(uint64(le.Uint32(head[14:])), uint64(m.CRC32)) && is(size, m.UncompressedSize64) && is(packed, m.CompressedSize64)
}

// descriptor reads what stands behind the data of a member: its checksum and sizes, of 4 or 8 bytes each, after a signature or without
// (APPNOTE 4.3.9). It fills the room that there is, so that nothing else can.
func (m member) descriptor(r io.ReaderAt, at, next uint64) (uint64, error) {
	const most = 24
	if n := next - at; n < 12 || n > most {
		return 0, errHidden(at, next)
	}
	b := make([]byte, next-at)
	if err := m.read(r, b, at); err != nil {
		return 0, err
	}
	fields := b
	if len(b)%8 == 0 { // 16 or 24 with the signature, 12 or 20 without
		if string(b[:4]) != signDescriptor {
			return 0, errHidden(at, next)
		}
		fields = b[4:]
	}
	var packed, size uint64
	switch len(fields) {
	case 12:
		packed, size = uint64(le.Uint32(fields[4:])), uint64(le.Uint32(fields[8:]))
	case 20:
		packed, size = le.Uint64(fields[4:]), le.Uint64(fields[12:])
	default:
		return 0, errHidden(at, next)
	}
	if le.Uint32(fields) != m.CRC32 || packed != m.CompressedSize64 || size != m.UncompressedSize64 {
		return 0, errors.New("what stands behind its data says something else of it than the directory")
	}
	return next, nil
}
