package rpmdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Tags of a header (https://rpm-software-management.github.io/rpm/manual/tags.html).
const (
	tagName    = 1000
	tagVersion = 1001
	tagRelease = 1002
	tagEpoch   = 1003
	tagLicense = 1014
	tagArch    = 1022
	tagSource  = 1044
	tagModule  = 5096
)

// Types of values (https://rpm-software-management.github.io/rpm/manual/format_header.html).
const (
	typeChar        = 1
	typeInt8        = 2
	typeInt16       = 3
	typeInt32       = 4
	typeInt64       = 5
	typeString      = 6
	typeBinary      = 7
	typeStringArray = 8
	typeI18NString  = 9
)

// IntroSize is how many bytes say how large a header is: how many entries there are, and how many bytes of values.
const IntroSize = 8

const entrySize = 16 // bytes: tag, type, offset and count, of 32 bits each, the most significant first

var errHeader = errors.New("its header is damaged")

// Header is what package files and databases say of a package: values under tags. It shares the memory that it was read from.
type Header struct {
	entries, values []byte
}

// HeaderSize returns how many bytes a header has in all, by the first [IntroSize] of them.
func HeaderSize(intro []byte) uint64 {
	return IntroSize + uint64(binary.BigEndian.Uint32(intro))*entrySize + uint64(binary.BigEndian.Uint32(intro[4:]))
}

// ParseHeader reads a header as databases keep it: how many entries there are, how many bytes of values, the entries, the values.
func ParseHeader(data []byte) (Header, error) {
	if len(data) < IntroSize || HeaderSize(data) > uint64(len(data)) {
		return Header{}, errHeader
	}
	end := HeaderSize(data)
	values := end - uint64(binary.BigEndian.Uint32(data[4:]))
	return Header{entries: data[IntroSize:values], values: data[values:end]}, nil
}

// value is what an entry points to.
type value struct {
	kind, count uint32
	data        []byte // from its first byte to the end of all values
}

// find returns the value of a tag. The bool is false if the header has none. Offsets of tags that nobody asks for may count from
// elsewhere, as that of the entry which stands for a region does.
func (h Header) find(tag uint32) (value, bool, error) {
	for e := h.entries; len(e) > 0; e = e[entrySize:] {
		if binary.BigEndian.Uint32(e) != tag {
			continue
		}
		at := binary.BigEndian.Uint32(e[8:])
		if uint64(at) > uint64(len(h.values)) {
			return value{}, false, errHeader
		}
		return value{binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[12:]), h.values[at:]}, true, nil
	}
	return value{}, false, nil
}

// String returns a text, of one in several languages the first, and "" if there is none.
func (h Header) String(tag uint32) (string, error) {
	v, ok, err := h.find(tag)
	if err != nil || !ok || v.kind != typeString && v.kind != typeI18NString {
		return "", err
	}
	text, _, ok := bytes.Cut(v.data, []byte{0})
	if !ok {
		return "", errHeader
	}
	return string(text), nil
}

// Strings returns texts, nil if there are none.
func (h Header) Strings(tag uint32) ([]string, error) {
	v, ok, err := h.find(tag)
	if err != nil || !ok || v.kind != typeStringArray && v.kind != typeI18NString && v.kind != typeString {
		return nil, err
	}
	if uint64(v.count) > uint64(len(v.data)) { // each has at least its end
		return nil, errHeader
	}
	all := make([]string, v.count)
	for i := range all {
		text, rest, ok := bytes.Cut(v.data, []byte{0})
		if !ok {
			return nil, errHeader
		}
		all[i], v.data = string(text), rest
	}
	return all, nil
}

// widths are the bytes of numbers.
var widths = map[uint32]int{typeChar: 1, typeInt8: 1, typeInt16: 2, typeInt32: 4, typeInt64: 8}

// Ints returns numbers of whatever width, nil if there are none.
func (h Header) Ints(tag uint32) ([]uint64, error) {
	v, ok, err := h.find(tag)
	width := widths[v.kind]
	if err != nil || !ok || width == 0 {
		return nil, err
	}
	if uint64(v.count)*uint64(width) > uint64(len(v.data)) {
		return nil, errHeader
	}
	all := make([]uint64, v.count)
	for i := range all {
		for _, b := range v.data[i*width : (i+1)*width] {
			all[i] = all[i]<<8 | uint64(b)
		}
	}
	return all, nil
}

// Bytes returns bytes without a meaning here, nil if there are none.
func (h Header) Bytes(tag uint32) ([]byte, error) {
	v, ok, err := h.find(tag)
	if err != nil || !ok || v.kind != typeBinary {
		return nil, err
	}
	if uint64(v.count) > uint64(len(v.data)) {
		return nil, errHeader
	}
	return v.data[:v.count], nil
}

// SetInts32 overwrites numbers of 32 bits, where the header has a tag, in the memory that it was read from.
func (h Header) SetInts32(tag, n uint32) error {
	v, ok, err := h.find(tag)
	if err != nil || !ok || v.kind != typeInt32 {
		return err
	}
	if uint64(v.count)*4 > uint64(len(v.data)) {
		return errHeader
	}
	for i := range v.count {
		binary.BigEndian.PutUint32(v.data[4*i:], n)
	}
	return nil
}

// Package returns which package the header is of.
func (h Header) Package() (Package, error) {
	var p Package
	for tag, text := range map[uint32]*string{
		tagName: &p.Name, tagVersion: &p.Version, tagRelease: &p.Release, tagLicense: &p.License, tagArch: &p.Arch, tagSource: &p.Source, tagModule: &p.Module,
	} {
		var err error
		if *text, err = h.String(tag); err != nil {
			return p, err
		}
	}
	epoch, err := h.Ints(tagEpoch)
	if err != nil {
		return p, err
	}
	if len(epoch) > 0 {
		p.Epoch = fmt.Sprint(epoch[0])
	}
	if p.Name == "" || p.Version == "" {
		return p, errHeader
	}
	return p, nil
}

func parseHeader(data []byte) (Package, error) {
	h, err := ParseHeader(data)
	if err != nil {
		return Package{}, err
	}
	return h.Package()
}
