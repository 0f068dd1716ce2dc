package fatbin

// A wrapper is what a program registers: u32 magic, u32 version, address of a region, address of more (fatbinary_section.h).
const (
	wrapperSize   = 24
	wrapperMagic  = 0x466243B1
	wrapperData   = 8 // offset of the region's address
	wrapperPlain  = 1
	wrapperLinked = 2

	relaSize    = 24
	symbolSize  = 24
	maxWrappers = maxRegions
	errWrappers = limitError("it has too many wrappers")
)

// Wrapper is how a program names a region.
type Wrapper struct {
	Member  string // of an archive
	Offset  int64  // in the file
	Version int    // 1, or 2 for device-linked code
	Target  int64  // offset of the region in the file, -1 when it is not known
	Region  int    // its index in File.Regions, -1 when no region begins there
}

// wrappers reads the wrappers of an object, whose regions begin at index first.
func (s *scanner) wrappers(o *object, first int) error {
	for i, sec := range o.sections {
		if sec.name != wrapperSection || sec.kind != sectionProgbits || sec.size < wrapperSize {
			continue
		}
		targets, err := s.relocations(o, uint32(i))
		if err != nil {
			return err
		}
		if err := s.wrapperSection(o, sec, targets, s.byOffset(first)); err != nil {
			return err
		}
	}
	return nil
}

// byOffset finds regions, those since index first, by their offsets.
func (s *scanner) byOffset(first int) map[int64]int {
	regions := make(map[int64]int, len(s.file.Regions)-first)
	for i := first; i < len(s.file.Regions); i++ {
		regions[s.file.Regions[i].Offset] = i
	}
	return regions
}

func (s *scanner) wrapperSection(o *object, sec section, targets map[int64]int64, regions map[int64]int) error {
	for at := int64(0); at+wrapperSize <= sec.size; at += wrapperSize {
		b, err := s.bytes(sec.off+at, wrapperSize)
		if err != nil {
			return err
		}
		if le.Uint32(b) != wrapperMagic {
			s.problem(sec.off+at, "no wrapper begins here, but % x", b[:8])
			return nil
		}
		if len(s.file.Wrappers) == maxWrappers {
			return errWrappers
		}
		w := Wrapper{Member: s.member, Offset: sec.off + at, Version: int(le.Uint32(b[4:]))}
		target, relocated := targets[at+wrapperData]
		if !relocated { // not relocated at all, or by RELR, which adds to what is there
			target = o.fileOffset(le.Uint64(b[wrapperData:]))
		}
		w.Target = target
		w.Region = s.wrapped(w, regions)
		s.file.Wrappers = append(s.file.Wrappers, w)
	}
	return nil
}

// wrapped finds the region that a wrapper names, and marks it.
func (s *scanner) wrapped(w Wrapper, regions map[int64]int) int {
	if w.Version != wrapperPlain && w.Version != wrapperLinked {
		s.problem(w.Offset, "a wrapper of version %d", w.Version)
		return -1
	}
	if i, is := regions[w.Target]; is {
		s.file.Regions[i].Wrapper = w.Version
		return i
	}
	if !s.options.SectionsOnly { // else it may be one of those that were not searched
		s.problem(w.Offset, "a wrapper points to byte %d, where no region begins", w.Target)
	}
	return -1
}

// relocations gives where the addresses in a section point to: by offset in the section, offsets of the file.
func (s *scanner) relocations(o *object, index uint32) (map[int64]int64, error) {
	targets := map[int64]int64{}
	for _, table := range o.sections {
		if table.kind != sectionRela || o.kind == typeRelocatable && table.info != index {
			continue
		}
		if err := s.relocationsOf(o, table, o.sections[index], targets); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

func (s *scanner) relocationsOf(o *object, table, sec section, targets map[int64]int64) error {
	base := sec.addr
	if o.kind == typeRelocatable {
		base = 0
	}
	for at := int64(0); at+relaSize <= table.size; at += relaSize {
		b, err := s.bytes(table.off+at, relaSize)
		if err != nil {
			return err
		}
		off := le.Uint64(b) - base
		if off >= uint64(sec.size) || off%wrapperSize != wrapperData {
			continue
		}
		if len(targets) == maxWrappers {
			return errWrappers
		}
		target, err := s.relocated(o, table, le.Uint64(b[8:]), le.Uint64(b[16:]))
		if err != nil {
			return err
		}
		targets[int64(off)] = target
	}
	return nil
}

// The relocations that set an address: System V ABI, AMD64 supplement; ELF for the Arm 64-bit Architecture.
const (
	relocAMD64Abs64    = 1
	relocAMD64Relative = 8
	relocARM64Abs64    = 257
	relocARM64Relative = 1027
)

// relocated gives the offset in the file that a relocation sets, or -1.
func (s *scanner) relocated(o *object, table section, info, addend uint64) (int64, error) {
	switch uint32(info) {
	case relocAMD64Relative, relocARM64Relative:
		return o.fileOffset(addend), nil
	case relocAMD64Abs64, relocARM64Abs64:
		return s.symbolTarget(o, table, info>>32, addend)
	}
	return -1, nil
}

func (s *scanner) symbolTarget(o *object, table section, symbol, addend uint64) (int64, error) {
	if int64(table.link) >= int64(len(o.sections)) {
		return -1, nil
	}
	symbols := o.sections[table.link]
	at := int64(symbol) * symbolSize // symbol has 32 bits
	if symbols.kind != sectionSymtab && symbols.kind != sectionDynsym || at+symbolSize > symbols.size {
		return -1, nil
	}
	b, err := s.bytes(symbols.off+at, symbolSize)
	if err != nil {
		return -1, err
	}
	index, value := int(le.Uint16(b[6:])), le.Uint64(b[8:])+addend
	if index == 0 || index >= len(o.sections) {
		return -1, nil
	}
	if o.kind != typeRelocatable {
		return o.fileOffset(value), nil
	}
	if sec := o.sections[index]; value < uint64(sec.size) {
		return sec.off + int64(value), nil
	}
	return -1, nil
}
