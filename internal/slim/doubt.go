package slim

import (
	"bytes"
	"cmp"
	"debug/elf"
	"io"
	"math"
	"slices"
	"sort"
	"strings"

	"sconce.dev/sconce/internal/fatbin"
)

// doubt gives the first reason to leave a file alone.
func doubt(r io.ReaderAt, size int64, f *fatbin.File) error {
	switch {
	case len(f.Problems) > 0:
		return doubtf("it is damaged, or of a format that is not known: %v", f.Problems[0])
	case f.Format == fatbin.Archive:
		return doubtf("a static archive is input of links, which may be for any GPU")
	case f.Format == fatbin.ELF && !f.Linked:
		return doubtf("an object file is input of links, which may be for any GPU")
	case len(f.Regions) == 0:
		return doubtf("its code is for GPUs of AMD")
	}
	for _, w := range f.Wrappers {
		if w.Region < 0 {
			return doubtf("the wrapper at byte %d names no region of the sections for GPU code", w.Offset)
		}
	}
	for i := range f.Regions {
		if err := doubtRegion(&f.Regions[i]); err != nil {
			return err
		}
	}
	regions := slices.SortedFunc(slices.Values(f.Regions), byOffset)
	for i := 1; i < len(regions); i++ {
		if regions[i].Offset < regions[i-1].Offset+regions[i-1].Size {
			return doubtf("two regions share the bytes at %d", regions[i].Offset)
		}
	}
	if f.Format != fatbin.ELF {
		return nil
	}
	return doubtELF(r, size, regions)
}

func byOffset(a, b fatbin.Region) int { return cmp.Compare(a.Offset, b.Offset) }

func doubtRegion(r *fatbin.Region) error {
	switch {
	case r.Headerless:
		return nil
	case r.Offset%8 != 0:
		return doubtf("the region at byte %d does not begin at a multiple of 8", r.Offset)
	case r.Size > math.MaxInt32: // programs may keep the size of a header, which may grow to nearly all of it, with a sign
		return doubtf("the region at byte %d has 2 GiB or more", r.Offset)
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.HeaderSize%8 != 0 {
			return doubtf("the header at byte %d has %d bytes, which is no multiple of 8", e.Offset, e.HeaderSize)
		}
		if e.Compression == fatbin.UnknownPack {
			return doubtf("the image at byte %d is compressed in a way that is not known", e.Offset)
		}
	}
	return nil
}

// doubtELF looks for signatures, and for parts of an ELF file that share bytes with its regions, which are sorted.
func doubtELF(r io.ReaderAt, size int64, regions []fatbin.Region) error {
	file, err := elf.NewFile(r)
	if err != nil {
		return doubtf("its ELF headers are not sound: %v", err)
	}
	head, err := readBytes(r, 0, elfHeaderSize)
	if err != nil {
		return err
	}
	taken := []span{
		{"the ELF header", 0, elfHeaderSize},
		{"the table of program headers", le.Uint64(head[32:]), segmentHeaderSize * uint64(len(file.Progs))},
		{"the table of section headers", le.Uint64(head[40:]), sectionHeaderSize * uint64(len(file.Sections))},
	}
	holds := map[string]bool{}
	for i := range regions {
		holds[regions[i].Section] = true
	}
	for _, s := range file.Sections {
		if strings.Contains(s.Name, "signature") || s.Name == ".sig" {
			return doubtf("it is signed (section %s)", s.Name)
		}
		if s.Type != elf.SHT_NOBITS && s.Type != elf.SHT_NULL && !holds[s.Name] {
			taken = append(taken, span{"the section " + s.Name, s.Offset, s.FileSize})
		}
	}
	for _, s := range taken {
		if err := s.doubt(uint64(size), regions); err != nil {
			return err
		}
	}
	return doubtTail(r, size)
}

// Sizes of ELF, in bytes.
const (
	elfHeaderSize     = 64
	segmentHeaderSize = 56
	sectionHeaderSize = 64
)

// span is a part of a file, in bytes.
type span struct {
	name      string
	off, size uint64
}

// doubt looks for bytes of the regions, which are sorted, that are also in the span.
func (s span) doubt(size uint64, regions []fatbin.Region) error {
	if s.off > size || s.size > size-s.off {
		return doubtf("%s goes beyond the end of the file", s.name)
	}
	if s.size == 0 {
		return nil
	}
	off, end := int64(s.off), int64(s.off+s.size)
	i := sort.Search(len(regions), func(i int) bool { return regions[i].Offset+regions[i].Size > off })
	if i < len(regions) && regions[i].Offset < end {
		return doubtf("%s shares bytes with the region at byte %d", s.name, regions[i].Offset)
	}
	return nil
}

// appendedSignature ends files that the kernel's scripts/sign-file signed.
const appendedSignature = "~Module signature appended~\n"

func doubtTail(r io.ReaderAt, size int64) error {
	n := min(size, int64(len(appendedSignature)))
	tail, err := readBytes(r, size-n, n)
	if err == nil && bytes.Equal(tail, []byte(appendedSignature)) {
		err = doubtf("it is signed (at its end)")
	}
	return err
}
