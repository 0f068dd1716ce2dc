package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sconce.dev/sconce/internal/cuda"

	"sconce.dev/sconce/internal/fatbin"
)

// GPUReport says which device code an image has. All sizes are those of the code as it is in the files, in bytes.
type GPUReport struct {
	Size          int64        `json:"size"`
	Libraries     []Library    `json:"libraries"`     // the largest first
	Groups        []Group      `json:"groups"`        // the largest first
	Architectures []ArchTotal  `json:"architectures"` // by architecture
	Capabilities  []Capability `json:"capabilities"`  // those of NVIDIA's chips that some library has code for
	Warnings      []string     `json:"warnings"`      // of files that could not be understood in full
}

// Library is a file with device code. All of it but Path and Group is kept in the store, as JSON: see [factsVersion].
type Library struct {
	Path    string        `json:"path"`
	Group   string        `json:"group"` // the Python package, or else the directory
	Format  fatbin.Format `json:"format"`
	Size    int64         `json:"size"`
	SASS    []Code        `json:"sass,omitempty"`  // machine code
	PTX     []Code        `json:"ptx,omitempty"`   // which the driver compiles
	LTO     []Code        `json:"ltoIR,omitempty"` // input of links
	ROCm    []string      `json:"rocm,omitempty"`  // the targets of code for AMD's GPUs; not in the sizes
	Damaged bool          `json:"damaged,omitempty"`

	// Linked is whether programs run the code as it is. That of archives and object files is input of a link and counts for no
	// capability.
	Linked bool `json:"linked"`
	// Regions are the sets of code that are registered when the library is loaded, and Own those that it loads by its own
	// means. Only of the first is it known that a program needs all of them.
	Regions int `json:"regions"`
	Own     int `json:"ownRegions,omitempty"`
	// Parts are those of the registered regions whose code is meant for any GPU: not those for one GPU only, nor empty ones.
	Parts     int       `json:"parts,omitempty"`
	PartsSize int64     `json:"partsSize,omitempty"`
	Runs      []Support `json:"runs,omitempty"` // for which capabilities there is any code
}

// Code is the code for an architecture.
type Code struct {
	Arch string `json:"arch"` // "80", "90a", "100f"
	Size int64  `json:"size"`
	Own  int64  `json:"ownSize,omitempty"`    // of Size, in regions that the library loads by its own means
	PTX  string `json:"ptxVersion,omitempty"` // the highest version of the PTX ISA: "8.4"
}

// Architecture is Arch in its parts. It is zero when Arch is not an architecture.
func (c *Code) Architecture() fatbin.Arch { return fatbin.ParseArch(c.Arch) }

// Support is how a library runs on GPUs of a compute capability.
type Support struct {
	Capability string `json:"capability"`            // "9.0"
	How        string `json:"how"`                   // "native" or "ptx": the best that any region has
	PTX        int    `json:"ptxRegions,omitempty"`  // registered regions that run by PTX only
	Version    string `json:"ptxVersion,omitempty"`  // of the PTX ISA that the driver must know for these
	Zstd       int    `json:"zstdRegions,omitempty"` // registered regions whose code for it is compressed by zstd

	Lacking     int   `json:"lackingParts,omitempty"` // parts that have nothing for it
	LackingSize int64 `json:"lackingSize,omitempty"`
	Partly      bool  `json:"partly,omitempty"` // whether so many or such parts lack code that a program may need them
}

// Group is a Python package, or a directory elsewhere.
type Group struct {
	Name      string `json:"name"`
	Libraries int    `json:"libraries"`
	Size      int64  `json:"size"`
}

// ArchTotal is the code for an architecture in all libraries.
type ArchTotal struct {
	Kind      string `json:"kind"` // "sass", "ptx" or "lto-ir"
	Arch      string `json:"arch"`
	Libraries int    `json:"libraries"`
	Size      int64  `json:"size"`
}

// Capability says how many of the linked libraries run on GPUs of a compute capability.
type Capability struct {
	Capability string   `json:"capability"`
	Native     int      `json:"native"`               // with machine code
	PTX        int      `json:"ptx"`                  // only by PTX
	Version    string   `json:"ptxVersion,omitempty"` // of the PTX ISA that these need, the highest
	Driver     string   `json:"ptxDriver,omitempty"`  // that compiles it: "550 or newer"
	Partly     int      `json:"partly"`               // of these two, libraries that lack code for parts, see Support
	Without    []string `json:"without,omitempty"`    // paths of the libraries that have none
}

const (
	maxWarnings = 100 // and one that says so
	maxArchs    = 100 // of one kind in one library
)

// GPU reads the device code's headers in all files, but those whose code the store knows. A file that is damaged gives a
// warning in the report, and what could be read of it counts. Errors are those of the image and of ctx.
func GPU(ctx context.Context, files Files) (*GPUReport, error) {
	found, err := files.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for device code: %w", err)
	}
	return gpuReport(found), nil
}

// gpuReport sums up what is in the files.
func gpuReport(found []scanned) *GPUReport {
	g := gpuScan{report: &GPUReport{Libraries: []Library{}, Warnings: []string{}}}
	for i := range found {
		f := &found[i]
		for _, w := range f.CodeDamage {
			g.warn("%s: %s", f.path, w)
		}
		if f.Library != nil {
			g.report.Libraries = append(g.report.Libraries, *f.Library)
		}
	}
	g.finish()
	return g.report
}

type gpuScan struct {
	report   *GPUReport
	warnings int
}

func (g *gpuScan) warn(format string, args ...any) {
	if g.warnings++; g.warnings <= maxWarnings {
		g.report.Warnings = append(g.report.Warnings, fmt.Sprintf(format, args...))
	}
}

// deviceCode reads the device code of a file: nil when it has none. What is wrong with it is said in damage. The error is one of
// reading the file.
func deviceCode(f File) (l *Library, damage []string, err error) {
	code, err := fatbin.Scan(f.Content, f.Size, fatbin.Options{})
	if errors.Is(err, fatbin.ErrFormat) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for i, p := range code.Problems {
		if i == 3 { // the first tell enough
			damage = append(damage, fmt.Sprintf("%d more problems", len(code.Problems)-i))
			break
		}
		damage = append(damage, p.String())
	}
	if found := NewLibrary(f, code); len(code.Regions)+len(found.ROCm) > 0 {
		l = &found
	}
	return l, damage, nil
}

// NewLibrary sums up the code of a file.
func NewLibrary(file File, f *fatbin.File) Library {
	l := Library{
		Path: file.Path, Group: GroupOf(file.Path), Format: f.Format, Damaged: len(f.Problems) > 0,
		Linked: f.Linked || f.Format == fatbin.Fatbin || f.Format == fatbin.Cubin || f.Format == fatbin.PTXText,
		ROCm:   rocmTargets(f.Bundles),
	}
	set, sizes := sortCode(f), codeSizes{}
	l.Regions, l.Own, l.Parts, l.PartsSize = len(set.registered), len(set.own), len(set.parts), set.partsSize
	for i := range f.Regions {
		l.Size += f.Regions[i].Size
	}
	for _, r := range slices.Concat(set.registered, set.linkable) {
		sizes.addRegion(r, false)
	}
	for _, r := range set.own {
		sizes.addRegion(r, true)
	}
	for _, b := range f.Bundles {
		l.Size += min(max(b.Size, 0), file.Size)
	}
	l.SASS, l.PTX, l.LTO = sizes.list(kindSASS), sizes.list(kindPTX), sizes.list(kindLTO)
	if l.Linked {
		l.Runs = set.runs()
	}
	return l
}

// The kinds of code.
const (
	kindSASS = "sass"
	kindPTX  = "ptx"
	kindLTO  = "lto-ir"
)

func kindOf(k fatbin.Kind) string {
	switch k {
	case fatbin.ELFImage, fatbin.AlternativeELF:
		return kindSASS
	case fatbin.PTX, fatbin.RelocatablePTX:
		return kindPTX
	case fatbin.LTOIR:
		return kindLTO
	}
	return ""
}

// codeSizes are the sums for each kind and architecture.
type codeSizes map[string]map[fatbin.Arch]*Code

func (s codeSizes) addRegion(r *fatbin.Region, own bool) {
	for i := range r.Entries {
		s.addEntry(&r.Entries[i], own)
	}
}

func (s codeSizes) addEntry(e *fatbin.Entry, own bool) {
	if e.Kind != fatbin.Concatenated {
		s.add(e, e.HeaderSize+e.PaddedSize, own)
		return
	}
	// Images that are compressed as one share its size as they share the unpacked payload.
	var all float64
	for i := range e.Parts {
		all += float64(e.Parts[i].PaddedSize)
	}
	for i := range e.Parts {
		p := &e.Parts[i]
		share := 1 / float64(len(e.Parts))
		if all > 0 {
			share = float64(p.PaddedSize) / all
		}
		s.add(p, int64(share*float64(e.HeaderSize+e.PaddedSize)), own)
	}
}

func (s codeSizes) add(e *fatbin.Entry, size int64, own bool) {
	kind := kindOf(e.Kind)
	if s[kind] == nil {
		s[kind] = map[fatbin.Arch]*Code{}
	}
	c := s[kind][e.Arch]
	if c == nil {
		if len(s[kind]) >= maxArchs { // there are not so many, but for a damaged file
			return
		}
		c = &Code{Arch: e.Arch.Name()}
		s[kind][e.Arch] = c
	}
	c.Size += size
	if own {
		c.Own += size
	}
	if v := (cuda.PTX{Major: e.Major, Minor: e.Minor}); kind == kindPTX && v.Compare(cuda.ParsePTX(c.PTX)) > 0 {
		c.PTX = v.String()
	}
}

func (s codeSizes) list(kind string) []Code {
	var list []Code
	for _, a := range slices.SortedFunc(maps.Keys(s[kind]), compareArchs) {
		list = append(list, *s[kind][a])
	}
	return list
}

func compareArchs(a, b fatbin.Arch) int {
	return cmp.Or(cmp.Compare(a.SM, b.SM), cmp.Compare(a.Variant, b.Variant))
}

// finish makes the sums.
func (g *gpuScan) finish() {
	r := g.report
	if more := g.warnings - maxWarnings; more > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d more warnings", more))
	}
	slices.SortFunc(r.Libraries, func(a, b Library) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Path, b.Path))
	})
	for i := range r.Libraries {
		r.Size += r.Libraries[i].Size
	}
	r.Groups = groupTotals(r.Libraries)
	r.Architectures = archTotals(r.Libraries)
	r.Capabilities = capabilities(r.Libraries)
}

func groupTotals(libraries []Library) []Group {
	totals := map[string]*Group{}
	for i := range libraries {
		l := &libraries[i]
		t := totals[l.Group]
		if t == nil {
			t = &Group{Name: l.Group}
			totals[l.Group] = t
		}
		t.Libraries++
		t.Size += l.Size
	}
	list := make([]Group, 0, len(totals))
	for _, t := range totals {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b Group) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	return list
}

func archTotals(libraries []Library) []ArchTotal {
	list := []ArchTotal{}
	for _, kind := range []string{kindSASS, kindPTX, kindLTO} {
		totals := map[fatbin.Arch]*ArchTotal{}
		for i := range libraries {
			for _, c := range libraries[i].code(kind) {
				arch := c.Architecture()
				t := totals[arch]
				if t == nil {
					t = &ArchTotal{Kind: kind, Arch: c.Arch}
					totals[arch] = t
				}
				t.Libraries++
				t.Size += c.Size
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(totals), compareArchs) {
			list = append(list, *totals[a])
		}
	}
	return list
}

func (l *Library) code(kind string) []Code {
	switch kind {
	case kindSASS:
		return l.SASS
	case kindPTX:
		return l.PTX
	}
	return l.LTO
}

// hasCUDA is whether the library has code that a program runs on NVIDIA's GPUs.
func (l *Library) hasCUDA() bool { return l.Linked && l.Regions+l.Own > 0 }

// HasKernels is whether the library has CUDA code in an amount that somebody would miss.
func (l *Library) HasKernels() bool { return l.hasCUDA() && l.CodeSize() > negligible }

// negligible is how much device code a library may have without anybody missing it, in bytes: that of a file without kernels.
const negligible = 8 << 10

// CodeSize is the size of what GPUs run or drivers compile, in bytes: all but input of links.
func (l *Library) CodeSize() int64 {
	var sum int64
	for _, c := range slices.Concat(l.SASS, l.PTX) {
		sum += c.Size
	}
	return sum
}

// isLeftover is whether there is nothing but what the linker made of code without kernels, as in libcufftw.
func (l *Library) isLeftover() bool {
	return l.Format == fatbin.ELF && l.Regions == 0 && l.CodeSize() <= negligible
}

func capabilities(libraries []Library) []Capability {
	list := []Capability{}
	for _, sm := range fatbin.Devices() {
		c := Capability{Capability: fatbin.Capability(sm)}
		for i := range libraries {
			if l := &libraries[i]; l.hasCUDA() && !l.isLeftover() {
				c.add(&libraries[i])
			}
		}
		if c.Native+c.PTX > 0 {
			list = append(list, c)
		}
	}
	return list
}

func (c *Capability) add(l *Library) {
	i := slices.IndexFunc(l.Runs, func(s Support) bool { return s.Capability == c.Capability })
	if i < 0 {
		c.Without = append(c.Without, l.Path)
		return
	}
	s := l.Runs[i]
	if l.PartlyFor(c.Capability) {
		c.Partly++
	}
	if s.How == fatbin.Native.String() {
		c.Native++
		return
	}
	c.PTX++
	if v := cuda.ParsePTX(s.Version); v.Compare(cuda.ParsePTX(c.Version)) > 0 {
		c.Version, c.Driver = s.Version, cuda.DriverForPTX(v)
	}
}
