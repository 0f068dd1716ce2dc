package build

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/searchpath"
)

// editor returns the function that turns the base's configuration into the image's. cuda says that the image holds CUDA
// code, for which the NVIDIA runtimes want to be asked: without these variables enroot and the NVIDIA container toolkit
// give a plain image no GPU.
func editor(c plan.Config, in *activated, cuda bool) func(*v1.Config) {
	return func(to *v1.Config) {
		env := environment(to.Env).without(c.Unset)
		in.enter(&env)
		if c.VirtualEnv != "" {
			env.enter(c.VirtualEnv)
		}
		if cuda {
			env.setDefault("NVIDIA_VISIBLE_DEVICES", "all")
			env.setDefault("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
		}
		for _, name := range slices.Sorted(maps.Keys(c.Env)) {
			env.set(name, c.Env[name])
		}
		to.Env = env
		applyCommand(c, to)
		applyLabels(c, to)
		if in != nil {
			in.start.edit(to)
		}
	}
}

func applyCommand(c plan.Config, to *v1.Config) {
	if c.Entrypoint != nil {
		to.Entrypoint, to.Cmd = c.Entrypoint, nil // a base's arguments are not meant for another entrypoint
	}
	if c.Cmd != nil {
		to.Cmd = c.Cmd
	}
	if c.WorkingDir != "" {
		to.WorkingDir = c.WorkingDir
	}
	if c.User != "" {
		to.User = c.User
	}
	for _, v := range c.Volumes {
		if to.Volumes == nil {
			to.Volumes = make(map[string]struct{})
		}
		to.Volumes[v] = struct{}{}
	}
}

// Labels that name what an image is based on (OCI image-spec, annotations.md).
const (
	labelBaseName   = "org.opencontainers.image.base.name"
	labelBaseDigest = "org.opencontainers.image.base.digest"
)

func applyLabels(c plan.Config, to *v1.Config) {
	labels := maps.Clone(to.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	for _, name := range []string{labelBaseName, labelBaseDigest} {
		if c.Labels[labelBaseName] != "" { // those of the base are about what it is based on itself
			delete(labels, name)
		}
	}
	maps.Copy(labels, c.Labels)
	delete(labels, image.LabelUnchecked) // the base's own
	if c.Unchecked {
		labels[image.LabelUnchecked] = "true"
	}
	to.Labels = labels
}

// environment is a list of NAME=VALUE.
type environment []string

// without is e without some variables.
func (e environment) without(names []string) environment {
	return slices.DeleteFunc(slices.Clone(e), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

func (e environment) find(name string) int {
	return slices.IndexFunc(e, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

func (e environment) get(name, otherwise string) string {
	if i := e.find(name); i >= 0 {
		return strings.TrimPrefix(e[i], name+"=")
	}
	return otherwise
}

func (e *environment) set(name, value string) {
	kv := name + "=" + value
	if i := e.find(name); i >= 0 {
		(*e)[i] = kv
		return
	}
	*e = append(*e, kv)
}

// enter makes programs see the virtual environment in dir.
func (e *environment) enter(dir string) {
	e.set("PATH", dir+"/bin:"+e.get("PATH", searchpath.Default))
	e.set("VIRTUAL_ENV", dir)
}

// search makes programs, compilers and the dynamic linker find what a component has put below prefix.
func (e *environment) search(prefix string) {
	before := func(name, value, otherwise string) {
		if old := e.get(name, otherwise); old != "" {
			value += ":" + old
		}
		e.set(name, value)
	}
	before("PATH", prefix+"/bin", searchpath.Default)
	before("LD_LIBRARY_PATH", prefix+"/lib:"+prefix+"/lib64", "")
	before("PKG_CONFIG_PATH", prefix+"/lib/pkgconfig:"+prefix+"/lib64/pkgconfig", "")
	before("CMAKE_PREFIX_PATH", prefix, "")
}

func (e *environment) setDefault(name, value string) {
	if e.find(name) < 0 {
		e.set(name, value)
	}
}

// cudaLibraries are the files by which CUDA code is recognised: nothing that uses a GPU through CUDA works without one of
// them, from the toolkit, from NVIDIA's wheels or linked into PyTorch's.
var cudaLibraries = []string{"libcudart.so", "libcublas.so", "libtorch_cuda.so", "libnccl.so", "libcudnn.so", "libnvrtc.so"}

func (b *builder) holdsCUDA(ctx context.Context, m *made) (bool, error) {
	for _, w := range m.wheels {
		for _, p := range w.manifest.Packages {
			for _, f := range p.Files {
				if isCUDA(f.Path) {
					return true, nil
				}
			}
		}
	}
	tree, err := image.NewTree(ctx, b.opts.Store, m.layers())
	if err != nil {
		return false, err
	}
	found := false
	err = tree.Walk(func(n *image.Node) error {
		found = found || isCUDA(n.Path)
		return nil
	})
	return found, err
}

func isCUDA(file string) bool {
	name := path.Base(file)
	return slices.ContainsFunc(cudaLibraries, func(lib string) bool { return strings.HasPrefix(name, lib) })
}
