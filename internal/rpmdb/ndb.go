package rpmdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The format has no specification; these are the structures of lib/backend/ndb/rpmpkg.c of RPM 4.17. Numbers are of 32 bits, the least
// significant byte first.
const (
	ndbMagic     = "RpmP" // begins the file: magic, version, generation, pages of slots, and 16 bytes more
	ndbSlotMagic = "Slot" // of 16 bytes: magic, number of the package (0: free), first block, blocks
	ndbBlobMagic = "BlbS" // before a header: magic, number of the package, generation, bytes

	ndbHeader = 32
	ndbSlot   = 16
	ndbBlock  = 16
	ndbPage   = 4096
)

var errNDB = errors.New("its ndb database is damaged")

// readNDB calls add with the header of each package.
func readNDB(r io.ReaderAt, size int64, add func([]byte) error) error {
	head := make([]byte, ndbHeader)
	if _, err := r.ReadAt(head, 0); err != nil {
		return errNDB
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v != 0 {
		return fmt.Errorf("it is version %d of ndb, and 0 is read", v)
	}
	end := int64(binary.LittleEndian.Uint32(head[12:])) * ndbPage
	if end > size {
		return errNDB
	}
	slots := make([]byte, ndbPage)
	for at := int64(ndbHeader); at < end; at += int64(len(slots)) {
		slots = slots[:min(ndbPage, end-at)]
		if _, err := r.ReadAt(slots, at); err != nil {
			return errNDB
		}
		for s := slots; len(s) >= ndbSlot; s = s[ndbSlot:] {
			if string(s[:4]) != ndbSlotMagic {
				return errNDB
			}
			number, block := binary.LittleEndian.Uint32(s[4:]), binary.LittleEndian.Uint32(s[8:])
			if number == 0 {
				continue
			}
			header, err := ndbBlob(r, int64(block)*ndbBlock, number)
			if err == nil {
				err = add(header)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ndbBlob reads the header of the package of a number.
func ndbBlob(r io.ReaderAt, at int64, number uint32) ([]byte, error) {
	head := make([]byte, ndbBlock)
	if _, err := r.ReadAt(head, at); err != nil {
		return nil, errNDB
	}
	length := binary.LittleEndian.Uint32(head[12:])
	if string(head[:4]) != ndbBlobMagic || binary.LittleEndian.Uint32(head[4:]) != number {
		return nil, errNDB
	}
	return readPart(r, at+ndbBlock, int64(length), errNDB)
}

// readPart reads size bytes at an offset. Its memory grows with what is really there.
func readPart(r io.ReaderAt, at, size int64, damaged error) ([]byte, error) {
	if size > maxHeader {
		return nil, damaged
	}
	data, err := io.ReadAll(io.NewSectionReader(r, at, size))
	if err != nil || int64(len(data)) < size {
		return nil, damaged
	}
	return data, nil
}
