package lock_test

import (
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
)

// TestToolkit: where the base has no nvcc for torch's CUDA, that of the index is wanted, in the version of torch's.
func TestToolkit(t *testing.T) {
	const (
		torch13 = "gpu = [\"9.0\"]\n[python]\npackages = [\"torch-scatter\", \"torch==13\"]\n"
		torch12 = "gpu = [\"9.0\"]\n[python]\npackages = [\"torch-scatter\", \"torch==12\"]\n"
	)
	cuda := func(version string) locktest.Base {
		return locktest.Base{Files: map[string]string{"usr/local/cuda/bin/nvcc": "x", "usr/local/cuda/include/cuda.h": "#define CUDA_VERSION " + version + "\n"}}
	}
	bench := func(t *testing.T, base locktest.Base) *bench {
		wheels := []locktest.Wheel{
			w("setuptools", "70.0"), w("wheel", "0.4"), w("ninja", "1.0"),
			w("torch", "13", "nvidia-cuda-runtime"), w("torch", "12", "nvidia-cuda-runtime-cu12"), w("nvidia_cuda_runtime", "13.1.80"), w("nvidia_cuda_runtime_cu12", "12.8.90"),
		}
		for _, version := range []string{"13.0.88", "13.1.80", "13.1.115", "13.2.51"} {
			wheels = append(wheels, w("nvidia_cuda_nvcc", version, "nvidia-nvvm", "nvidia-cuda-crt"), w("nvidia_nvvm", version), w("nvidia_cuda_crt", version))
		}
		b, x := newBench(t, base, append(wheels, w("nvidia_cuda_cccl", "13.1.78"), w("nvidia_cuda_cccl", "13.3.3.3.1"))...)
		x.AddFile("torch_scatter-2.1.2.tar.gz", sdist(t, "torch_scatter", "2.1.2", "", trap(t), nil))
		return b
	}
	nvidia := func(l *lock.Files) (names []string) {
		for _, r := range l.Python.Compiled[0].Requires {
			if name, ok := strings.CutPrefix(r.Name, "nvidia-"); ok {
				names = append(names, name+" "+r.Version)
			}
		}
		return names
	}
	all := []string{"cuda-cccl 13.1.78", "cuda-crt 13.1.115", "cuda-nvcc 13.1.115", "nvvm 13.1.115"}
	for name, c := range map[string]struct {
		base locktest.Base
		text string
		want []string
	}{
		"no nvcc":                {locktest.Base{}, torch13, all},
		"nvcc of another CUDA":   {cuda("12080"), torch13, all},
		"nvcc of torch's CUDA":   {cuda("13000"), torch13, nil},
		"another nvcc is wanted": {locktest.Base{}, torch13 + "[python.compile.torch-scatter]\nrequires = [\"nvidia-cuda-nvcc==13.0.*\"]\n", []string{"cuda-crt 13.0.88", "cuda-nvcc 13.0.88", "nvvm 13.0.88"}},
		"a place is named":       {locktest.Base{}, torch13 + "[python.compile.torch-scatter]\nenv = { CUDA_HOME = \"/opt/own\" }\n", nil},
		"no code for GPUs":       {locktest.Base{}, torch13 + "[python.compile.torch-scatter]\ncuda = false\n", nil},
		"CUDA 12, nvcc":          {cuda("12080"), torch12, nil},
		"CUDA 12, no GPU":        {locktest.Base{}, strings.Replace(torch12, "gpu", "# gpu", 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, l := bench(t, c.base).names(c.text); !slices.Equal(nvidia(l), c.want) {
				t.Errorf("build requirements %q, want %q", nvidia(l), c.want)
			}
		})
	}
	for name, base := range map[string]locktest.Base{"no nvcc": {}, "nvcc of another CUDA": cuda("13000")} {
		t.Run("CUDA 12, "+name, func(t *testing.T) {
			bench(t, base).fails(torch12, "torch-scatter is compiled for GPUs with the CUDA of torch, 12.8.90, and the base has no nvcc of that", "take a torch for CUDA 13")
		})
	}
}
