package rpmdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Tags of a header, and types of their values (https://rpm-software-management.github.io/rpm/manual/tags.html, format_header.html).
const (
	tagName    = 1000
	tagVersion = 1001
	tagRelease = 1002
	tagEpoch   = 1003
	tagLicense = 1014
	tagArch    = 1022
	tagSource  = 1044
	tagModule  = 5096

	typeInt32      = 4
	typeString     = 6
	typeI18NString = 9
)

const entrySize = 16 // bytes: tag, type, offset and count, of 32 bits each, the most significant first

var errHeader = errors.New("its header is damaged")

// parseHeader reads a header as databases keep it: how many entries there are, how many bytes of values, the entries, the values.
func parseHeader(data []byte) (Package, error) {
	var p Package
	if len(data) < 8 {
		return p, errHeader
	}
	entries, size := uint64(binary.BigEndian.Uint32(data)), uint64(binary.BigEndian.Uint32(data[4:]))
	if 8+entries*entrySize+size > uint64(len(data)) {
		return p, errHeader
	}
	values := data[8+entries*entrySize:][:size]
	texts := map[uint32]*string{
		tagName: &p.Name, tagVersion: &p.Version, tagRelease: &p.Release, tagLicense: &p.License, tagArch: &p.Arch, tagSource: &p.Source, tagModule: &p.Module,
	}
	for i := range entries {
		entry := data[8+i*entrySize:]
		tag, kind, at := binary.BigEndian.Uint32(entry), binary.BigEndian.Uint32(entry[4:]), uint64(binary.BigEndian.Uint32(entry[8:]))
		switch into, wanted := texts[tag]; {
		case at > size:
			if wanted || tag == tagEpoch { // others count from elsewhere: the entry that stands for a region
				return p, errHeader
			}
		case wanted && (kind == typeString || kind == typeI18NString):
			text, _, ok := bytes.Cut(values[at:], []byte{0})
			if !ok {
				return p, errHeader
			}
			*into = string(text)
		case tag == tagEpoch && kind == typeInt32:
			if at+4 > size {
				return p, errHeader
			}
			p.Epoch = fmt.Sprint(binary.BigEndian.Uint32(values[at:]))
		}
	}
	if p.Name == "" || p.Version == "" {
		return p, errHeader
	}
	return p, nil
}
