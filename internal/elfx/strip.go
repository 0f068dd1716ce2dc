package elfx

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Strip finds what can be taken out of an ELF program or shared library of size bytes without any change for those who
// run it, load it or link against it: the symbol table for debuggers (.symtab, not .dynsym) and DWARF, as binutils'
// strip --strip-unneeded does. It reads headers only.
//
// All that is loaded stays as it is and where it is: every byte up to the end of the last segment and the last allocated
// section, but for three fields of the ELF header that say where the table of sections is. What follows, sections that no
// program sees, is laid down again without those that go.
//
// In a file to which patchelf has appended what is loaded, nothing moves. What goes becomes zeros, which take next to nothing
// in a compressed layer or a squashfs, and its headers those of no section. The size stays, but for a new table of sections
// when the old one is itself loaded.
//
// Of a file that is in any way unlike what linkers write, nothing is taken: the error is then a [KeptError]. Errors also
// wrap [ErrNotELF], [ErrFormat] and what r returned.
func Strip(r io.ReaderAt, size int64) (*Stripped, error) {
	s := &stripper{r: r, size: size}
	for _, step := range []func() error{s.readHeader, s.readTables, s.readNames, s.findEnd, s.choose, s.checkRest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	out := s.lay()
	if out.Size-out.Zeroed >= size {
		return nil, keptf("nothing can be stripped")
	}
	return out, s.prove(out)
}

// KeptError is why nothing is taken out of a file.
type KeptError struct{ Reason string }

func (e *KeptError) Error() string { return e.Reason }

func keptf(format string, args ...any) error { return &KeptError{fmt.Sprintf(format, args...)} }

// Stripped is a file without what [Strip] takes out of it.
type Stripped struct {
	Size    int64    // bytes
	Zeroed  int64    // bytes that became zeros
	Removed []string // names of sections, in their order

	pieces []piece
}

// piece is a part of the stripped file: bytes of the old one, or new ones.
type piece struct {
	from, size int64
	data       []byte // instead of old bytes
	zeros      bool   // instead of old bytes
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// Reader gives the stripped file, made of the old one, which is read from its start and not to its end.
func (s *Stripped) Reader(old io.Reader) io.Reader {
	parts := make([]io.Reader, 0, len(s.pieces))
	at := int64(0)
	for _, p := range s.pieces {
		switch {
		case p.zeros:
			parts = append(parts, io.LimitReader(zeros{}, p.size))
			continue
		case p.data != nil:
			parts = append(parts, bytes.NewReader(p.data))
			continue
		}
		parts = append(parts, &passage{r: old, skip: p.from - at, left: p.size})
		at = p.from + p.size
	}
	return io.MultiReader(parts...)
}

// passage reads some bytes after skipping others.
type passage struct {
	r          io.Reader
	skip, left int64
}

func (p *passage) Read(b []byte) (int, error) {
	if p.skip > 0 {
		if _, err := io.CopyN(io.Discard, p.r, p.skip); err != nil {
			return 0, unexpectedEnd(err)
		}
		p.skip = 0
	}
	if p.left == 0 {
		return 0, io.EOF
	}
	n, err := p.r.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(n)
	if p.left > 0 {
		err = unexpectedEnd(err)
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReaderAt gives the stripped file, made of the old one.
func (s *Stripped) ReaderAt(old io.ReaderAt) io.ReaderAt { return strippedAt{s, old} }

type strippedAt struct {
	s   *Stripped
	old io.ReaderAt
}

func (r strippedAt) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	total, start := 0, int64(0)
	for _, p := range r.s.pieces {
		n := p.size
		if at := off + int64(total); at < start+n && total < len(b) {
			want := b[total:min(int64(len(b)), int64(total)+start+n-at)]
			if p.zeros {
				clear(want)
			} else if p.data != nil {
				copy(want, p.data[at-start:])
			} else if got, err := r.old.ReadAt(want, p.from+at-start); got < len(want) {
				return total + got, unexpectedEnd(err)
			}
			total += len(want)
		}
		start += n
	}
	if total < len(b) {
		return total, io.EOF
	}
	return total, nil
}

// The sizes of ELF-64, in bytes, and the fields of its header that strip changes (gABI, chapter 4).
const (
	header64  = 64
	segment64 = 56
	section64 = 64

	fieldSections     = 40 // e_shoff, u64
	fieldSectionCount = 60 // e_shnum, u16
	fieldSectionNames = 62 // e_shstrndx, u16
)

// Limits on what is read of a file.
const (
	maxStripSections = 0xff00 // SHN_LORESERVE: more are counted elsewhere
	maxSectionNames  = 16 << 20
	maxGap           = 64 << 10 // bytes between two sections that may be zeros for alignment
	maxStripAlign    = 64 << 10
)

// strippable are the machines whose files are known. Code for GPUs comes as ELF files too.
var strippable = []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64, elf.EM_RISCV}

var le64 = binary.LittleEndian

// stripper is the work on one file.
type stripper struct {
	r        io.ReaderAt
	size     int64
	head     []byte
	segments []byte
	sections []section
	loaded   []span
	end      int64 // of all that is loaded
	keep     []bool

	inPlace     bool // nothing moves
	tableLoaded bool // nor may the table of sections change where it is
}

// section is a section header as it stands in the file.
type section struct {
	name                    string
	nameAt                  uint32
	kind                    elf.SectionType
	flags, addr, off, size  uint64
	link, info              uint32
	align, entry            uint64
	bytes                   []byte // of the header
	allocated, takesNothing bool
}

func (s *section) end() int64 { return int64(s.off + s.size) }

func (s *stripper) read(off uint64, n int64) ([]byte, error) {
	if off > uint64(s.size) || n > s.size-int64(off) {
		return nil, formatError("%d bytes at %d, beyond the end of the file", n, off)
	}
	b := make([]byte, n)
	if got, err := s.r.ReadAt(b, int64(off)); int64(got) < n {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, off, unexpectedEnd(err))
	}
	return b, nil
}

func (s *stripper) readHeader() error {
	if s.size < header64 {
		return ErrNotELF
	}
	var err error
	if s.head, err = s.read(0, header64); err != nil {
		return err
	}
	if !IsELF(s.head) {
		return ErrNotELF
	}
	if elf.Class(s.head[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(s.head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return keptf("it is not for a 64-bit little-endian processor")
	}
	if m := elf.Machine(le64.Uint16(s.head[18:])); !slices.Contains(strippable, m) {
		return keptf("it is for a machine whose files are not known well enough (%s)", m)
	}
	switch kind := elf.Type(le64.Uint16(s.head[16:])); kind {
	case elf.ET_EXEC, elf.ET_DYN:
	case elf.ET_REL:
		return keptf("an object file or a kernel module is linked by its symbols")
	default:
		return keptf("it is neither a program nor a library (%s)", kind)
	}
	return nil
}

func (s *stripper) readTables() error {
	count, names := le64.Uint16(s.head[fieldSectionCount:]), le64.Uint16(s.head[fieldSectionNames:])
	segments := le64.Uint16(s.head[56:])
	switch {
	case le64.Uint16(s.head[52:]) != header64 || le64.Uint16(s.head[54:]) != segment64 || segments == 0 || segments == math.MaxUint16:
		return keptf("its header is unusual")
	case count == 0:
		return keptf("it has no table of sections")
	case le64.Uint16(s.head[58:]) != section64 || count >= maxStripSections || names == 0 || names >= count:
		return keptf("its header is unusual")
	}
	var err error
	if s.segments, err = s.read(le64.Uint64(s.head[32:]), int64(segments)*segment64); err != nil {
		return err
	}
	table, err := s.read(le64.Uint64(s.head[fieldSections:]), int64(count)*section64)
	if err != nil {
		return err
	}
	for b := range slices.Chunk(table, section64) {
		sec := section{
			nameAt: le64.Uint32(b), kind: elf.SectionType(le64.Uint32(b[4:])), flags: le64.Uint64(b[8:]), addr: le64.Uint64(b[16:]),
			off: le64.Uint64(b[24:]), size: le64.Uint64(b[32:]), link: le64.Uint32(b[40:]), info: le64.Uint32(b[44:]),
			align: le64.Uint64(b[48:]), entry: le64.Uint64(b[56:]), bytes: b,
		}
		sec.allocated = elf.SectionFlag(sec.flags)&elf.SHF_ALLOC != 0
		sec.takesNothing = sec.kind == elf.SHT_NOBITS || sec.kind == elf.SHT_NULL || sec.size == 0
		if !sec.takesNothing && (sec.off > uint64(s.size) || sec.size > uint64(s.size)-sec.off) {
			return keptf("it is a file of symbols for debuggers, or was cut off: a section lies beyond its end")
		}
		if sec.link >= uint32(count) {
			return keptf("its table of sections is damaged")
		}
		s.sections = append(s.sections, sec)
	}
	return nil
}

func (s *stripper) readNames() error {
	table := &s.sections[le64.Uint16(s.head[fieldSectionNames:])]
	if table.kind != elf.SHT_STRTAB || table.allocated || table.size > maxSectionNames {
		return keptf("its header is unusual")
	}
	names, err := s.read(table.off, int64(table.size))
	if err != nil {
		return err
	}
	for i := range s.sections {
		sec := &s.sections[i]
		if uint64(sec.nameAt) >= uint64(len(names)) {
			return keptf("its table of sections is damaged")
		}
		name, _, ok := bytes.Cut(names[sec.nameAt:], []byte{0})
		if !ok {
			return keptf("its table of sections is damaged")
		}
		sec.name = string(name)
		if strings.Contains(sec.name, "signature") || sec.name == ".sig" || strings.HasSuffix(sec.name, "_sig") {
			return keptf("it is signed (section %s)", sec.name)
		}
	}
	return nil
}

// findEnd finds where all that is loaded ends.
func (s *stripper) findEnd() error {
	grow := func(off, size uint64) error {
		if off > uint64(s.size) || size > uint64(s.size)-off {
			return keptf("it is a file of symbols for debuggers, or was cut off: a segment goes beyond its end")
		}
		s.end = max(s.end, int64(off+size))
		s.loaded = append(s.loaded, span{int64(off), int64(off + size)})
		return nil
	}
	if err := cmp.Or(grow(0, header64), grow(le64.Uint64(s.head[32:]), uint64(len(s.segments)))); err != nil {
		return err
	}
	for b := range slices.Chunk(s.segments, segment64) {
		if size := le64.Uint64(b[32:]); size > 0 {
			if err := grow(le64.Uint64(b[8:]), size); err != nil {
				return err
			}
		}
	}
	for i := range s.sections {
		sec := &s.sections[i]
		if !sec.allocated {
			continue
		}
		if sec.kind == elf.SHT_NOBITS && elf.SectionFlag(sec.flags)&elf.SHF_WRITE == 0 && sec.size > 0 {
			return keptf("it is a file of symbols for debuggers: %s has no content", sec.name)
		}
		if !sec.takesNothing {
			if err := grow(sec.off, sec.size); err != nil {
				return err
			}
		}
	}
	s.inPlace = le64.Uint64(s.head[fieldSections:]) < uint64(s.end)
	return nil
}

// choose decides about every section.
func (s *stripper) choose() error {
	s.keep = make([]bool, len(s.sections))
	s.keep[0] = true
	goes := make([]bool, len(s.sections))
	for i := 1; i < len(s.sections); i++ {
		switch sec := &s.sections[i]; {
		case sec.allocated:
			s.keep[i] = true
		case sec.kind == elf.SHT_SYMTAB:
			goes[i] = true
			if names := &s.sections[sec.link]; names.kind == elf.SHT_STRTAB && !names.allocated {
				goes[sec.link] = true
			}
		case sec.kind == elf.SHT_SYMTAB_SHNDX, isDebug(sec.name):
			goes[i] = true
		}
	}
	goes[le64.Uint16(s.head[fieldSectionNames:])] = false
	first, last := slices.Index(goes, true), 0
	if first < 0 {
		return keptf("nothing can be stripped")
	}
	for i := 1; i < len(s.sections); i++ {
		sec := &s.sections[i]
		switch {
		case sec.allocated:
			last = i
		case goes[i]:
			s.inPlace = s.inPlace || !sec.takesNothing && int64(sec.off) < s.end
		default:
			if err := s.mayMove(i); err != nil {
				return err
			}
			s.keep[i] = true
		}
	}
	// Symbols for the loader name loaded sections by their numbers.
	s.inPlace = s.inPlace || first < last
	return s.checkLinks(goes)
}

// isDebug reports whether a section is for debuggers only, by the names that compilers give (DWARF 5, appendix; stabs; split DWARF).
func isDebug(name string) bool {
	switch name {
	case ".debug", ".line", ".stab", ".stabstr", ".gdb_index":
		return true
	}
	for _, prefix := range []string{".debug_", ".zdebug_", ".stab.", ".gnu.debuglto_", ".gnu.linkonce.wi."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// mayMove refuses a file with a section, not loaded, of which it is not known that nobody minds where it is.
func (s *stripper) mayMove(i int) error {
	sec := &s.sections[i]
	if sec.align > maxStripAlign || sec.align&(sec.align-1) != 0 {
		return keptf("the section %s has an unusual alignment", sec.name)
	}
	if elf.SectionFlag(sec.flags)&(elf.SHF_COMPRESSED|elf.SHF_GROUP) != 0 || sec.kind == elf.SHT_NOBITS {
		return keptf("the section %s is unusual", sec.name)
	}
	switch sec.kind {
	case elf.SHT_NOTE, elf.SHT_NULL:
		return nil
	case elf.SHT_REL, addendRelocations:
		return keptf("it keeps the relocations that linking left (%s)", sec.name)
	case elf.SHT_STRTAB:
		if i == int(le64.Uint16(s.head[fieldSectionNames:])) {
			return nil
		}
	case elf.SHT_PROGBITS, elf.SHT_LOPROC + 3: // the last are attributes (Arm and RISC-V ABIs)
		switch name := sec.name; {
		case slices.Contains(movable, name), strings.HasPrefix(name, ".note"), strings.HasPrefix(name, ".gnu.warning."), strings.HasPrefix(name, ".gnu.build.attributes"):
			return nil
		}
	}
	return keptf("it has a section that is not known (%s), and may be looked for where it is", sec.name)
}

// movable are the names of sections that are found by their names.
var movable = []string{
	".comment", ".gnu_debuglink", ".gnu_debugaltlink", ".gnu_debugdata", ".riscv.attributes", ".ARM.attributes", ".annobin.notes", ".SUNW_ctf", ".ctf", ".BTF",
}

// checkLinks makes sure that no section that stays needs one that goes.
func (s *stripper) checkLinks(goes []bool) error {
	for i := range s.sections {
		sec := &s.sections[i]
		if goes[i] {
			continue
		}
		if goes[sec.link] && !looseLink(sec) {
			return keptf("%s needs %s", sec.name, s.sections[sec.link].name)
		}
		if sec.infoIsSection() && (uint64(sec.info) >= uint64(len(goes)) || goes[sec.info]) {
			return keptf("%s needs a section that would go", sec.name)
		}
	}
	return nil
}

// looseLink reports whether a section names a table of symbols that it has no need of: relocations of a static program, which
// have none (R_X86_64_IRELATIVE and its kin).
func looseLink(sec *section) bool {
	return sec.allocated && sec.relocates()
}

const addendRelocations = elf.SHT_RELA //nolint:misspell // gABI's name

func (s *section) relocates() bool { return s.kind == elf.SHT_REL || s.kind == addendRelocations }

func (s *section) infoIsSection() bool {
	return s.relocates() || elf.SectionFlag(s.flags)&elf.SHF_INFO_LINK != 0
}

// span is a part of the file that is known.
type span struct{ off, end int64 }

// checkRest makes sure that behind what is loaded there is nothing but sections and the table of them. Programs that unpack
// themselves, and signatures, are bytes that no section knows of.
func (s *stripper) checkRest() error {
	if s.inPlace {
		return s.checkApart()
	}
	table := int64(le64.Uint64(s.head[fieldSections:]))
	spans := []span{{0, s.end}, {table, table + int64(len(s.sections))*section64}}
	for i := range s.sections {
		if sec := &s.sections[i]; !sec.takesNothing && !sec.allocated {
			if s.keep[i] && int64(sec.off) < s.end {
				return keptf("the section %s stands inside of what is loaded", sec.name)
			}
			spans = append(spans, span{int64(sec.off), sec.end()})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end)) })
	at := int64(0)
	for _, p := range append(spans, span{s.size, s.size}) {
		if p.off < at {
			return keptf("two of its sections share bytes")
		}
		if err := s.checkGap(at, p.off); err != nil {
			return err
		}
		at = p.end
	}
	return nil
}

// checkApart makes sure that what becomes zero is nothing else too, and that nothing was appended.
func (s *stripper) checkApart() error {
	at := int64(le64.Uint64(s.head[fieldSections:]))
	table := span{at, at + int64(len(s.sections))*section64}
	end := max(s.end, table.end)
	stay, gone := append([]span{}, s.loaded...), []span{table}
	if s.tableLoaded = table.meets(s.loaded); s.tableLoaded {
		gone = nil
	}
	for i := range s.sections {
		sec := &s.sections[i]
		if sec.takesNothing || sec.allocated {
			continue
		}
		end = max(end, sec.end())
		if p := (span{int64(sec.off), sec.end()}); s.keep[i] {
			stay = append(stay, p)
		} else {
			gone = append(gone, p)
		}
	}
	for i, p := range gone {
		if p.meets(stay) || p.meets(gone[:i]) {
			return keptf("its part at %d is also a part of something else", p.off)
		}
	}
	return s.checkGap(end, s.size) // patchelf appends a zero
}

// meets reports whether the span has a byte in common with one of others.
func (p span) meets(others []span) bool {
	return slices.ContainsFunc(others, func(q span) bool { return p.off < q.end && q.off < p.end })
}

func (s *stripper) checkGap(from, to int64) error {
	if from == to {
		return nil
	}
	if to-from > maxGap {
		return keptf("%d bytes at %d belong to no section: something was appended to it", to-from, from)
	}
	b, err := s.read(uint64(from), to-from)
	if err != nil {
		return err
	}
	if len(bytes.Trim(b, "\x00")) > 0 {
		return keptf("%d bytes at %d belong to no section: something was appended to it", to-from, from)
	}
	return nil
}

// layInPlace replaces parts of the file, each by as many bytes.
func (s *stripper) layInPlace() *Stripped {
	out := &Stripped{}
	table := piece{from: int64(le64.Uint64(s.head[fieldSections:])), data: s.tableInPlace(out)}
	head := bytes.Clone(s.head)
	edits := []piece{{data: head}}
	if !s.tableLoaded {
		edits = append(edits, table)
	}
	for i := range s.sections {
		if sec := &s.sections[i]; !s.keep[i] && !sec.takesNothing {
			edits = append(edits, piece{from: int64(sec.off), size: int64(sec.size), zeros: true})
			out.Zeroed += int64(sec.size)
		}
	}
	slices.SortFunc(edits, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
	for _, e := range edits {
		out.add(piece{from: out.Size, size: e.from - out.Size})
		out.add(e)
	}
	out.add(piece{from: out.Size, size: s.size - out.Size})
	if s.tableLoaded {
		out.align(8)
		le64.PutUint64(head[fieldSections:], uint64(out.Size))
		out.add(table)
	}
	return out
}

// tableInPlace is the table of sections with nothing where sections were (gABI, chapter 4, SHT_NULL).
func (s *stripper) tableInPlace(out *Stripped) []byte {
	var table []byte
	for i := range s.sections {
		b := bytes.Clone(s.sections[i].bytes)
		if link := s.sections[i].link; !s.keep[i] {
			clear(b)
			out.Removed = append(out.Removed, s.sections[i].name)
		} else if !s.keep[link] {
			le64.PutUint32(b[40:], 0)
		}
		table = append(table, b...)
	}
	return table
}

// lay puts the stripped file together.
func (s *stripper) lay() *Stripped {
	if s.inPlace {
		return s.layInPlace()
	}
	out := &Stripped{}
	numbers, names := s.number(), newNameTable()
	head := bytes.Clone(s.head)
	out.add(piece{data: head})
	out.add(piece{from: header64, size: s.end - header64})
	own := int(le64.Uint16(s.head[fieldSectionNames:]))
	headers := map[int]section{}
	order := make([]int, 0, len(s.sections))
	for i := range s.sections {
		if s.keep[i] {
			order = append(order, i)
			names.add(s.sections[i].name)
		} else {
			out.Removed = append(out.Removed, s.sections[i].name)
		}
	}
	byPlace := slices.SortedStableFunc(slices.Values(order), func(a, b int) int { return cmp.Compare(s.sections[a].off, s.sections[b].off) })
	for _, i := range byPlace {
		sec := s.sections[i]
		switch {
		case i == 0 || sec.allocated:
		case i == own:
			out.align(1)
			sec.off, sec.size = uint64(out.Size), uint64(len(names.bytes))
			out.add(piece{data: names.bytes})
		default:
			out.align(int64(max(sec.align, 1)))
			old := int64(sec.off)
			sec.off = uint64(out.Size)
			if !sec.takesNothing {
				out.add(piece{from: old, size: int64(sec.size)})
			}
		}
		headers[i] = sec
	}
	out.align(8)
	le64.PutUint64(head[fieldSections:], uint64(out.Size))
	le64.PutUint16(head[fieldSectionCount:], uint16(len(order)))
	le64.PutUint16(head[fieldSectionNames:], uint16(numbers[own]))
	var table []byte
	for _, i := range order {
		sec := headers[i]
		b := bytes.Clone(sec.bytes)
		le64.PutUint32(b, names.at[sec.name])
		le64.PutUint64(b[24:], sec.off)
		le64.PutUint64(b[32:], sec.size)
		le64.PutUint32(b[40:], uint32(numbers[sec.link]))
		if sec.infoIsSection() {
			le64.PutUint32(b[44:], uint32(numbers[sec.info]))
		}
		table = append(table, b...)
	}
	out.add(piece{data: table})
	return out
}

// number gives the new numbers of sections; those that go have 0, which means none.
func (s *stripper) number() []int {
	numbers := make([]int, len(s.sections))
	n := 0
	for i := range s.sections {
		if s.inPlace {
			numbers[i] = i
		} else if s.keep[i] {
			numbers[i] = n
			n++
		}
	}
	return numbers
}

func (s *Stripped) add(p piece) {
	if p.data != nil {
		p.size = int64(len(p.data))
	}
	if p.size > 0 {
		s.pieces = append(s.pieces, p)
		s.Size += p.size
	}
}

func (s *Stripped) align(n int64) { s.add(piece{data: make([]byte, -s.Size&(n-1))}) }

// nameTable is a string table (gABI, chapter 4, "String Table").
type nameTable struct {
	bytes []byte
	at    map[string]uint32
}

func newNameTable() *nameTable { return &nameTable{bytes: []byte{0}, at: map[string]uint32{"": 0}} }

func (t *nameTable) add(name string) {
	if _, ok := t.at[name]; !ok {
		t.at[name] = uint32(len(t.bytes)) // at most maxSectionNames
		t.bytes = append(append(t.bytes, name...), 0)
	}
}

// prove reads the stripped file and compares it with what should be in it.
func (s *stripper) prove(out *Stripped) error {
	after := &stripper{r: out.ReaderAt(s.r), size: out.Size}
	for _, step := range []func() error{after.readHeader, after.readTables, after.readNames, after.findEnd} {
		if err := step(); err != nil {
			var kept *KeptError
			if errors.As(err, &kept) || errors.Is(err, ErrFormat) || errors.Is(err, ErrNotELF) {
				return keptf("the stripped file would be damaged: %v", err)
			}
			return err
		}
	}
	same := after.end == s.end && bytes.Equal(after.segments, s.segments) && bytes.Equal(after.head[:fieldSections], s.head[:fieldSections]) &&
		bytes.Equal(after.head[fieldSections+8:fieldSectionCount], s.head[fieldSections+8:fieldSectionCount])
	numbers := s.number()
	for i := range s.sections {
		if !s.keep[i] || !same {
			continue
		}
		a, b := &s.sections[i], &after.sections[numbers[i]]
		same = a.name == b.name && bytes.Equal(a.bytes[4:24], b.bytes[4:24]) && bytes.Equal(a.bytes[48:], b.bytes[48:])
		if a.allocated {
			same = same && i == numbers[i] && a.off == b.off && a.size == b.size && a.info == b.info && (a.link == b.link || looseLink(a))
		}
	}
	if !same {
		return keptf("the stripped file would be another")
	}
	return nil
}
