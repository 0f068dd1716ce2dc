package wheelbuild

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// toolkit is the CUDA toolkit that a build uses.
type toolkit struct {
	home    string // absolute, "" when there is none
	version string // 12.8, "" when its headers do not say
}

// maxHeader bounds what is read of a header or module for a version, in bytes.
const maxHeader = 4 << 20

// CUDA_VERSION and CUDART_VERSION are 1000 times the major version and 10 times the minor (CUDA Runtime API, "Versions").
var cudaVersion = regexp.MustCompile(`(?m)^\s*#\s*define\s+(?:CUDA_VERSION|CUDART_VERSION)\s+(\d{4,6})`)

// findToolkit looks for nvcc: where a variable says, in the usual places, and where NVIDIA's wheels put it.
func (s *site) findToolkit() toolkit {
	var homes []string
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		homes = append(homes, s.pkg.Env[name], lookup(s.ground.Env, name))
	}
	homes = append(homes, "/usr/local/cuda")
	for _, root := range []string{buildRoot, s.ground.Root} {
		dir := path.Join(s.ground.sitePackages(root), "nvidia")
		nodes, err := s.tree.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, n := range slices.Backward(nodes) { // cu13 before cu12
			homes = append(homes, path.Join(dir, n.Name()))
		}
	}
	for _, home := range append(homes, "/opt/cuda", "/usr") {
		if home != "" && isFile(s.tree, path.Join(home, "bin/nvcc")) {
			return toolkit{home, s.cudaHeaderVersion(home)}
		}
	}
	return toolkit{}
}

func (s *site) cudaHeaderVersion(home string) string {
	for _, name := range []string{"include/cuda.h", "include/cuda_runtime_api.h"} {
		data, err := s.tree.ReadFile(path.Join(home, name), maxHeader)
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
var torchModule = regexp.MustCompile(`(?m)^cuda(?:: [^=\n]+)? = '([0-9.]+)'`)

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
	major, _, _ := strings.Cut(s.torchCUDA, ".")
	if s.toolkit.home == "" {
		return fault.Hint(fmt.Errorf("%s is compiled for GPUs, and there is no nvcc (looked in CUDA_HOME, /usr/local/cuda and NVIDIA's wheels)", p.Label()),
			fmt.Sprintf("take a base with the CUDA %s toolkit, or add its packages to `requires` under [python.compile.%s]: %s", s.torchCUDA, p.Name, toolkitWheels(major)))
	}
	found, _, _ := strings.Cut(s.toolkit.version, ".")
	if found == "" || found == major {
		return nil
	}
	return fault.Hint(fmt.Errorf("%s is compiled with CUDA %s (%s), and the image's torch was built with CUDA %s", p.Label(), s.toolkit.version, s.toolkit.home, s.torchCUDA),
		fmt.Sprintf("use a base with a CUDA %s toolkit, or a torch for CUDA %s: `torch-backend` under [python]", major, found))
}

// toolkitWheels are the packages that a compiler comes as: from CUDA 13 on, package indexes have all of it.
func toolkitWheels(major string) string {
	if n, err := strconv.Atoi(major); err != nil || n < firstWheelToolkit {
		return "package indexes have nvcc from CUDA 13 on only"
	}
	return fmt.Sprintf("\"nvidia-cuda-nvcc==%[1]s.*\", \"nvidia-cuda-runtime==%[1]s.*\", \"nvidia-cuda-cccl==%[1]s.*\"", major)
}

// firstWheelToolkit is the first CUDA whose nvcc is in the wheel nvidia-cuda-nvcc; that for CUDA 12 has ptxas alone.
const firstWheelToolkit = 13
