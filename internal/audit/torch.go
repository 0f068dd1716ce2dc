package audit

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"

	"sconce.dev/sconce/internal/python"
)

// torchBuild is an installed PyTorch.
type torchBuild struct {
	env  *facts.Environment
	site string
	dist *facts.Distribution
	cuda string // that it was built for, "12.4"; "" without
	hip  string // of ROCm, that it was built for
	xpu  string // Intel's, likewise
	seen string // how that is known
}

// torchVersionLine is a line of torch/version.py: cuda: Optional[str] = '12.4'.
var torchVersionLine = lazyregexp.New(`(?m)^(cuda|hip|xpu)\b[^=\n]*=\s*(?:['"]([^'"\n]*)['"]|None)`)

// torchBuilds lists what each Python of the image imports as torch, each installation once.
func torchBuilds(f *facts.Facts) []torchBuild {
	var all []torchBuild
	seen := map[string]bool{}
	for _, e := range f.Environments() {
		found := e.Find("torch")
		if len(found) == 0 || seen[found[0].Dir] {
			continue
		}
		seen[found[0].Dir] = true
		all = append(all, lookAtTorch(f.Root, e, found[0]))
	}
	return all
}

func lookAtTorch(root facts.Root, e *facts.Environment, d *facts.Distribution) torchBuild {
	t := torchBuild{env: e, site: path.Dir(d.Dir), dist: d}
	file := path.Join(t.site, "torch/version.py")
	lines := torchVersionLine.Regexp().FindAllSubmatch(facts.ReadText(root, file), -1)
	for _, m := range lines {
		switch string(m[1]) {
		case "cuda":
			t.cuda = string(m[2])
		case "hip":
			t.hip = string(m[2])
		case "xpu":
			t.xpu = string(m[2])
		}
	}
	if len(lines) > 0 {
		t.seen = rooted(file) + " has cuda = " + pythonValue(t.cuda) + ", hip = " + pythonValue(t.hip)
	}
	return t
}

func pythonValue(s string) string {
	if s == "" {
		return "None"
	}
	return "'" + s + "'"
}

// torchWithoutCUDA is the rule python-torch-cpu.
func torchWithoutCUDA(s *Subject, report func(Finding)) error {
	if len(s.Target.GPU) == 0 {
		return nil
	}
	builds := slices.DeleteFunc(torchBuilds(s.Facts), func(t torchBuild) bool { return t.seen == "" })
	one := slices.ContainsFunc(builds, func(t torchBuild) bool { return t.cuda != "" })
	for _, t := range builds {
		if t.cuda != "" {
			continue
		}
		f := Finding{
			Path: t.dist.Dir, Seen: []string{t.seen},
			Message: fmt.Sprintf("torch %s is a build for %s, and the target has GPUs of compute capability %s",
				t.dist.Version, t.kind(), strings.Join(s.Target.GPU, ", ")),
		}
		if p := s.condaPackageOf(t.dist); p != nil {
			f.Seen = append(f.Seen, rooted(p.Record)+" has the build "+p.Build)
			f.Remedy = "let the solver know the driver, and take the build that it then finds: [target] driver in the recipe, or CONDA_OVERRIDE_CUDA=12.8 for conda"
		}
		if one { // another environment has it
			f.Severity = Warning
			f.Why = "Programs that run with " + t.env.Label() + " do not see the GPUs; another Python of the image has a CUDA build."
		}
		report(f)
	}
	return nil
}

func (t torchBuild) kind() string {
	switch {
	case t.hip != "":
		return "AMD's ROCm " + t.hip
	case t.xpu != "":
		return "Intel's GPUs"
	}
	return "the processor alone"
}

// cudaToolkit is an installed CUDA toolkit.
type cudaToolkit struct {
	dir     string // "" when only a variable speaks of it
	version string
	seen    string // how the version is known
	nvcc    bool
}

var (
	cudaVersionTxt = lazyregexp.New(`CUDA Version ([0-9]+\.[0-9]+)`)
	cudaHeader     = lazyregexp.New(`(?m)^#define CUDA_VERSION ([0-9]{2,3})0([0-9])0`)
	condaNvcc      = lazyregexp.New(`^cuda-(?:nvcc|nvcc-impl|cudart)-([0-9]+\.[0-9]+)[.0-9]*-.*\.json$`)
)

// toolkitDiffers is the rule cuda-toolkit-differs.
func toolkitDiffers(s *Subject, report func(Finding)) error {
	k, ok := s.toolkit()
	if !ok {
		return nil
	}
	major, _, _ := strings.Cut(k.version, ".")
	for _, t := range torchBuilds(s.Facts) {
		own, _, _ := strings.Cut(t.cuda, ".")
		if t.cuda == "" || sameRelease(t.cuda, k.version) || own == major && !k.nvcc {
			continue
		}
		f := Finding{
			Path: t.dist.Dir,
			Message: fmt.Sprintf("torch %s was built for CUDA %s, and the CUDA toolkit of the image is %s",
				t.dist.Version, t.cuda, k.version),
			Seen: []string{t.seen, k.seen},
		}
		switch {
		case own == major:
			f.Severity = Note
			f.Why = "Extensions that are compiled here use a toolkit of another minor version. PyTorch warns of it and goes on, and mostly that works."
		case !k.nvcc:
			f.Severity = Note
			f.Why = "PyTorch brings its own CUDA libraries, so those of the image are only weight, unless LD_LIBRARY_PATH puts them first."
			f.Remedy = "take a base image without CUDA, or one with the CUDA version of the PyTorch build"
		default:
			f.Seen = append(f.Seen, rooted(path.Join(k.dir, "bin/nvcc"))+" is there")
		}
		report(f)
	}
	return nil
}

// toolkit finds the CUDA toolkit as PyTorch does (torch.utils.cpp_extension): CUDA_HOME, CUDA_PATH, nvcc on the PATH,
// /usr/local/cuda. A variable of NVIDIA's base images speaks for what has no file that does.
func (s *Subject) toolkit() (cudaToolkit, bool) {
	var dirs []string
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if dir, _ := s.Env(name); path.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	list, _ := s.Env("PATH")
	for dir := range strings.SplitSeq(list, ":") {
		if _, err := s.Root.Stat(path.Join("/", dir, "nvcc")); err == nil && path.Base(dir) == "bin" {
			dirs = append(dirs, path.Dir(dir))
		}
	}
	for _, dir := range append(dirs, "/usr/local/cuda") {
		k := cudaToolkit{dir: dir}
		if _, err := s.Root.Stat(path.Join(dir, "bin/nvcc")); err == nil {
			k.nvcc = true
		}
		if k.version, k.seen = s.toolkitVersion(dir); k.version != "" {
			return k, true
		}
	}
	v, _ := s.Env("CUDA_VERSION")
	if _, err := python.ParseVersion(v); err != nil {
		return cudaToolkit{}, false
	}
	return cudaToolkit{version: v, seen: "the variable CUDA_VERSION is " + v}, true
}

func (s *Subject) toolkitVersion(dir string) (version, seen string) {
	file := path.Join(dir, "version.json")
	var parts map[string]struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(facts.ReadText(s.Root, file), &parts) == nil && parts["cuda"].Version != "" {
		return parts["cuda"].Version, rooted(file) + " has CUDA " + parts["cuda"].Version
	}
	file = path.Join(dir, "version.txt")
	if m := cudaVersionTxt.FindSubmatch(facts.ReadText(s.Root, file)); m != nil {
		return string(m[1]), rooted(file) + " has CUDA " + string(m[1])
	}
	file = path.Join(dir, "include/cuda.h")
	if m := cudaHeader.FindSubmatch(facts.ReadText(s.Root, file)); m != nil {
		v := string(m[1]) + "." + string(m[2])
		return v, rooted(file) + " has CUDA_VERSION " + string(m[1]) + "0" + string(m[2]) + "0"
	}
	names, err := s.Root.ReadDir(path.Join(dir, "conda-meta"))
	if err != nil {
		return "", ""
	}
	for _, name := range names {
		if m := condaNvcc.FindStringSubmatch(name); m != nil {
			return m[1], path.Join(dir, "conda-meta", name) + " is there"
		}
	}
	return "", ""
}

// sameRelease says whether the first two numbers of two versions are the same.
func sameRelease(a, b string) bool { return release(a) == release(b) }

// release returns the first two numbers of a version: "2.6" of 2.6.0a0+nv25.1.
func release(v string) string {
	return releaseNumbers.FindString(v)
}

var releaseNumbers = lazyregexp.New(`^[0-9]+\.[0-9]+`)

// compiledForTorch are packages whose wheels hold code compiled against one release of PyTorch; true when importing them
// with another one fails, false when they go on without that code.
var compiledForTorch = map[string]bool{
	"torchvision": true, "torchaudio": true, "torchtext": true, "vllm": true, "fbgemm-gpu": true, "torchrec": false,
	"xformers": false, "torchao": false, "flash-attn": true, "torch-tensorrt": true, "torchcodec": true,
}

// torchPair says whether a requirement is between PyTorch and what is compiled for one release of it.
func (u unmet) torchPair() bool {
	if u.found == nil {
		return false
	}
	_, compiled := compiledForTorch[u.by.Name]
	if u.by.Name == "torch" {
		return u.found.Name == "triton" || u.found.Name == "pytorch-triton"
	}
	return u.found.Name == "torch" && compiled
}

var pinned = lazyregexp.New(`^===?\s*([0-9]+\.[0-9]+)`)

// torchPairs is the rule python-torch-pair.
func torchPairs(s *Subject, report func(Finding)) error {
	for _, u := range unmetRequirements(s.Facts) {
		if !u.torchPair() {
			continue
		}
		f := u.finding(s)
		m := pinned.FindStringSubmatch(u.need.Specifiers.String())
		if m != nil && m[1] != release(u.found.Version) && compiledForTorch[u.by.Name] {
			f.Severity = Error
		}
		report(f)
	}
	for _, t := range torchBuilds(s.Facts) {
		t.pairs(report)
	}
	return s.Context.Err()
}

// builtFor is the part of a version after the plus that says for which CUDA and PyTorch a wheel was built: cu124, cpu,
// pt25cu124 (PyTorch Geometric), cu12torch2.5cxx11abiFALSE (FlashAttention).
var builtFor = lazyregexp.New(`^(?:pt([0-9])([0-9]+?))?(?:cu([0-9]{2})[0-9]?|(cpu))(?:torch([0-9]+\.[0-9]+).*)?$`)

// pairs reports packages whose versions say that they were built for another CUDA or PyTorch than t.
func (t torchBuild) pairs(report func(Finding)) {
	t.env.Visible(func(_ *facts.Python, d *facts.Distribution) {
		_, local, ok := strings.Cut(d.Version, "+")
		_, known := compiledForTorch[d.Name]
		m := builtFor.FindStringSubmatch(local)
		if !ok || m == nil || d.Name == "torch" || !known && m[1] == "" && m[5] == "" {
			return
		}
		torch := m[5]
		if m[1] != "" {
			torch = m[1] + "." + m[2]
		}
		cuda, _, _ := strings.Cut(t.cuda, ".")
		f := Finding{Path: d.Dir, Seen: []string{rooted(d.Dir), t.seen}}
		switch {
		case torch != "" && torch != release(t.dist.Version):
			f.Message = fmt.Sprintf("%s %s was built for PyTorch %s, and torch is %s", d.Name, d.Version, torch, t.dist.Version)
		case m[3] != "" && cuda != "" && m[3] != cuda:
			f.Message = fmt.Sprintf("%s %s was built for CUDA %s, and torch %s for CUDA %s",
				d.Name, d.Version, m[3], t.dist.Version, t.cuda)
			if d.Name == "torchvision" || d.Name == "torchaudio" { // which compare at the import
				f.Severity = Error
			}
		case m[4] != "" && cuda != "":
			f.Message = fmt.Sprintf("%s %s is a build without CUDA, and torch %s has CUDA %s",
				d.Name, d.Version, t.dist.Version, t.cuda)
			f.Why = "Its operators have no code for GPUs: \"Could not run … with arguments from the 'CUDA' backend\"."
		default:
			return
		}
		report(f)
	})
}
