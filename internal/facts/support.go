package facts

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cuda"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Sizes below which an image holds no kernel, in bytes unpacked. nvcc makes an image for each architecture of each source file,
// and where the file has nothing for one, of that architecture: the cubin without code is 2.5 kB in CUDA 13, 1 kB in CUDA 12.
const (
	emptyCubin = 2560
	emptyPTX   = 512
)

// Shares of the parts of a library, in quarters, that must lack code before a program is likely to miss it. Less are the few
// kernels that a library does without on some GPUs. Parts for newer GPUs only are mostly so on purpose, as their kernels need
// what older ones do not have.
const (
	partlyOlder = 1 // parts for older GPUs, without PTX
	partlyNewer = 3
)

// HighestPTX is the highest version of the PTX ISA in a list, "" when there is no PTX.
func HighestPTX(list []Code) string {
	var highest cuda.PTX
	for _, c := range list {
		if v := cuda.ParsePTX(c.PTX); v.Compare(highest) > 0 {
			highest = v
		}
	}
	return highest.String()
}

// codeSet is the code of a file, sorted by how a program comes to it.
type codeSet struct {
	file       *fatbin.File
	registered []*fatbin.Region // with the library
	own        []*fatbin.Region // loaded by the program's own means
	linkable   []*fatbin.Region // that device-linked regions are linked from again
	special    []*fatbin.Region // of the registered ones, those for one architecture
	parts      []part
	partsSize  int64
}

// part is a registered region whose code is meant for any GPU: a lack of code for one is a part that will not run there.
// Other regions are for one architecture only, and the library knows which to ask for.
type part struct {
	*fatbin.Region

	lowest, highest int // capabilities
}

func sortCode(f *fatbin.File) *codeSet {
	c := &codeSet{file: f}
	for i := range f.Regions {
		r := &f.Regions[i]
		switch {
		case r.Place == fatbin.Relocatable && f.Linked:
			c.linkable = append(c.linkable, r)
		case r.Place == fatbin.Stray, r.Place == fatbin.Executable && r.Wrapper == 0 && f.Linked: // the second cannot be found by CUDA
			c.own = append(c.own, r)
		default:
			c.registered = append(c.registered, r)
		}
	}
	all := map[fatbin.Arch]bool{}
	for _, r := range c.registered {
		for e := range r.Images() {
			all[e.Arch] = true
		}
	}
	for _, r := range c.registered {
		archs := plainArchs(r)
		switch {
		case isEmpty(r):
			continue
		case len(archs) == 0, len(archs) == 1 && len(all) > 1:
			c.special = append(c.special, r)
			continue
		}
		p := part{Region: r}
		for sm := range archs {
			if p.lowest == 0 || sm < p.lowest {
				p.lowest = sm
			}
			p.highest = max(p.highest, sm)
		}
		c.parts = append(c.parts, p)
		c.partsSize += r.Size
	}
	return c
}

// plainArchs are the architectures of a region's code without those for one GPU or one family only.
func plainArchs(r *fatbin.Region) map[int]bool {
	archs := map[int]bool{}
	for e := range r.Images() {
		if kind := kindOf(e.Kind); e.Arch.Variant == "" && (kind == kindSASS || kind == kindPTX) {
			archs[e.Arch.SM] = true
		}
	}
	return archs
}

// isEmpty is whether no image of a region has a kernel.
func isEmpty(r *fatbin.Region) bool {
	for e := range r.Images() {
		limit := int64(emptyCubin)
		if kindOf(e.Kind) == kindPTX {
			limit = emptyPTX
		}
		if e.UncompressedSize > limit {
			return false
		}
	}
	return true
}

// runs tells for which devices a file has any code, in regions of either sort.
func (c *codeSet) runs() []Support {
	var list []Support
	for _, sm := range fatbin.Devices() {
		if s, ok := c.support(sm); ok {
			list = append(list, s)
		}
	}
	return list
}

func (c *codeSet) support(sm int) (Support, bool) {
	s := Support{Capability: fatbin.Capability(sm)}
	best := fatbin.Unsupported
	var version cuda.PTX
	look := func(r *fatbin.Region) way {
		w := c.way(r, sm)
		best = max(best, w.how)
		if w.how == fatbin.Compiled && w.version.Compare(version) > 0 {
			version = w.version
		}
		return w
	}
	for _, r := range c.registered {
		w := look(r)
		if w.how == fatbin.Compiled {
			s.PTX++
		}
		if w.zstd {
			s.Zstd++
		}
	}
	if best == fatbin.Unsupported {
		for _, r := range c.own {
			look(r)
		}
	}
	c.addLack(&s, sm)
	if best == fatbin.Native && s.PTX == 0 {
		version = cuda.PTX{}
	}
	s.How, s.Version = best.String(), version.String()
	return s, best != fatbin.Unsupported
}

// addLack looks for parts without code.
func (c *codeSet) addLack(s *Support, sm int) {
	if slices.ContainsFunc(c.special, func(r *fatbin.Region) bool { return wayOf(r, sm).how == fatbin.Native }) {
		return // it has kernels of its own for this GPU
	}
	var newer, newerSize int
	for i := range c.parts {
		p := &c.parts[i]
		if c.way(p.Region, sm).how != fatbin.Unsupported {
			continue
		}
		s.Lacking++
		s.LackingSize += p.Size
		switch {
		case sm < p.lowest:
			newer, newerSize = newer+1, newerSize+int(p.Size)
		case sm < p.highest: // whoever chose the architectures left a gap
			s.Partly = true
		}
	}
	isShare := func(n, size, quarters int) bool {
		return n > 0 && (4*n >= quarters*len(c.parts) || 4*size >= quarters*int(c.partsSize))
	}
	s.Partly = s.Partly || isShare(newer, newerSize, partlyNewer) ||
		isShare(s.Lacking-newer, int(s.LackingSize)-newerSize, partlyOlder)
}

// way is how a region runs on a device.
type way struct {
	how     fatbin.Support
	version cuda.PTX // of the PTX that the driver compiles, if it does
	zstd    bool     // all images that would do are compressed by zstd
}

func (c *codeSet) way(r *fatbin.Region, sm int) way {
	w := wayOf(r, sm)
	if w.how == fatbin.Unsupported && r.Wrapper == deviceLinked && len(c.linkable) > 0 {
		return c.relinked(sm)
	}
	return w
}

// deviceLinked is the version of the wrappers of regions that nvcc -rdc has linked.
const deviceLinked = 2

func wayOf(r *fatbin.Region, sm int) way {
	var w way
	for e := range r.Images() {
		how := e.Support(sm)
		switch {
		case how == fatbin.Unsupported || how < w.how:
			continue
		case how > w.how:
			w = way{how: how, zstd: true}
		}
		w.zstd = w.zstd && e.Compression == fatbin.Zstd
		v := cuda.PTX{Major: e.Major, Minor: e.Minor}
		if how == fatbin.Compiled && (w.version == cuda.PTX{} || v.Compare(w.version) < 0) {
			w.version = v
		}
	}
	return w
}

// relinked is what the driver makes of relocatable PTX where a device-linked region has no code.
func (c *codeSet) relinked(sm int) way {
	all := way{how: fatbin.Compiled, zstd: true}
	for _, r := range c.linkable {
		var ptx fatbin.Region // of the region, without the machine code that cannot be linked for another GPU
		for e := range r.Images() {
			if kindOf(e.Kind) == kindPTX {
				ptx.Entries = append(ptx.Entries, *e)
			}
		}
		w := wayOf(&ptx, sm)
		if w.how != fatbin.Compiled {
			return way{}
		}
		if w.version.Compare(all.version) > 0 {
			all.version = w.version
		}
		all.zstd = all.zstd && w.zstd
	}
	return all
}

// SupportFor returns how a library runs on a capability, as 90 for 9.0. It is nil when there is no code for it.
func (l *Library) SupportFor(sm int) *Support {
	for i := range l.Runs {
		if l.Runs[i].Capability == fatbin.Capability(sm) {
			return &l.Runs[i]
		}
	}
	return nil
}

// SupportAs is how a library runs on a capability at best.
func (l *Library) SupportAs(sm int) fatbin.Support {
	switch s := l.SupportFor(sm); {
	case s == nil:
		return fatbin.Unsupported
	case s.How == fatbin.Native.String():
		return fatbin.Native
	}
	return fatbin.Compiled
}

// PartlyFor is whether the library runs on a capability, as "9.0", but with parts that have no code for it and that
// nothing says are not needed there. NVIDIA's own libraries choose kernels by GPU, and have parts for some only.
func (l *Library) PartlyFor(capability string) bool {
	if OfToolkit(l.Path) {
		return false
	}
	for _, s := range l.Runs {
		if s.Capability == capability {
			return s.Partly
		}
	}
	return false
}

// toolkitLibrary are NVIDIA's own libraries, which know what they have code for.
var toolkitLibrary = lazyregexp.New(`^lib(cublas|cublasLt|cudnn|cudnn_\w+|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cusparseLt|` +
	`cufile|npp\w+|nvjpeg\w*|nvJitLink|nccl|nvshmem\w*|cutensor\w*|cudss|nvinfer\w*|cupti|checkpoint|nvperf_\w+)(-[0-9a-f]+|\.[0-9a-f]+)?\.(so|a)\b`)

// OfToolkit is whether the library is one of NVIDIA's own.
func (l *Library) OfToolkit() bool { return OfToolkit(l.Path) }

// OfToolkit is whether a file is, by its name, one of NVIDIA's own libraries.
func OfToolkit(name string) bool { return toolkitLibrary.MatchString(path.Base(name)) }

// Stem is what copies of a library in other places and versions are called alike: libcublas of libcublas.so.12 and of
// libcublas-1d85e7bc.so.12.4.5.8, which is a copy in a wheel.
func Stem(name string) string {
	base, _, _ := strings.Cut(path.Base(name), ".so")
	return copyMark.ReplaceAllString(base, "")
}

// copyMark is the hash by which auditwheel tells copies apart, or the version of CUDA or ROCm that a copy is for.
var copyMark = lazyregexp.New(`([-.][0-9a-f]{8}|_(cuda|rocm|cu)\d+)$`)
