package fatbin

import (
	"bytes"
	"strconv"
)

const (
	typeExecutable = 2 // ET_EXEC
	toolNote       = ".note.nv.tkinfo"
	maxNote        = 4 << 10 // bytes

	// flagAccelerators is EF_CUDA_ACCELERATORS, the "a" of sm_90a. The same bit had another meaning (EF_CUDA_SW_1729687)
	// on GPUs before those of which there are variants.
	flagAccelerators = 0x800
	firstVariant     = 90
)

// cubinHeader is what a cubin's own header says.
type cubinHeader struct {
	abi    int // EI_ABIVERSION
	arch   Arch
	phoff  uint64
	phnum  int64
	shoff  uint64
	shnum  int64
	linked bool // not relocatable
}

// decodeCubin reads the ELF header of a cubin. The flags are those of LLVM's BinaryFormat/ELF.h, EF_CUDA_*.
func decodeCubin(head []byte) (cubinHeader, bool) {
	if !isELF(head) || le.Uint16(head[18:]) != machineCUDA {
		return cubinHeader{}, false
	}
	flags := le.Uint32(head[48:])
	h := cubinHeader{
		abi: int(head[8]), phoff: le.Uint64(head[32:]), shoff: le.Uint64(head[40:]),
		phnum: int64(le.Uint16(head[56:])), shnum: int64(le.Uint16(head[60:])),
	}
	switch head[7] {
	case abiCUDA7:
		h.arch.SM = int(flags & 0xFF)
		if flags&flagAccelerators != 0 && h.arch.SM >= firstVariant {
			h.arch.Variant = "a"
		}
	case abiCUDA8: // has no flag for the variant
		h.arch.SM = int(flags >> 8 & 0xFF)
	default:
		return cubinHeader{}, false
	}
	kind := le.Uint16(head[16:])
	h.linked = kind == typeExecutable
	return h, h.linked || kind == typeRelocatable
}

// bareCubin reads a file, or a member of an archive, that is a cubin.
func (s *scanner) bareCubin(start, end int64) error {
	e, err := s.cubin(start, end)
	if err != nil {
		return s.note(err)
	}
	return s.add(Region{Place: Bare, Offset: start, Size: e.PaddedSize, Headerless: true, Entries: []Entry{e}})
}

// cubin reads the cubin at start, which has to end by end, as an entry without a header.
func (s *scanner) cubin(start, end int64) (Entry, error) {
	head, err := s.head(start, end)
	if err != nil {
		return Entry{}, err
	}
	h, is := decodeCubin(head)
	if !is {
		return Entry{}, badf(start, "an ELF file of the kind or version of no cubin")
	}
	o, err := s.openELF(start, end)
	if err != nil {
		return Entry{}, err
	}
	if len(o.sections) == 0 {
		return Entry{}, badf(start, "a cubin without sections")
	}
	if h.arch.Variant == "" {
		if h.arch.Variant, err = s.toolVariant(o, h.arch.SM); err != nil {
			return Entry{}, err
		}
	}
	size := o.extent(h)
	return Entry{
		Kind: ELFImage, Arch: h.arch, Major: 1, Minor: h.abi, Flags: Flag64Bit, Compression: Stored,
		Offset: start, PaddedSize: size, PayloadSize: size, UncompressedSize: size,
	}, nil
}

// extent is where the last of an ELF file's tables and sections ends, in bytes from its start.
func (o *object) extent(h cubinHeader) int64 {
	end := o.start + max(int64(h.shoff)+h.shnum*sectionHeaderSize, int64(h.phoff)+h.phnum*segmentHeaderSize)
	for _, sec := range o.sections {
		end = max(end, sec.off+sec.size)
	}
	return end - o.start
}

// toolVariant reads the variant from the note in which the tools keep their command line, "-arch sm_90a -m 64".
func (s *scanner) toolVariant(o *object, sm int) (string, error) {
	for _, sec := range o.sections {
		if sec.name != toolNote || sec.size == 0 {
			continue
		}
		note, err := s.bytes(sec.off, min(sec.size, maxNote))
		if err != nil {
			return "", err
		}
		_, rest, _ := bytes.Cut(note, []byte("-arch sm_"+strconv.Itoa(sm)))
		if len(rest) > 0 && (rest[0] == 'a' || rest[0] == 'f') {
			return string(rest[:1]), nil
		}
	}
	return "", nil
}
