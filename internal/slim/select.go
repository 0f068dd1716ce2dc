package slim

import "sconce.dev/sconce/internal/fatbin"

// flagCompat is set on machine code for 10.0 and later, which describes in its options record with what it is compatible.
const flagCompat fatbin.Flags = 0x1000000

// knownFlags are those of machine code and PTX whose meaning is sure. An entry with any other stays.
const knownFlags = fatbin.Flag64Bit | fatbin.FlagDebug | fatbin.FlagLinux | fatbin.FlagLZ4 | fatbin.FlagZstd |
	fatbin.FlagArchOnly | fatbin.FlagFamily | flagCompat

// wrapperLinked is the version of wrappers of device-linked regions.
const wrapperLinked = 2

// selector decides which entries of a file's regions stay.
type selector struct {
	gpus    []int
	dropPTX bool // where there is machine code
	dropRel bool // the relocatable regions
	relinks bool // for a target GPU the driver may link the relocatable regions again
}

func newSelector(f *fatbin.File, o Options) *selector {
	s := &selector{gpus: o.gpus(), dropPTX: o.ptx() == DropWhereNative}
	for i := range f.Regions {
		r := &f.Regions[i]
		if r.Wrapper == wrapperLinked && r.Place != fatbin.Relocatable && !s.native(r) {
			s.relinks = true
		}
	}
	s.dropRel = o.DropRelocatable && !s.relinks
	return s
}

// native is whether the region has machine code for all target GPUs.
func (s *selector) native(r *fatbin.Region) bool {
	for _, sm := range s.gpus {
		if bestArch(r, sm, fatbin.Native) < 0 {
			return false
		}
	}
	return true
}

// keep tells for each entry of a region whether it stays; at least one does.
func (s *selector) keep(r *fatbin.Region) []bool {
	keep := make([]bool, len(r.Entries))
	if r.Place == fatbin.Stray || r.Headerless {
		for i := range keep {
			keep[i] = true
		}
		return keep
	}
	wanted := s.wanted(r)
	last := -1
	for i := range r.Entries {
		if keep[i] = stays(&r.Entries[i], wanted); keep[i] {
			last = i
		}
	}
	if last < 0 {
		last = smallest(r)
		keep[last] = true
	}
	if last < len(keep)-1 && !growable(&r.Entries[last]) {
		keep[len(keep)-1] = true // so that nothing has to become padding of the one before
	}
	return keep
}

// stays is whether an entry or one of its parts may not go.
func stays(e *fatbin.Entry, wanted map[archKey]bool) bool {
	if e.Kind == fatbin.Concatenated && e.Flags&^knownFlags == 0 {
		for i := range e.Parts {
			if stays(&e.Parts[i], wanted) {
				return true
			}
		}
		return false
	}
	return !judged(e) || wanted[archKey{kindOf(e.Kind), e.Arch}]
}

// archKey names machine code or PTX for an architecture.
type archKey struct {
	kind string
	arch fatbin.Arch
}

// wanted gives the machine code and the PTX of a region that stay.
func (s *selector) wanted(r *fatbin.Region) map[archKey]bool {
	wanted := map[archKey]bool{}
	if s.dropRel && r.Place == fatbin.Relocatable {
		return wanted
	}
	for _, sm := range s.gpus {
		native := bestArch(r, sm, fatbin.Native)
		compiled := -1
		if native < 0 {
			compiled = bestArch(r, sm, fatbin.Compiled)
		}
		for e := range r.Images() {
			support := e.Support(sm)
			if support == fatbin.Native && e.Arch.SM == native || support == fatbin.Compiled && e.Arch.SM == compiled {
				wanted[archKey{kindOf(e.Kind), e.Arch}] = true
			}
		}
	}
	if !s.dropPTX || s.relinks && r.Place == fatbin.Relocatable {
		for e := range r.Images() {
			if kindOf(e.Kind) == kindPTX {
				wanted[archKey{kindPTX, e.Arch}] = true
			}
		}
	}
	return wanted
}

// bestArch is the highest architecture of a region's images that run in this way on a device, -1 when there is none.
func bestArch(r *fatbin.Region, sm int, how fatbin.Support) int {
	best := -1
	for e := range r.Images() {
		if judged(e) && e.Support(sm) == how {
			best = max(best, e.Arch.SM)
		}
	}
	return best
}

// judged is whether it is sure what an image is: machine code or PTX with known flags.
func judged(e *fatbin.Entry) bool {
	const variants = fatbin.FlagArchOnly | fatbin.FlagFamily
	switch e.Kind {
	case fatbin.ELFImage, fatbin.PTX, fatbin.RelocatablePTX:
		return e.Flags&^knownFlags == 0 && e.Flags&variants != variants && e.Arch.SM >= 10
	}
	return false
}

// smallest is the index of the entry of a region that takes the fewest bytes.
func smallest(r *fatbin.Region) int {
	best := 0
	for i := range r.Entries {
		if e := &r.Entries[i]; e.End()-e.Offset < r.Entries[best].End()-r.Entries[best].Offset {
			best = i
		}
	}
	return best
}

// growable is whether zeros after an entry's payload change nothing: it says elsewhere where it ends.
func growable(e *fatbin.Entry) bool {
	return e.Compression != fatbin.Stored || e.Kind == fatbin.ELFImage || e.Kind == fatbin.PTX || e.Kind == fatbin.RelocatablePTX
}
