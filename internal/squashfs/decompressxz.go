package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// expandXZ decompresses a stream of the .xz format, version 1.2, with one block. mksquashfs writes those.
func expandXZ(dst, src []byte) (int, error) {
	n, err := unxz(dst, src)
	if err != nil {
		return 0, fmt.Errorf("xz: %w", err)
	}
	return n, nil
}

func unxz(dst, src []byte) (int, error) {
	check, rest, err := parseXZStream(src)
	if err != nil {
		return 0, err
	}
	head, rest, err := cutXZHead(rest)
	if err != nil {
		return 0, err
	}
	if err := checkXZFilters(head); err != nil {
		return 0, err
	}
	in := bytes.NewReader(rest)
	d, err := lzma.Reader2Config{DictCap: dictionary(dst)}.NewReader2(in)
	if err != nil {
		return 0, err
	}
	n, err := readWhole(dst, d)
	if err != nil {
		return 0, err
	}
	used := len(rest) - in.Len()
	padding := -used & 3
	return n, checkXZSum(check, dst[:n], rest[min(used+padding, len(rest)):])
}

// dictionary is how large an LZMA decoder's dictionary has to be for what is decompressed into dst, in bytes: no stream refers to
// anything before its beginning, whatever its header says.
func dictionary(dst []byte) int { return max(len(dst), lzma.MinDictCap) }

// readWhole reads what r has into dst.
func readWhole(dst []byte, r io.Reader) (int, error) {
	n, err := io.ReadFull(r, dst)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n < len(dst):
		return n, nil
	case err != nil:
		return 0, err
	}
	var one [1]byte
	switch n, err := io.ReadFull(r, one[:]); {
	case n > 0:
		return 0, errTooLong
	case !errors.Is(err, io.EOF):
		return 0, err
	}
	return n, nil
}

// The checks that a .xz stream may have of what it decompresses to (section 2.1.1.2).
const (
	xzNone   = 0
	xzCRC32  = 1
	xzCRC64  = 4
	xzSHA256 = 10
)

var errXZ = errors.New("not a valid stream")

// parseXZStream parses the header of a stream (section 2.1.1) and returns its kind of check.
func parseXZStream(src []byte) (check byte, rest []byte, err error) {
	const magic = "\xfd7zXZ\x00"
	if len(src) < 12 || string(src[:6]) != magic || src[6] != 0 || !validCRC(src[6:8], src[8:12]) {
		return 0, nil, errXZ
	}
	return src[7], src[12:], nil
}

func validCRC(b, sum []byte) bool { return crc32.ChecksumIEEE(b) == binary.LittleEndian.Uint32(sum) }

// cutXZHead takes the header of a block (section 3.1) from a stream.
func cutXZHead(src []byte) (head, rest []byte, err error) {
	if len(src) == 0 || src[0] == 0 {
		return nil, nil, errXZ
	}
	n := (int(src[0]) + 1) * 4
	if n > len(src) || !validCRC(src[:n-4], src[n-4:n]) {
		return nil, nil, errXZ
	}
	return src[1 : n-4], src[n:], nil
}

// xzFilters are the names of the filters that change machine code so that it compresses better (section 5.3.2).
var xzFilters = map[uint64]string{
	3: "delta", 4: "x86", 5: "powerpc", 6: "ia64", 7: "arm", 8: "armthumb", 9: "sparc", 10: "arm64", 11: "riscv",
}

// checkXZFilters accepts a block that is compressed with LZMA2 and nothing else.
func checkXZFilters(head []byte) error {
	const lzma2, hasPackedSize, hasSize, reserved = 0x21, 0x40, 0x80, 0x3c
	flags, head := head[0], head[1:]
	if flags&reserved != 0 {
		return errXZ
	}
	for _, flag := range []byte{hasPackedSize, hasSize} {
		if flags&flag == 0 {
			continue
		}
		_, n := binary.Uvarint(head)
		if n <= 0 {
			return errXZ
		}
		head = head[n:]
	}
	filter, n := binary.Uvarint(head)
	if n <= 0 {
		return errXZ
	}
	if flags&3 == 0 && filter == lzma2 {
		return nil
	}
	name, ok := xzFilters[filter]
	if !ok {
		name = fmt.Sprintf("%#x", filter)
	}
	return fmt.Errorf("the filter %s is %w: unpack it with unsquashfs and pack it again with mksquashfs -comp zstd",
		name, errors.ErrUnsupported)
}

// checkXZSum compares data with the check that follows its block.
func checkXZSum(check byte, data, rest []byte) error {
	good := true
	switch check {
	case xzNone, xzSHA256: // the latter nobody writes; the structure was checked
	case xzCRC32:
		good = len(rest) >= 4 && validCRC(data, rest[:4])
	case xzCRC64:
		good = len(rest) >= 8 && crc64.Checksum(data, crc64.MakeTable(crc64.ECMA)) == binary.LittleEndian.Uint64(rest)
	default:
		return errXZ
	}
	if !good {
		return errors.New("wrong checksum")
	}
	return nil
}

// expandLZMA decompresses the older .lzma format, which begins with properties, the size of the dictionary and that of the data.
func expandLZMA(dst, src []byte) (int, error) {
	const dictAt = 1
	if len(src) < lzma.HeaderLen {
		return 0, errors.New("lzma: too short")
	}
	var head [lzma.HeaderLen]byte
	copy(head[:], src)
	binary.LittleEndian.PutUint32(head[dictAt:], uint32(dictionary(dst))) //nolint:gosec // at most a block
	in := io.MultiReader(bytes.NewReader(head[:]), bytes.NewReader(src[len(head):]))
	d, err := lzma.NewReader(in)
	if err == nil {
		var n int
		if n, err = readWhole(dst, d); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("lzma: %w", err)
}
