package wheelbuild

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
)

const (
	ownCUDA   = "opt/sconce-build/lib/python3.11/site-packages/nvidia/cu13/"
	imageCUDA = "opt/venv/lib/python3.11/site-packages/nvidia/cu13/"
	imageDNN  = "opt/venv/lib/python3.11/site-packages/nvidia/cudnn/"
)

// withFiles returns a site whose tree has files, by path.
func withFiles(t *testing.T, p Package, files map[string]string) *site {
	t.Helper()
	st := storetest.New(t)
	s := testSite(p)
	s.ground.Root = "opt/venv"
	s.builder.Runner.Store = st
	var list []file
	for name, text := range files {
		list = append(list, file{Entry: layer.Entry{Path: name, Type: layer.Regular, Mode: 0o755, Size: int64(len(text))}, data: []byte(text)})
	}
	d, err := s.files(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	if s.tree, err = image.NewTree(t.Context(), st, []layer.Descriptor{d}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFindToolkit(t *testing.T) {
	const (
		cuda12 = "#define CUDA_VERSION 12080\n"
		cuda13 = "  # define CUDART_VERSION  13000\n"
	)
	all := map[string]string{
		"opt/own/bin/nvcc": "", "opt/env/bin/nvcc": "", "usr/local/cuda/bin/nvcc": "", "usr/local/cuda/include/cuda.h": cuda12, "usr/bin/nvcc": "",
		ownCUDA + "bin/nvcc": "", imageCUDA + "bin/nvcc": "", imageCUDA + "include/cuda_runtime_api.h": cuda13, imageDNN + "include/cudnn.h": "",
	}
	without := func(prefixes ...string) map[string]string {
		files := maps.Clone(all)
		maps.DeleteFunc(files, func(name, _ string) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		})
		return files
	}
	for name, c := range map[string]struct {
		env                 map[string]string
		isolated            bool
		files               map[string]string
		home, version, part string
	}{
		"named by the package":     {env: map[string]string{"CUDA_HOME": "/opt/own"}, files: all, home: "/opt/own"},
		"required":                 {files: all, home: ownCUDA, version: "13.0", part: imageDNN},
		"required, and isolated":   {files: all, isolated: true, home: ownCUDA},
		"named by the image":       {files: without(ownCUDA), home: "/opt/env"},
		"installed":                {files: without(ownCUDA, "opt/env"), home: "/usr/local/cuda", version: "12.8"},
		"a distribution's":         {files: without(ownCUDA, "opt/env", "usr/local"), home: "/usr"},
		"one of image's packages":  {files: without(ownCUDA, "opt/env", "usr"), home: imageCUDA, version: "13.0", part: imageDNN},
		"nowhere":                  {files: without(ownCUDA, "opt/env", "usr", imageCUDA)},
		"not seen by the isolated": {files: without(ownCUDA, "opt/env", "usr"), isolated: true},
	} {
		s := withFiles(t, Package{Name: "a", Env: c.env, Isolated: c.isolated}, c.files)
		s.ground.Env = []string{"PATH=/bin", "CUDA_HOME=/opt/env"}
		got := s.findToolkit()
		if strings.TrimPrefix(got.home, "/") != strings.Trim(c.home, "/") || got.version != c.version {
			t.Errorf("%s: %+v", name, got)
		}
		if c.part == "" && len(got.parts) > 0 || c.part != "" && !slices.Contains(got.parts, path.Clean("/"+c.part)) {
			t.Errorf("%s: parts %q", name, got.parts)
		}
	}
	s := withFiles(t, Package{Name: "a"}, all)
	for version, want := range map[string]bool{"12.6": true, "12.8.90": true, "13.0.96": false} {
		if got := HasToolkit(s.tree, nil, version); got != want {
			t.Errorf("a toolkit for CUDA %s: %v", version, got)
		}
	}
	if !HasToolkit(s.tree, []string{"CUDA_HOME=/opt/env"}, "13.0.96") {
		t.Error("one that does not say its version does for none")
	}
}

// TestToolkitLinks: parts in several places look like one toolkit, in which nothing stands for what was there.
func TestToolkitLinks(t *testing.T) {
	s := withFiles(t, Package{Name: "a"}, map[string]string{
		ownCUDA + "bin/nvcc": "", ownCUDA + "include/crt/a.h": "own", ownCUDA + "include/odd": "",
		imageCUDA + "include/crt/a.h": "", imageCUDA + "include/crt/b.h": "", imageCUDA + "include/cublas.h": "", imageCUDA + "include/odd/c.h": "",
		imageCUDA + "include/__init__.py": "", imageCUDA + "lib/libcublas.so.13": "", imageDNN + "include/cudnn.h": "", imageDNN + "lib/libcudnn.so.9": "",
	})
	s.toolkit = s.findToolkit()
	layers, err := s.toolkitLinks(t.Context())
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	made, err := layer.OpenIndex(t.Context(), s.builder.store(), layers[0])
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, e := range made.Entries {
		if e.Type == layer.Symlink {
			got[e.Path] = e.Link
		}
	}
	want := map[string]string{
		"lib64": "lib", "include/crt/b.h": "/" + imageCUDA + "include/crt/b.h", "include/cublas.h": "/" + imageCUDA + "include/cublas.h",
		"include/cudnn.h": "/" + imageDNN + "include/cudnn.h", "lib/libcublas.so.13": "/" + imageCUDA + "lib/libcublas.so.13",
		"lib/libcudnn.so.9": "/" + imageDNN + "lib/libcudnn.so.9", "lib/libcublas.so": "libcublas.so.13", "lib/libcudnn.so": "libcudnn.so.9",
	}
	for name, target := range want {
		if got[ownCUDA+name] != target {
			t.Errorf("%s leads to %q, not %q", name, got[ownCUDA+name], target)
		}
	}
	if len(got) != len(want) {
		t.Errorf("links: %v", got)
	}
}

func TestToolkitWheels(t *testing.T) {
	for _, version := range []string{"", "12.8", "12.8.90", "13", "x.y"} {
		if got := ToolkitWheels(version); got != nil {
			t.Errorf("CUDA %s: %q", version, got)
		}
	}
	want := []string{
		"nvidia-cuda-nvcc==13.4.*", "nvidia-cuda-runtime==13.4.*", "nvidia-cuda-crt==13.4.*", "nvidia-nvvm==13.4.*", "nvidia-cuda-cccl>=13.0,<13.5",
	}
	if got := ToolkitWheels("13.4.92"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
