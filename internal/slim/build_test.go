package slim

import (
	"bytes"
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fatbin"
)

// entrySpec describes an entry of a region that a test makes.
type entrySpec struct {
	kind    fatbin.Kind
	sm      int
	flags   fatbin.Flags // Flag64Bit and FlagLinux are added
	size    int          // bytes of the payload, a multiple of 8; 64 when 0
	ident   string
	options string
	parts   []entrySpec
}

const flagsAlways = fatbin.Flag64Bit | fatbin.FlagLinux

// The entries that most tests use.
func sass(sm int) entrySpec { return entrySpec{kind: fatbin.ELFImage, sm: sm, flags: fatbin.FlagZstd} }
func ptx(sm int) entrySpec  { return entrySpec{kind: fatbin.PTX, sm: sm, flags: fatbin.FlagZstd} }
func lto(sm int) entrySpec  { return entrySpec{kind: fatbin.LTOIR, sm: sm, flags: fatbin.FlagZstd} }

func relPTX(sm int) entrySpec {
	return entrySpec{kind: fatbin.RelocatablePTX, sm: sm, flags: fatbin.FlagZstd}
}

func (s entrySpec) with(flags fatbin.Flags) entrySpec { s.flags |= flags; return s }
func (s entrySpec) stored() entrySpec                 { s.flags &^= fatbin.FlagZstd; return s }
func (s entrySpec) sized(n int) entrySpec             { s.size = n; return s }
func (s entrySpec) named(ident, options string) entrySpec {
	s.ident, s.options = ident, options
	return s
}

func concatenated(parts ...entrySpec) entrySpec {
	return entrySpec{kind: fatbin.Concatenated, flags: fatbin.FlagZstd, parts: parts}
}

// header gives the header of an entry or, without its packed payload, of a part.
func (s entrySpec) header(part bool) []byte {
	h := make([]byte, entryHeaderSize)
	le.PutUint16(h, uint16(s.kind))
	le.PutUint16(h[2:], 0x0101)
	le.PutUint64(h[8:], uint64(s.payloadSize()))
	le.PutUint16(h[24:], 7)
	le.PutUint16(h[26:], 1)
	le.PutUint32(h[28:], uint32(s.sm))
	le.PutUint64(h[40:], uint64(s.flags|flagsAlways))
	if s.flags&fatbin.FlagZstd != 0 && !part {
		le.PutUint32(h[16:], uint32(s.payloadSize()-3))
		le.PutUint64(h[56:], 4096)
	}
	if s.ident != "" {
		le.PutUint32(h[32:], uint32(len(h)))
		le.PutUint32(h[36:], uint32(len(s.ident)))
		h = padded(append(h, s.ident+"\x00"...))
	}
	if s.options != "" {
		le.PutUint32(h[20:], uint32(len(h)))
		h = le.AppendUint32(h, uint32(len(h)+8))
		h = le.AppendUint32(h, uint32(len(s.options)))
		h = padded(append(h, s.options+"\x00"...))
	}
	if s.parts != nil {
		le.PutUint32(h[20:], uint32(len(h)))
		h = append(h, s.list()...)
	}
	le.PutUint32(h[4:], uint32(len(h)))
	return h
}

// list gives the list of the parts of a concatenated entry.
func (s entrySpec) list() []byte {
	var heads []byte
	for i, p := range s.parts {
		p.flags &^= fatbin.FlagZstd
		h := p.header(true)
		le.PutUint32(h[4:], uint32(i*64)) // the place of the part
		heads = append(heads, h...)
	}
	b := le.AppendUint32(nil, uint32(len(s.parts)))
	b = le.AppendUint32(b, uint32(8+len(heads)))
	return append(b, heads...)
}

func (s entrySpec) payloadSize() int {
	if s.size == 0 {
		return 64
	}
	return s.size
}

func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }

// regionOf makes a region. Each payload is full of bytes that no other has.
func regionOf(entries ...entrySpec) []byte {
	var body []byte
	for i, e := range entries {
		body = append(body, e.header(false)...)
		body = append(body, bytes.Repeat([]byte{byte(0x80 + i)}, e.payloadSize())...)
	}
	b := []byte{0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0}
	return append(le.AppendUint64(b, uint64(len(body))), body...)
}

// library is a shared object that a test makes.
type library struct {
	executable  [][]byte // regions
	relocatable [][]byte
	versions    []int // of the wrappers, of the regions in this order; 0 for none
	kind        uint16
	names       []string // of more sections, each of 32 bytes
}

// bytes gives the file: one segment that holds all of it, at address 0.
func (l library) bytes() []byte {
	b := make([]byte, elfHeaderSize+segmentHeaderSize)
	type section struct {
		name      string
		off, size int
	}
	sections := []section{{}}
	var starts []int
	place := func(name string, parts [][]byte) {
		b = padded(b)
		off := len(b)
		for _, p := range parts {
			starts = append(starts, len(b))
			b = append(b, p...)
		}
		if len(parts) > 0 {
			sections = append(sections, section{name, off, len(b) - off})
		}
	}
	place(".nv_fatbin", l.executable)
	place("__nv_relfatbin", l.relocatable)
	var wrappers []byte
	for i, version := range l.versions {
		if version != 0 {
			wrappers = le.AppendUint32(wrappers, 0x466243B1)
			wrappers = le.AppendUint32(wrappers, uint32(version))
			wrappers = le.AppendUint64(wrappers, uint64(starts[i]))
			wrappers = le.AppendUint64(wrappers, 0)
		}
	}
	place(".nvFatBinSegment", slices.DeleteFunc([][]byte{wrappers}, func(b []byte) bool { return len(b) == 0 }))
	for _, name := range l.names {
		place(name, [][]byte{make([]byte, 32)})
	}
	names := []byte{0}
	var table []byte
	sections = append(sections, section{name: ".shstrtab", off: len(b)})
	for i, s := range sections {
		head := make([]byte, sectionHeaderSize)
		if i > 0 {
			le.PutUint32(head, uint32(len(names)))
			le.PutUint32(head[4:], 1) // SHT_PROGBITS
			le.PutUint64(head[8:], 2) // SHF_ALLOC
			le.PutUint64(head[16:], uint64(s.off))
			le.PutUint64(head[24:], uint64(s.off))
			names = append(names, s.name+"\x00"...)
		}
		if i == len(sections)-1 {
			s.size = len(names)
			le.PutUint32(head[4:], 3) // SHT_STRTAB
		}
		le.PutUint64(head[32:], uint64(s.size))
		table = append(table, head...)
	}
	b = padded(append(b, names...))
	l.fillHead(b, len(b), len(sections))
	return append(b, table...)
}

func (l library) fillHead(b []byte, sections, count int) {
	copy(b, "\x7fELF\x02\x01\x01")
	kind := l.kind
	if kind == 0 {
		kind = 3 // ET_DYN
	}
	for off, v := range map[int]uint16{16: kind, 18: 62, 52: 64, 54: 56, 56: 1, 58: 64, 60: uint16(count), 62: uint16(count - 1)} {
		le.PutUint16(b[off:], v)
	}
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[32:], elfHeaderSize)
	le.PutUint64(b[40:], uint64(sections))
	p := b[elfHeaderSize:]
	le.PutUint32(p, 1) // PT_LOAD
	le.PutUint32(p[4:], 4)
	le.PutUint64(p[32:], uint64(sections))
	le.PutUint64(p[40:], uint64(sections))
	le.PutUint64(p[48:], 4096)
}

// describe lists the entries of a file, the regions apart.
func describe(f *fatbin.File) string {
	var out []byte
	for i := range f.Regions {
		if i > 0 {
			out = append(out, " | "...)
		}
		for j := range f.Regions[i].Entries {
			if j > 0 {
				out = append(out, ' ')
			}
			out = append(out, name(&f.Regions[i].Entries[j])...)
		}
	}
	return string(out)
}

func name(e *fatbin.Entry) string {
	if e.Kind != fatbin.Concatenated {
		return fmt.Sprintf("%v:%d%s", e.Kind, e.Arch.SM, e.Arch.Variant)
	}
	out := "("
	for i := range e.Parts {
		if i > 0 {
			out += " "
		}
		out += name(&e.Parts[i])
	}
	return out + ")"
}
