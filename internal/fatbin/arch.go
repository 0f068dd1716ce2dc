package fatbin

import (
	"strconv"
	"strings"
)

// maxSM keeps a damaged header from looking like an architecture.
const maxSM = 0xFFFF

// Arch is an architecture: a real one (sm_90a) of cubins, a virtual one (compute_90a) of PTX and LTO-IR.
type Arch struct {
	SM      int    // ten times the major number and the minor one
	Variant string // "a": only this one, "f": its family, or empty
}

func (a Arch) String() string { return "sm_" + a.Name() }

// Name is the architecture without what tells real ones from virtual ones: "90a".
func (a Arch) Name() string { return strconv.Itoa(a.SM) + a.Variant }

// ParseArch reads what [Arch.Name] wrote. It is zero for anything else.
func ParseArch(name string) Arch {
	digits := strings.TrimRight(name, "abcdefghijklmnopqrstuvwxyz")
	sm, err := strconv.Atoi(digits)
	if err != nil {
		return Arch{}
	}
	return Arch{SM: sm, Variant: name[len(digits):]}
}

func (a Arch) major() int { return a.SM / 10 }
func (a Arch) minor() int { return a.SM % 10 }

// integrated tells the architectures of chips with their own line of drivers (Tegra). Their cubins run on no other chip of the
// same major number, nor the others' on them.
func integrated(sm int) bool {
	switch sm {
	case 53, 62, 72, 87, 101, 110:
		return true
	}
	return false
}

// RunsOn is whether machine code, a cubin, for a runs on a device whose compute capability is sm. CUDA C++ Programming Guide,
// "Binary Compatibility", and the Blackwell Compatibility Guide for the variants.
func (a Arch) RunsOn(sm int) bool {
	if a.SM == sm {
		return true
	}
	return a.Variant != "a" && a.sameLine(sm)
}

// sameLine is whether sm is a later device of the same major number.
func (a Arch) sameLine(sm int) bool {
	return a.major() == sm/10 && a.minor() <= sm%10 && !integrated(a.SM) && !integrated(sm)
}

// compilesFor is whether the driver can compile PTX for a to a device whose compute capability is sm.
func (a Arch) compilesFor(sm int) bool {
	switch a.Variant {
	case "a":
		return a.SM == sm
	case "f":
		return a.SM == sm || a.sameLine(sm)
	}
	return a.SM <= sm
}

// Support is how code runs on a device.
type Support int

// The ways, worst first.
const (
	Unsupported Support = iota
	Compiled            // the driver compiles PTX when the program starts
	Native
)

func (s Support) String() string { return [...]string{"none", "ptx", "native"}[s] }

// Support tells how an image runs on a device whose compute capability is sm, as 90 for 9.0.
func (e *Entry) Support(sm int) Support {
	switch {
	case e.Kind == ELFImage && e.Arch.RunsOn(sm):
		return Native
	case e.Kind == PTX && e.Arch.compilesFor(sm), e.Kind == RelocatablePTX && e.Arch.compilesFor(sm):
		return Compiled
	}
	return Unsupported
}

// Support tells how the best image of the region runs on a device whose compute capability is sm.
func (r *Region) Support(sm int) Support {
	best := Unsupported
	for e := range r.Images() {
		best = max(best, e.Support(sm))
	}
	return best
}

// Devices are the compute capabilities of NVIDIA's chips since Maxwell, as 90 for 9.0.
func Devices() []int {
	return []int{50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121}
}

// Coverage is how the regions of a file run on one device.
type Coverage struct {
	SM                            int // compute capability, as 90 for 9.0
	Native, Compiled, Unsupported int // regions
}

// All is the support of the worst region: below it no part of the file goes.
func (c Coverage) All() Support {
	switch {
	case c.Unsupported > 0 || c.Native+c.Compiled == 0:
		return Unsupported
	case c.Compiled > 0:
		return Compiled
	}
	return Native
}

// Coverage tells for each device, [Devices] when none is named, how the regions run that a program registers. Not counted are
// stray regions, of which only the program knows when it loads which, and the relocatable ones of linked files, whose linked
// form is counted. A device-linked region without code for a device is as good as the worst relocatable region is, since the
// driver links those again from PTX.
func (f *File) Coverage(devices ...int) []Coverage {
	if len(devices) == 0 {
		devices = Devices()
	}
	list := make([]Coverage, 0, len(devices))
	for _, sm := range devices {
		list = append(list, f.coverage(sm))
	}
	return list
}

func (f *File) coverage(sm int) Coverage {
	c := Coverage{SM: sm}
	relinked := f.relinked(sm)
	for i := range f.Regions {
		r := &f.Regions[i]
		if r.Place == Stray || r.Place == Relocatable && f.Linked {
			continue
		}
		support := r.Support(sm)
		if r.Wrapper == wrapperLinked {
			support = max(support, relinked)
		}
		switch support {
		case Native:
			c.Native++
		case Compiled:
			c.Compiled++
		default:
			c.Unsupported++
		}
	}
	return c
}

// relinked is what the driver makes of the relocatable regions, which a device-linked region keeps for devices to come.
func (f *File) relinked(sm int) Support {
	found := false
	for i := range f.Regions {
		if r := &f.Regions[i]; r.Place == Relocatable {
			if found = true; !r.hasPTX(sm) {
				return Unsupported
			}
		}
	}
	if found {
		return Compiled
	}
	return Unsupported
}

func (r *Region) hasPTX(sm int) bool {
	for e := range r.Images() {
		if e.Support(sm) == Compiled {
			return true
		}
	}
	return false
}
