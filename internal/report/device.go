package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
)

// device is the section on device code.
type device struct {
	*audit.GPUReport
	Groups       []deviceGroup
	MoreGroups   int
	Legend       []archClass
	Capabilities []capability
	Listed       []audit.Library // the largest
	MoreListed   int
	ROCm         []string
}

// deviceGroup is a package or directory with its code by architecture.
type deviceGroup struct {
	audit.Group
	Segments []segment
}

// segment is a part of a bar, in thousandths of the widest bar.
type segment struct {
	archClass
	X, Width float64
}

// archClass is the code for an architecture.
type archClass struct {
	Kind  string // "sass", "ptx" or "lto-ir"
	Name  string // "sm_90a", "PTX 9.0"
	Class string // of CSS: "arch-9", by the architecture's major number
	Size  int64  // bytes
}

// capability is a row of the table.
type capability struct {
	audit.Capability
	Chips  string // what has it
	Target bool   // the report is for it
	Of     int    // libraries in all
	More   int    // of Without, which are not listed
}

// chips are what people call GPUs of a compute capability (developer.nvidia.com/cuda-gpus).
var chips = map[string]string{
	"6.0": "P100", "7.0": "V100", "7.5": "T4", "8.0": "A100, A30", "8.6": "A10, A40", "8.7": "Orin", "8.9": "L4, L40S", "9.0": "H100, H200, GH200",
	"10.0": "B200, GB200", "10.3": "B300, GB300", "11.0": "Thor", "12.0": "RTX PRO 6000", "12.1": "GB10",
}

const maxBars = 40

// newDevice is nil for an image without device code.
func newDevice(r *audit.GPUReport, target []string) *device {
	if r == nil || len(r.Libraries) == 0 {
		return nil
	}
	d := &device{GPUReport: r, Listed: r.Libraries[:min(len(r.Libraries), maxLibraries)]}
	d.MoreListed = len(r.Libraries) - len(d.Listed)
	for _, a := range r.Architectures {
		d.Legend = append(d.Legend, newArch(a.Kind, a.Arch, a.Size))
	}
	shown := r.Groups[:min(len(r.Groups), maxBars)]
	d.MoreGroups = len(r.Groups) - len(shown)
	for _, g := range shown {
		d.Groups = append(d.Groups, deviceGroup{g, segments(r, g.Name, max(r.Groups[0].Size, 1))})
	}
	for _, c := range r.Capabilities {
		row := capability{Capability: c, Chips: chips[c.Capability], Target: isTarget(c.Capability, target), Of: c.Native + c.PTX + len(c.Without)}
		row.Without = c.Without[:min(len(c.Without), maxLines)]
		row.More = len(c.Without) - len(row.Without)
		d.Capabilities = append(d.Capabilities, row)
	}
	for i := range r.Libraries {
		d.ROCm = append(d.ROCm, r.Libraries[i].ROCm...)
	}
	slices.Sort(d.ROCm)
	d.ROCm = slices.Compact(d.ROCm)
	return d
}

func isTarget(c string, target []string) bool {
	return slices.ContainsFunc(target, func(t string) bool { return strings.TrimRight(t, "af") == c })
}

func newArch(kind, arch string, size int64) archClass {
	number := strings.TrimRight(arch, "af")
	major := number[:max(len(number)-1, 0)]
	switch major {
	case "5", "6", "7", "8", "9", "10", "11", "12":
	default:
		major = "other"
	}
	name := map[string]string{"sass": "sm_", "ptx": "PTX ", "lto-ir": "LTO "}[kind] + arch
	return archClass{Kind: kind, Name: name, Class: "arch-" + major, Size: size}
}

// segments sums up a group's code by kind and architecture, in the order of the report's.
func segments(r *audit.GPUReport, group string, widest int64) []segment {
	sums := map[[2]string]int64{}
	for i := range r.Libraries {
		l := &r.Libraries[i]
		if l.Group != group {
			continue
		}
		for kind, codes := range map[string][]audit.Code{"sass": l.SASS, "ptx": l.PTX, "lto-ir": l.LTO} {
			for _, c := range codes {
				sums[[2]string{kind, c.Arch}] += c.Size
			}
		}
	}
	var list []segment
	x := 0.0
	for _, a := range r.Architectures {
		size := sums[[2]string{a.Kind, a.Arch}]
		if size <= 0 {
			continue
		}
		w := 1000 * float64(size) / float64(widest)
		list = append(list, segment{newArch(a.Kind, a.Arch, size), x, w})
		x += w
	}
	return list
}

// archList names the architectures of code: "80 90a".
func archList(codes []audit.Code) string {
	names := make([]string, 0, len(codes))
	for _, c := range codes {
		names = append(names, c.Arch)
	}
	return strings.Join(names, " ")
}

// Machine names the architectures of machine code.
func (d *device) Machine(l audit.Library) string { return archList(l.SASS) }

// PTX names the architectures of PTX with its highest version.
func (d *device) PTX(l audit.Library) string {
	if v := audit.HighestPTX(l.PTX); v != "" {
		return archList(l.PTX) + " (" + v + ")"
	}
	return archList(l.PTX)
}

// Links names the input of links and code for other makers' GPUs.
func (d *device) Links(l audit.Library) string {
	var parts []string
	if len(l.LTO) > 0 {
		parts = append(parts, "LTO "+archList(l.LTO))
	}
	if len(l.ROCm) > 0 {
		parts = append(parts, "ROCm "+strings.Join(l.ROCm, " "))
	}
	if !l.Linked {
		parts = append(parts, "for linking")
	}
	if l.Damaged {
		parts = append(parts, "damaged")
	}
	return strings.Join(parts, "; ")
}

// None is how many libraries have no code for the capability.
func (c capability) None() int { return len(c.Without) + c.More }

// Verdict says in a word how the libraries run on GPUs of the capability.
func (c capability) Verdict() string {
	switch {
	case c.Native == c.Of && c.Partly == 0:
		return "all native"
	case c.Native == 0 && c.PTX == 0:
		return "none"
	case len(c.Without) == 0 && c.More == 0 && c.Partly == 0:
		return "all, some by PTX"
	}
	return "some"
}

// Parts are the shares of the bar in thousandths: native, by PTX, none.
func (c capability) Parts() []segment {
	var list []segment
	x := 0.0
	for _, s := range []struct {
		class string
		n     int
	}{{"native", c.Native}, {"ptx", c.PTX}, {"without", len(c.Without) + c.More}} {
		w := 1000 * float64(s.n) / float64(cmp.Or(c.Of, 1))
		if s.n > 0 {
			list = append(list, segment{archClass{Name: fmt.Sprintf("%d %s", s.n, s.class), Class: "run-" + s.class}, x, w})
		}
		x += w
	}
	return list
}
