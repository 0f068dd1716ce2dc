package elfx

import (
	"bytes"
	"cmp"
	"debug/elf"
	"slices"
	"strings"
)

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
