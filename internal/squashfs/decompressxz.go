package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz/lzma"

	"sconce.dev/sconce/internal/xz"
)

// expandXZ decompresses a stream of the .xz format, as mksquashfs writes them.
func expandXZ(dst, src []byte) (int, error) {
	const largest = 4 << 30 // what a header may say; memory follows what is decompressed
	r, err := xz.NewReader(bytes.NewReader(src), largest)
	if err == nil {
		var n int
		if n, err = readWhole(dst, r); err == nil {
			return n, nil
		}
	}
	var filter *xz.FilterError
	if errors.As(err, &filter) {
		err = fmt.Errorf("%w: unpack it with unsquashfs and pack it again with mksquashfs -comp zstd", err)
	}
	return 0, fmt.Errorf("xz: %w", err)
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

// expandLZMA decompresses the older .lzma format, which begins with properties, the size of the dictionary and that of the data.
func expandLZMA(dst, src []byte) (int, error) {
	const dictAt = 1
	if len(src) < lzma.HeaderLen {
		return 0, errors.New("lzma: too short")
	}
	var head [lzma.HeaderLen]byte
	copy(head[:], src)
	binary.LittleEndian.PutUint32(head[dictAt:], uint32(dictionary(dst)))
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
