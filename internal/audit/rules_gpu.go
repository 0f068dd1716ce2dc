package audit

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/units"
)

// gpuRules are about the device code of an image and the GPUs that are to run it.
var gpuRules = []Rule{
	{
		ID: "gpu-no-code", Severity: Error,
		Title: "Libraries without code for the GPU",
		Why: "The first kernel that such a library starts ends with \"no kernel image is available for execution on the device\": there is " +
			"neither machine code that this GPU runs nor PTX that the driver could compile for it.",
		Remedy: "take a build of the package for this GPU (for torch another [python] torch-backend or version), or " + compileForTarget,
		look:   lookNoCode,
	},
	{
		ID: "gpu-ptx-only", Severity: Warning,
		Title: "Libraries that run by PTX only",
		Why: "The driver compiles PTX at the first start on each node, which takes minutes for large libraries and is done again where " +
			"the cache in ~/.nv is not kept; the code is that of an older GPU, without the new one's units. A driver older than the PTX " +
			"refuses it: \"the provided PTX was compiled with an unsupported toolchain\".",
		Remedy: "take a build of the package with machine code for this GPU, or " + compileForTarget,
		look:   lookPTXOnly,
	},
	{
		ID: "gpu-part-without-code", Severity: Warning,
		Title: "Libraries of which a part has no code for the GPU",
		Why: "The library loads and its other kernels run, but those of this part end with \"no kernel image is available for " +
			"execution on the device\", possibly hours into a job.",
		Remedy: "test what you use of the library on this GPU, or take a build of the package in which all files were compiled for it",
		look:   lookPartWithoutCode,
	},
	{
		ID: "gpu-slimmed-for-other", Severity: Error,
		Title: "Images slimmed for other GPUs",
		Why: "sconce slim took out the device code that the GPUs it was told of cannot run. Kernels that only another GPU has code for " +
			"are gone: the first one to start ends with \"no kernel image is available for execution on the device\".",
		Remedy: "take the image from before it was slimmed, or slim that one for all of the GPUs: sconce slim IMAGE --gpu 8.0,9.0 -o OUT",
		look:   lookSlimmed,
	},
	{
		ID: "gpu-arch-list", Severity: Warning,
		Title: "TORCH_CUDA_ARCH_LIST without the GPU",
		Why: "PyTorch compiles extensions in this image for the architectures of TORCH_CUDA_ARCH_LIST only, and with PTX only for those " +
			"marked +PTX. What is compiled here or on the cluster will not run on this GPU.",
		Remedy: `set the variable to the GPUs of the target, in the recipe: [image] env = { TORCH_CUDA_ARCH_LIST = "9.0+PTX" }`,
		look:   lookArchList,
	},
	{
		ID: "gpu-unneeded-code", Severity: Note,
		Title:  "Device code for other GPUs",
		Why:    "Code that no GPU of the target can run makes the image larger to store and to load, and is of no other effect.",
		Remedy: "take it out: sconce slim IMAGE --gpu 9.0 -o OUT, or [slim] gpu = true in the recipe",
		look:   lookUnneededCode,
	},
	{
		ID: "gpu-rocm", Severity: Error,
		Title:  "Code for AMD's GPUs on a cluster with NVIDIA's",
		Why:    "The libraries were built with ROCm, whose code no GPU of NVIDIA's runs; torch says that there is no GPU.",
		Remedy: `install the CUDA builds of the packages: for torch, [python] torch-backend = "cu128" in the recipe, or another CUDA that the driver takes`,
		look:   lookROCm,
	},
}

// compileForTarget says how a package gets code for a GPU.
const compileForTarget = "have it compiled for the target's GPUs: [python.compile.NAME] with isolation = false and cuda = true in the recipe"

// gpus are the compute capabilities of the target, as 90 for 9.0. Anything else is left out: whoever read the profile has complained of it.
func (s *Subject) gpus() []int {
	list, err := fatbin.ParseGPUs(s.Target.GPU)
	if err != nil {
		return nil
	}
	return list
}

// slimmedTo are the capabilities that an image was slimmed to, nil when it was not.
func (s *Subject) slimmedTo() []int {
	list, err := fatbin.ParseGPUs([]string{s.Config.Labels[image.LabelSlim]})
	if err != nil {
		return nil
	}
	return list
}

// judgedGPUs are those of the target's GPUs whose code is worth a look: not those that slimming has left out.
func (s *Subject) judgedGPUs() []int {
	if s.GPU == nil {
		return nil
	}
	list, slim := s.gpus(), s.slimmedTo()
	if len(slim) > 0 {
		list = slices.DeleteFunc(list, func(sm int) bool { return !slices.Contains(slim, sm) })
	}
	return list
}

// The names of libraries that do without code for a GPU.
var (
	// tools watch other programs, and have code for every GPU that they know.
	toolLibrary = lazyregexp.New(`^lib(cupti|checkpoint|nvperf_\w+|sanitizer\w*|InterceptorInjection\w*|TreeLauncher\w*|nvToolsExt)\b`)
	// optionalLibrary are NVIDIA's and PyTorch's libraries that are made for some GPUs only, or that few programs use; those
	// that use them ask first or are told with an error of the library's.
	optionalLibrary = lazyregexp.New(`^lib(cusparseLt|cufile|cufftw|cusolverMg|cudss\w*|cutensor\w*|nvshmem\w*|torch_nvshmem|nvjpeg\w*|npp\w+|` +
		`nvinfer\w*|cudnn_engines_(runtime_compiled|tensor_ir))\b`)
	// oneGPU are names of libraries that have one for each architecture, or that are for one only, and are chosen by the GPU.
	oneGPU = lazyregexp.New(`(?i)(^|[_/.-])(sm_?\d{2,3}[af]?|\d{2,3}[af]|compute_?\d+|fa3|flash_attn_3|hopper|blackwell|ampere|flashmla)([_/.-]|$)`)
)

// coreLibrary are the libraries without which PyTorch does nothing.
var coreLibrary = lazyregexp.New(`^lib(torch_cuda\w*|torch_hip|c10_cuda)\b`)

// reach is how much a library matters on a GPU that it has no code for.
type reach int

const (
	harmless reach = iota // nobody will miss it
	optional              // chosen or not by the GPU, but nothing of the package has code for it
	needed
)

// reachOf judges a library for a capability that it has no code for, or not as good code as a copy of it.
func (s *Subject) reachOf(l *facts.Library, sm int) reach {
	inPackage := !strings.HasPrefix(l.Group, "/")
	switch {
	case !counts(l), s.hasBetterCopy(l, sm):
		return harmless
	case coreLibrary.MatchString(path.Base(l.Path)), facts.OfToolkit(l.Path):
		return needed
	case inPackage && s.packageRunsOn(l, sm): // it chooses, as vLLM does among its attention kernels
		return harmless
	case l.Regions == 0, forSpecificGPUs(l), oneGPU.MatchString(inPackageOf(l)):
		return optional
	case inPackage && lowest(l) > sm: // kernels that need what only newer GPUs have
		return optional
	}
	return needed
}

// counts is whether a library is one that programs may need code of.
func counts(l *facts.Library) bool {
	base := path.Base(l.Path)
	return l.HasKernels() && l.Format == fatbin.ELF && !toolLibrary.MatchString(base) && !optionalLibrary.MatchString(base)
}

// packageRunsOn is whether another library of the same Python package has code for a capability.
func (s *Subject) packageRunsOn(l *facts.Library, sm int) bool {
	return slices.ContainsFunc(s.GPU.Libraries, func(o facts.Library) bool {
		return o.Group == l.Group && o.Path != l.Path && o.Linked && o.SupportFor(sm) != nil
	})
}

// lowest is the oldest capability that the library has code for.
func lowest(l *facts.Library) int {
	least := math.MaxInt
	for _, c := range slices.Concat(l.SASS, l.PTX) {
		least = min(least, c.Architecture().SM)
	}
	return least
}

// inPackageOf is the path of a library from its package on.
func inPackageOf(l *facts.Library) string {
	for _, dir := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex("/"+l.Path, dir); i >= 0 {
			return ("/" + l.Path)[i+len(dir):]
		}
	}
	return path.Base(l.Path)
}

// forSpecificGPUs is whether all code is for one GPU or family: sm_90a and sm_100f, as in kernels written for one chip.
func forSpecificGPUs(l *facts.Library) bool {
	return !slices.ContainsFunc(slices.Concat(l.SASS, l.PTX), func(c facts.Code) bool { return c.Architecture().Variant == "" })
}

// hasBetterCopy is whether another copy of a library has better code for a capability: of two versions of cuBLAS, or of
// libbitsandbytes_cuda118 and libbitsandbytes_cuda128, programs take one.
func (s *Subject) hasBetterCopy(l *facts.Library, sm int) bool {
	for i := range s.GPU.Libraries {
		o := &s.GPU.Libraries[i]
		if o != l && o.Linked && facts.Stem(o.Path) == facts.Stem(l.Path) && o.SupportAs(sm) > l.SupportAs(sm) {
			return true
		}
	}
	return false
}

// withoutCode are the libraries that have none for a capability and matter as much as is said.
func (s *Subject) withoutCode(sm int, want reach) []*facts.Library {
	var list []*facts.Library
	for i := range s.GPU.Libraries {
		if l := &s.GPU.Libraries[i]; l.SupportFor(sm) == nil && s.reachOf(l, sm) == want {
			list = append(list, l)
		}
	}
	return list
}

func lookNoCode(s *Subject, report func(Finding)) error {
	for _, sm := range s.judgedGPUs() {
		if list := s.withoutCode(sm, needed); len(list) > 0 {
			report(Finding{
				Message: fmt.Sprintf("%s %s no code for compute capability %s", libraryNames(list), has(list), fatbin.Capability(sm)),
				Path:    list[0].Path, Seen: seenCode(list),
			})
			continue
		}
		if list := s.withoutCode(sm, optional); len(list) > 0 {
			report(Finding{
				Severity: Note,
				Message: fmt.Sprintf("%s %s no code for compute capability %s, and may not need any",
					libraryNames(list), has(list), fatbin.Capability(sm)),
				Path: list[0].Path, Seen: seenCode(list),
				Why: "The library was made for other GPUs, and packages that have such libraries mostly leave them alone where they do not " +
					"run. A program that insists on one fails on this GPU.",
				Remedy: "nothing, unless your program insists on the library",
			})
		}
	}
	return nil
}

// libraryNames names the first of a list, which is the largest, and counts the others.
func libraryNames(list []*facts.Library) string {
	name := path.Base(list[0].Path)
	switch n := len(list) - 1; n {
	case 0:
		return name
	case 1:
		return name + " and 1 other library"
	default:
		return fmt.Sprintf("%s and %d other libraries", name, n)
	}
}

func has(list []*facts.Library) string {
	if len(list) == 1 {
		return "has"
	}
	return "have"
}

// seenCode says of each library what it has code for.
func seenCode(list []*facts.Library) []string {
	seen := make([]string, 0, len(list))
	for _, l := range list {
		seen = append(seen, rooted(l.Path)+": "+codeWords(l))
	}
	return seen
}

// codeWords lists the code: "machine code 8.0 9.0a, PTX 9.0".
func codeWords(l *facts.Library) string {
	words := func(list []facts.Code) string {
		names := make([]string, 0, len(list))
		for _, c := range list {
			names = append(names, fatbin.Capability(c.Architecture().SM)+c.Architecture().Variant)
		}
		return strings.Join(names, " ")
	}
	switch {
	case len(l.PTX) == 0:
		return "machine code " + words(l.SASS) + ", no PTX"
	case len(l.SASS) == 0:
		return "PTX " + words(l.PTX) + ", no machine code"
	}
	return "machine code " + words(l.SASS) + ", PTX " + words(l.PTX)
}

// compiled is a library that runs by PTX only.
type compiled struct {
	*facts.Library

	version cuda.PTX
}

// compiledOn are the libraries that matter and run by PTX only on a capability, those with the newest PTX first.
func (s *Subject) compiledOn(sm int) []compiled {
	var list []compiled
	for i := range s.GPU.Libraries {
		l := &s.GPU.Libraries[i]
		support := l.SupportFor(sm)
		if support == nil || support.How != fatbin.Compiled.String() || s.reachOf(l, sm) != needed {
			continue
		}
		list = append(list, compiled{l, cuda.ParsePTX(support.Version)})
	}
	slices.SortStableFunc(list, func(a, b compiled) int {
		return cmp.Or(b.version.Compare(a.version), cmp.Compare(b.Size, a.Size))
	})
	return list
}

func lookPTXOnly(s *Subject, report func(Finding)) error {
	driver := s.userDriver()
	if s.driverTooOld() {
		driver = nil // it does not come to that
	}
	for _, sm := range s.judgedGPUs() {
		list := s.compiledOn(sm)
		var refused, taken []*facts.Library
		for _, c := range list {
			if driver != nil && !driver.Compiles(c.version) {
				refused = append(refused, c.Library)
			} else {
				taken = append(taken, c.Library)
			}
		}
		if len(refused) > 0 {
			newest := list[0].version
			report(Finding{
				Severity: refusedSeverity(refused),
				Message: fmt.Sprintf("%s %s only PTX %v for compute capability %s, which needs driver %s, and the target has %s",
					libraryNames(refused), has(refused), newest, fatbin.Capability(sm), cuda.DriverForPTX(newest), driver),
				Path: refused[0].Path, Seen: seenPTX(refused, sm),
				Why: "The driver compiles PTX only of versions that it knows, and ends with \"the provided PTX was compiled with an " +
					"unsupported toolchain\". Minor-version compatibility does not cover PTX.",
			})
		}
		if len(taken) > 0 {
			report(Finding{
				Message: fmt.Sprintf("%s %s no machine code for compute capability %s, but PTX that the driver compiles%s",
					libraryNames(taken), has(taken), fatbin.Capability(sm), firstDriver(taken, sm)),
				Path: taken[0].Path, Seen: seenPTX(taken, sm),
			})
		}
	}
	return nil
}

// refusedSeverity is an error when PyTorch or one of NVIDIA's libraries, or a program, cannot run. Of a package's own kernels it
// is not known whether they are used.
func refusedSeverity(list []*facts.Library) Severity {
	for _, l := range list {
		if coreLibrary.MatchString(path.Base(l.Path)) || facts.OfToolkit(l.Path) || strings.HasPrefix(l.Group, "/") {
			return Error
		}
	}
	return Warning
}

// firstDriver says which driver compiles the newest PTX of libraries.
func firstDriver(list []*facts.Library, sm int) string {
	var newest cuda.PTX
	for _, l := range list {
		if v := cuda.ParsePTX(l.SupportFor(sm).Version); v.Compare(newest) > 0 {
			newest = v
		}
	}
	if from := cuda.DriverForPTX(newest); from != "" {
		return " if it is " + from
	}
	return ""
}

func seenPTX(list []*facts.Library, sm int) []string {
	seen := make([]string, 0, len(list))
	for _, l := range list {
		text := rooted(l.Path) + ": PTX"
		if v := l.SupportFor(sm).Version; v != "" {
			text += " of version " + v
		}
		if from := cuda.DriverForPTX(cuda.ParsePTX(l.SupportFor(sm).Version)); from != "" {
			text += ", for driver " + from
		}
		seen = append(seen, text)
	}
	return seen
}

func lookPartWithoutCode(s *Subject, report func(Finding)) error {
	for _, sm := range s.judgedGPUs() {
		var list []*facts.Library
		var seen []string
		for i := range s.GPU.Libraries {
			l := &s.GPU.Libraries[i]
			if !counts(l) || !l.PartlyFor(fatbin.Capability(sm)) {
				continue
			}
			c := l.SupportFor(sm)
			list = append(list, l)
			seen = append(seen, fmt.Sprintf("%s: %d of %d parts, %s of %s", rooted(l.Path), c.Lacking, l.Parts, units.Size(c.LackingSize), units.Size(l.PartsSize)))
		}
		if len(list) > 0 {
			report(Finding{
				Message: fmt.Sprintf("%s %s code for compute capability %s, but not in all parts: %d of %d lack it",
					libraryNames(list), has(list), fatbin.Capability(sm), list[0].SupportFor(sm).Lacking, list[0].Parts),
				Path: list[0].Path, Seen: seen,
			})
		}
	}
	return nil
}

func lookSlimmed(s *Subject, report func(Finding)) error {
	slim := s.slimmedTo()
	if len(slim) == 0 {
		return nil
	}
	for _, sm := range s.gpus() {
		if !slices.Contains(slim, sm) {
			report(Finding{
				Message: fmt.Sprintf("the image was slimmed for compute capability %s, and the target has %s",
					capabilityNames(slim), fatbin.Capability(sm)),
				Seen: []string{"label " + image.LabelSlim + ": " + s.Config.Labels[image.LabelSlim]},
			})
		}
	}
	return nil
}

func capabilityNames(list []int) string {
	names := make([]string, 0, len(list))
	for _, sm := range list {
		names = append(names, fatbin.Capability(sm))
	}
	return strings.Join(names, ", ")
}

// torchNames are what TORCH_CUDA_ARCH_LIST may say in place of numbers (PyTorch, torch/utils/cpp_extension.py).
var torchNames = map[string]string{
	"maxwell": "5.0 5.2", "pascal": "6.0 6.1+PTX", "volta": "7.0+PTX", "turing": "7.5+PTX", "ampere": "8.0 8.6+PTX",
	"ada": "8.9+PTX", "hopper": "9.0+PTX", "blackwell": "10.0 10.3 12.0 12.1+PTX",
}

// archList reads a TORCH_CUDA_ARCH_LIST as code. It is false for one with words that are not known.
func archList(value string) (list []fatbin.Entry, ok bool) {
	for _, name := range strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ';' || r == ',' }) {
		if known, ok := torchNames[strings.ToLower(name)]; ok {
			more, _ := archList(known)
			list = append(list, more...)
			continue
		}
		arch, ptx := strings.CutSuffix(name, "+PTX")
		number := strings.TrimRight(arch, "af")
		sm, err := fatbin.ParseGPUs([]string{number})
		if err != nil {
			return nil, false
		}
		a := fatbin.Arch{SM: sm[0], Variant: arch[len(number):]}
		list = append(list, fatbin.Entry{Kind: fatbin.ELFImage, Arch: a})
		if ptx {
			list = append(list, fatbin.Entry{Kind: fatbin.PTX, Arch: a})
		}
	}
	return list, len(list) > 0
}

func lookArchList(s *Subject, report func(Finding)) error {
	value, _ := s.Env("TORCH_CUDA_ARCH_LIST")
	list, ok := archList(value)
	if !ok {
		return nil
	}
	region := fatbin.Region{Entries: list}
	for _, sm := range s.gpus() {
		seen := []string{"TORCH_CUDA_ARCH_LIST=" + quoteValue(value)}
		switch region.Support(sm) {
		case fatbin.Unsupported:
			report(Finding{
				Message: fmt.Sprintf("TORCH_CUDA_ARCH_LIST has nothing that runs on compute capability %s: extensions built in this image will "+
					"have no code for it", fatbin.Capability(sm)),
				Seen: seen,
			})
		case fatbin.Compiled:
			report(Finding{
				Severity: Note,
				Message: fmt.Sprintf("TORCH_CUDA_ARCH_LIST has only PTX for compute capability %s: extensions built in this image will be "+
					"compiled by the driver", fatbin.Capability(sm)),
				Seen: seen,
				Why:  "The driver compiles PTX at the first start on each node, for an older GPU than the one there is.",
			})
		}
	}
	return nil
}

// unneededSize is from how much code on that slimming is worth a note, in bytes.
const unneededSize = 200_000_000

func lookUnneededCode(s *Subject, report func(Finding)) error {
	gpus := s.gpus()
	if s.GPU == nil || len(gpus) == 0 {
		return nil
	}
	if slices.ContainsFunc(gpus, func(sm int) bool { return len(s.withoutCode(sm, needed)) > 0 }) {
		return nil // it has to be built again first
	}
	type waste struct {
		library *facts.Library
		size    int64
	}
	var list []waste
	var all, unneeded int64
	for i := range s.GPU.Libraries {
		l := &s.GPU.Libraries[i]
		all += l.CodeSize()
		if w := unneededSizeOf(l, gpus); w > 0 {
			list = append(list, waste{l, w})
			unneeded += w
		}
	}
	if unneeded < unneededSize {
		return nil
	}
	slices.SortStableFunc(list, func(a, b waste) int { return cmp.Compare(b.size, a.size) })
	var seen []string
	for _, w := range list[:min(len(list), 10)] {
		seen = append(seen, fmt.Sprintf("%s: %s of %s", rooted(w.library.Path), units.Size(w.size), units.Size(w.library.CodeSize())))
	}
	report(Finding{
		Message: fmt.Sprintf("%s of %s of device code are for other GPUs than %s", units.Size(unneeded), units.Size(all), capabilityNames(gpus)),
		Seen:    seen,
		Remedy:  fmt.Sprintf("take it out: sconce slim IMAGE --gpu %s -o OUT, or [slim] gpu = true in the recipe", quote.Word(strings.ReplaceAll(capabilityNames(gpus), ", ", ","))),
	})
	return nil
}

// unneededSizeOf is the size of the machine code that none of the capabilities can run, in bytes. Code that the library loads by its
// own means is not counted, for slimming leaves it alone; nor is what is input of links.
func unneededSizeOf(l *facts.Library, gpus []int) int64 {
	if !l.Linked || l.Damaged || l.Format != fatbin.ELF {
		return 0
	}
	var sum int64
	for _, c := range l.SASS {
		e := fatbin.Entry{Kind: fatbin.ELFImage, Arch: c.Architecture()}
		if !slices.ContainsFunc(gpus, func(sm int) bool { return e.Support(sm) == fatbin.Native }) {
			sum += c.Size - c.Own
		}
	}
	return sum
}

func lookROCm(s *Subject, report func(Finding)) error {
	if s.GPU == nil || len(s.gpus()) == 0 {
		return nil
	}
	var list []*facts.Library
	var seen []string
	for i := range s.GPU.Libraries {
		switch l := &s.GPU.Libraries[i]; {
		case l.HasKernels() && !toolLibrary.MatchString(path.Base(l.Path)):
			return nil // it has both
		case len(l.ROCm) > 0 && l.Linked:
			list = append(list, l)
			seen = append(seen, rooted(l.Path)+": "+strings.Join(l.ROCm, " "))
		}
	}
	if len(list) > 0 {
		report(Finding{
			Message: fmt.Sprintf("%s %s code for AMD's GPUs and the image none for NVIDIA's, which the target has", libraryNames(list), has(list)),
			Path:    list[0].Path, Seen: seen,
		})
	}
	return nil
}
