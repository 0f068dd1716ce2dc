package wheelbuild

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
)

// toolkit is the CUDA toolkit that a build uses.
type toolkit struct {
	home    string   // absolute, "" when there is none
	parts   []string // other directories that belong to it, absolute: see site.toolkitLinks
	version string   // 12.8, "" when its headers do not say
}

// NVIDIA's packages of package indexes, normalised.
const (
	CUDACompiler = "nvidia-cuda-nvcc"
	CUDARuntime  = "nvidia-cuda-runtime"
)

// CUDACompilerParts are the packages that nvcc starts and includes, which have its version.
var CUDACompilerParts = []string{"nvidia-cuda-crt", "nvidia-nvvm"}

// firstWheelToolkit is the first CUDA whose nvcc is in a package; that for CUDA 12 has ptxas alone.
const firstWheelToolkit = 13

// ToolkitWheels returns what to ask a package index for (PEP 508) to compile with a CUDA version, 13.0 or 13.0.96; nil when
// indexes do not have its compiler. The libraries to compile against, cuBLAS for one, come with torch.
func ToolkitWheels(version string) []string {
	major, minor, ok := minorVersion(version)
	if !ok || major < firstWheelToolkit {
		return nil
	}
	var all []string
	for _, name := range append([]string{CUDACompiler, CUDARuntime}, CUDACompilerParts...) {
		all = append(all, fmt.Sprintf("%s==%d.%d.*", name, major, minor))
	}
	// CCCL counts its own versions, from 13.3 on.
	return append(all, fmt.Sprintf("nvidia-cuda-cccl>=%d.0,<%d.%d", major, major, minor+1))
}

func minorVersion(version string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil
}

// maxHeader bounds what is read of a header or module for a version, in bytes.
const maxHeader = 4 << 20

// CUDA_VERSION and CUDART_VERSION are 1000 times the major version and 10 times the minor (CUDA Runtime API, "Versions").
var cudaVersion = lazyregexp.New(`(?m)^\s*#\s*define\s+(?:CUDA_VERSION|CUDART_VERSION)\s+(\d{4,6})`)

// HasToolkit reports whether an image with the environment env, KEY=VALUE, has a CUDA compiler installed that goes with a CUDA
// version, 13.0 or 13.0.96: one of its major version, or of one that its headers do not say.
func HasToolkit(tree *image.Tree, env []string, version string) bool {
	homes := slices.Concat(namedHomes(env), installedHomes)
	i := slices.IndexFunc(homes, func(home string) bool { return hasCompiler(tree, home) })
	return i >= 0 && sameMajor(headerVersion(tree, homes[i]), version)
}

// sameMajor reports whether two versions of CUDA have one major version, as far as they are known.
func sameMajor(a, b string) bool {
	a, _, _ = strings.Cut(a, ".")
	b, _, _ = strings.Cut(b, ".")
	return a == "" || b == "" || a == b
}

// installedHomes is where distributions and NVIDIA's images install a toolkit.
var installedHomes = []string{"/usr/local/cuda", "/opt/cuda", "/usr"}

// namedHomes is where an environment says that the toolkit is.
func namedHomes(env []string) []string {
	return []string{lookup(env, "CUDA_HOME"), lookup(env, "CUDA_PATH")}
}

func hasCompiler(tree *image.Tree, home string) bool {
	return home != "" && isFile(tree, path.Join(home, "bin/nvcc"))
}

// findToolkit looks for nvcc: where the package's own variables say, among its build requirements, in the usual places of the
// image, and among the image's packages.
func (s *site) findToolkit() toolkit {
	required, installed := s.nvidiaDirs(buildRoot), s.nvidiaDirs(s.ground.Root)
	homes := slices.Concat([]string{s.pkg.Env["CUDA_HOME"], s.pkg.Env["CUDA_PATH"]}, required, namedHomes(s.ground.Env), installedHomes, installed)
	i := slices.IndexFunc(homes, func(home string) bool { return hasCompiler(s.tree, home) })
	if i < 0 {
		return toolkit{}
	}
	t := toolkit{home: homes[i]}
	wheels := slices.Concat(required, installed)
	if slices.Contains(wheels, t.home) {
		t.parts = slices.DeleteFunc(wheels, func(dir string) bool { return dir == t.home })
	}
	for _, dir := range append([]string{t.home}, t.parts...) {
		if t.version = headerVersion(s.tree, dir); t.version != "" {
			break
		}
	}
	return t
}

// nvidiaDirs is where NVIDIA's packages in an environment have put their files: cu13, cudnn, nccl. Of several CUDA the newest comes first.
func (s *site) nvidiaDirs(root string) []string {
	if s.pkg.Isolated && root != buildRoot {
		return nil
	}
	dir := path.Join(s.ground.sitePackages(root), "nvidia")
	nodes, err := s.tree.ReadDir(dir)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, n := range nodes {
		if n.Type == layer.Dir && !strings.HasPrefix(n.Name(), "_") {
			dirs = append(dirs, path.Join(dir, n.Name()))
		}
	}
	slices.Reverse(dirs) // cu13 before cu12
	return dirs
}

// headerVersion returns the CUDA version that headers of a toolkit say, 12.8, or "".
func headerVersion(tree *image.Tree, home string) string {
	for _, name := range []string{"include/cuda.h", "include/cuda_runtime_api.h"} {
		data, err := tree.ReadFile(path.Join(home, name), maxHeader)
		if err != nil {
			continue
		}
		if m := cudaVersion.FindSubmatch(data); m != nil {
			n, _ := strconv.Atoi(string(m[1]))
			return fmt.Sprintf("%d.%d", n/1000, n%1000/10)
		}
	}
	return ""
}

func isFile(tree *image.Tree, name string) bool {
	n, err := tree.Lookup(name)
	return err == nil && n.Type == layer.Regular
}

// lookup returns the value of a variable, "" when it is not set.
func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// torchModule says how torch was built: cuda = '12.8' or cuda: Optional[str] = None.
var torchModule = lazyregexp.New(`(?m)^cuda(?:: [^=\n]+)? = '([0-9.]+)'`)

// findTorchCUDA returns the CUDA that the image's torch was built with.
func (s *site) findTorchCUDA() string {
	dirs := []string{s.ground.sitePackages(s.ground.Root)}
	if s.ground.SystemSite {
		i := s.ground.Python
		lib := path.Join(i.Prefix, "lib", "python"+i.Minor())
		dirs = append(dirs, "/usr/local/lib/python"+i.Minor()+"/dist-packages", "/usr/lib/python3/dist-packages", lib+"/site-packages", lib+"/dist-packages")
	}
	for _, dir := range dirs {
		data, err := s.tree.ReadFile(path.Join(dir, "torch/version.py"), maxHeader)
		if err != nil {
			continue
		}
		if m := torchModule.FindSubmatch(data); m != nil {
			return string(m[1])
		}
		return ""
	}
	return ""
}

// checkCUDA makes sure that the toolkit fits torch: code of another major version does not load.
func (s *site) checkCUDA() error {
	p := s.pkg
	if !p.CUDA || len(p.Archs) == 0 || s.torchCUDA == "" {
		return nil
	}
	if s.toolkit.home == "" {
		return fault.Hint(fmt.Errorf("%s is compiled for GPUs, and there is no nvcc (looked in CUDA_HOME, %s and NVIDIA's packages)", p.Label(), strings.Join(installedHomes, ", ")),
			s.toolkitHint())
	}
	if sameMajor(s.toolkit.version, s.torchCUDA) {
		return nil
	}
	found, _, _ := strings.Cut(s.toolkit.version, ".")
	return fault.Hint(fmt.Errorf("%s is compiled with CUDA %s (%s), and the image's torch was built with CUDA %s", p.Label(), s.toolkit.version, s.toolkit.home, s.torchCUDA),
		fmt.Sprintf("%s, or a torch for CUDA %s: `torch-backend` under [python]", s.toolkitHint(), found))
}

// toolkitHint says where the toolkit of torch's CUDA comes from.
func (s *site) toolkitHint() string {
	base := fmt.Sprintf("use a base with a CUDA %s toolkit", s.torchCUDA)
	wheels := ToolkitWheels(s.torchCUDA)
	if wheels == nil {
		return base
	}
	return fmt.Sprintf("%s, or add its packages to `requires` under [python.compile.%s]: \"%s\"", base, s.pkg.Name, strings.Join(wheels, `", "`))
}
