package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
)

// device is the section on device code.
type device struct {
	*facts.GPUReport
	Groups       []deviceGroup
	MoreGroups   int
	Legend       []archClass
	MoreLegend   int
	Capabilities []capability
	Listed       []facts.Library // the largest
	MoreListed   int
	ROCm         []string
}

// deviceGroup is a package or directory with its code by architecture.
type deviceGroup struct {
	facts.Group
	Segments []segment
	sums     map[string]int64 // by name of the architecture, in bytes
}

// segment is a part of a bar, in thousandths of the widest bar.
type segment struct {
	archClass
	X, Width float64
}

// thinSegment is the width from which on a segment has an edge that parts it from the next.
const thinSegment = 8

// Thin is a class of CSS for what would vanish behind its edge.
func (s segment) Thin() string {
	if s.Width < thinSegment {
		return "thin"
	}
	return ""
}

// archClass is the code for an architecture.
type archClass struct {
	Kind  string // "sass", "ptx" or "lto-ir"
	Name  string // "sm_90a", "PTX 9.0"
	Class string // of CSS: "arch-9", by the architecture's major number
	Shade string // of CSS: "shade-1", to tell neighbours of one class apart
	Size  int64  // bytes
}

// capability is a row of the table.
type capability struct {
	facts.Capability
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

const (
	maxBars     = 40
	legendShare = 500 // what is less than this part of all is not in the legend
)

// LegendLeast is the size in bytes from which on an architecture is in the legend.
func (d *device) LegendLeast() int64 { return d.Size / legendShare }

// newDevice is nil for an image without device code. o knows the packages that the libraries belong to.
func newDevice(r *facts.GPUReport, o *owners, target []string) *device {
	if r == nil || len(r.Libraries) == 0 {
		return nil
	}
	d := &device{GPUReport: r, Listed: r.Libraries[:min(len(r.Libraries), maxLibraries)]}
	d.MoreListed = len(r.Libraries) - len(d.Listed)
	archs := legend(r.Architectures)
	for _, a := range archs {
		if a.Size >= r.Size/legendShare {
			d.Legend = append(d.Legend, a)
		}
	}
	d.MoreLegend = len(archs) - len(d.Legend)
	groups := deviceGroups(r.Libraries, archs, o)
	d.Groups = groups[:min(len(groups), maxBars)]
	d.MoreGroups = len(groups) - len(d.Groups)
	for i := range d.Groups {
		d.Groups[i].scale(max(groups[0].Size, 1))
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
	return archClass{Kind: kind, Name: archName(kind, arch), Class: "arch-" + major, Size: size}
}

// legend lists the architectures; neighbours of one colour differ in shade.
func legend(totals []facts.ArchTotal) []archClass {
	list := make([]archClass, len(totals))
	shade := 0
	for i, t := range totals {
		a := newArch(t.Kind, t.Arch, t.Size)
		shade = (shade + 1) % 4
		if i == 0 || list[i-1].Class != a.Class || list[i-1].Kind != a.Kind {
			shade = 0
		}
		a.Shade = fmt.Sprintf("shade-%d", shade)
		list[i] = a
	}
	return list
}

const rocmName = "for AMD's GPUs"

// deviceGroups sums up the libraries' code by package, or by directory, the largest first.
func deviceGroups(libraries []facts.Library, archs []archClass, o *owners) []deviceGroup {
	at := map[string]int{}
	var groups []deviceGroup
	for i := range libraries {
		l := &libraries[i]
		name := l.Group
		if n := o.of(l.Path); n > 0 {
			name = o.packages[n].Name
		}
		if _, ok := at[name]; !ok {
			at[name] = len(groups)
			groups = append(groups, deviceGroup{Group: facts.Group{Name: name}, sums: map[string]int64{}})
		}
		groups[at[name]].add(l)
	}
	for i := range groups {
		groups[i].order(archs)
	}
	slices.SortFunc(groups, func(a, b deviceGroup) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	return groups
}

func (g *deviceGroup) add(l *facts.Library) {
	g.Libraries++
	g.Size += l.Size
	rest := l.Size
	for kind, codes := range map[string][]facts.Code{"sass": l.SASS, "ptx": l.PTX, "lto-ir": l.LTO} {
		for _, c := range codes {
			g.sums[archName(kind, c.Arch)] += c.Size
			rest -= c.Size
		}
	}
	if len(l.ROCm) > 0 {
		g.sums[rocmName] += max(rest, 0)
	}
}

// order makes the segments, in the order of the legend.
func (g *deviceGroup) order(archs []archClass) {
	for _, a := range append(slices.Clone(archs), archClass{Kind: "rocm", Name: rocmName, Class: "arch-other"}) {
		if a.Size = g.sums[a.Name]; a.Size > 0 {
			g.Segments = append(g.Segments, segment{archClass: a})
		}
	}
}

// scale fills in where the segments are.
func (g *deviceGroup) scale(widest int64) {
	x := 0.0
	for i := range g.Segments {
		s := &g.Segments[i]
		s.X, s.Width = x, 1000*float64(s.Size)/float64(widest)
		x += s.Width
	}
}

func archName(kind, arch string) string {
	return map[string]string{"sass": "sm_", "ptx": "PTX ", "lto-ir": "LTO "}[kind] + arch
}

// archList names the architectures of code: "80 90a".
func archList(codes []facts.Code) string {
	names := make([]string, 0, len(codes))
	for _, c := range codes {
		names = append(names, c.Arch)
	}
	return strings.Join(names, " ")
}

// Machine names the architectures of machine code.
func (d *device) Machine(l facts.Library) string { return archList(l.SASS) }

// PTX names the architectures of PTX with its highest version.
func (d *device) PTX(l facts.Library) string {
	if v := facts.HighestPTX(l.PTX); v != "" {
		return archList(l.PTX) + " (" + v + ")"
	}
	return archList(l.PTX)
}

// Links names the input of links and code for other makers' GPUs.
func (d *device) Links(l facts.Library) string {
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
	case c.None() > 0:
		return "some"
	case c.Partly > 0:
		return "all, some in part"
	}
	return "all, some by PTX"
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
