package audit

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
)

// cudaRuntime is a CUDA that something in the image was made for.
type cudaRuntime struct {
	version cuda.Version
	path    string
	seen    string // the evidence
	used    bool   // by more than the toolkit itself
}

var (
	cudartName = lazyregexp.New(`^libcudart(?:-[0-9a-f]+)?\.so\.(\d[\d.]*)$`)
	torchCUDA  = lazyregexp.New(`(?m)^cuda(?:\s*:[^=\n]*)?\s*=\s*['"](\d+\.\d+)`)
)

// runtimes finds every CUDA runtime of the image.
func (s *Subject) runtimes() []cudaRuntime {
	list := slices.Concat(s.runtimeLibraries(), s.runtimePackages())
	value, _ := s.Env("CUDA_VERSION") // of NVIDIA's base images
	if v, ok := cuda.ParseVersion(value); ok {
		list = append(list, cudaRuntime{version: v, seen: "CUDA_VERSION=" + value})
	}
	return list
}

func (s *Subject) runtimeLibraries() []cudaRuntime {
	users := map[string]bool{} // names of libraries that others than the toolkit's need
	for i := range s.Objects {
		if o := &s.Objects[i]; !facts.OfToolkit(o.Path) && !toolLibrary.MatchString(path.Base(o.Path)) {
			for _, n := range o.Needed {
				users[n] = true
			}
		}
	}
	var list []cudaRuntime
	for i := range s.Objects {
		o := &s.Objects[i]
		base := path.Base(o.Path)
		m := cudartName.FindStringSubmatch(base)
		if m == nil {
			continue
		}
		if v, ok := cuda.ParseVersion(m[1]); ok {
			list = append(list, cudaRuntime{v, o.Path, rooted(o.Path), users[base] || users[o.Soname]})
		}
	}
	return list
}

// maxVersionFile is how large torch/version.py may be, in bytes.
const maxVersionFile = 64 << 10

func (s *Subject) runtimePackages() []cudaRuntime {
	var list []cudaRuntime
	for i := range s.Pythons {
		p := &s.Pythons[i]
		for _, d := range p.Distributions {
			switch {
			case d.Name == "nvidia-cuda-runtime", strings.HasPrefix(d.Name, "nvidia-cuda-runtime-cu"):
				if v, ok := cuda.ParseVersion(d.Version); ok {
					list = append(list, cudaRuntime{v, d.Dir, d.Name + " " + d.Version + " in " + rooted(p.Dir), true})
				}
			case d.Name == "torch" && s.Root != nil:
				name := path.Join(p.Dir, "torch/version.py")
				text, err := s.readSmallFile(name, maxVersionFile)
				if err != nil {
					continue
				}
				if m := torchCUDA.FindSubmatch(text); m != nil {
					v, _ := cuda.ParseVersion(string(m[1]))
					list = append(list, cudaRuntime{v, name, "torch " + d.Version + " is built for CUDA " + v.String(), true})
				}
			}
		}
	}
	return list
}

// family is all of one major version of CUDA that is used in the image.
type family struct {
	version cuda.Version // the newest
	path    string
	seen    []string
}

// cudas are the major versions of CUDA that programs of the image use, or when nothing tells that, all that are there.
func (s *Subject) cudas() []family {
	list := s.runtimes()
	if slices.ContainsFunc(list, func(r cudaRuntime) bool { return r.used }) {
		list = slices.DeleteFunc(list, func(r cudaRuntime) bool { return !r.used })
	}
	byMajor := map[int]*family{}
	var families []*family
	for _, r := range list {
		f := byMajor[r.version.Major]
		if f == nil {
			f = &family{version: r.version}
			byMajor[r.version.Major] = f
			families = append(families, f)
		}
		if r.version.Compare(f.version) > 0 {
			f.version = r.version
		}
		if f.path == "" {
			f.path = r.path
		}
		f.seen = append(f.seen, r.seen)
	}
	result := make([]family, 0, len(families))
	for _, f := range families {
		result = append(result, *f)
	}
	slices.SortFunc(result, func(a, b family) int { return b.version.Compare(a.version) })
	return result
}
