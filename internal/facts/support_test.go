package facts_test

import (
	"fmt"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
)

// How regions of real libraries add up.
func TestSupport(t *testing.T) {
	for _, c := range []struct {
		name, regions string
		want          map[string]string // by capability: how, PTX regions and version, lacking parts, "!" when that matters, zstd
	}{
		{
			"torch: the same everywhere", "75 80 86 90; 75 80 86 90 90a; 90a",
			map[string]string{"7.0": "none", "7.5": "native", "8.9": "native", "9.0": "native", "10.0": "none"},
		},
		{
			"a part that nobody compiled for 7.5, as MAGMA in libtorch_cuda_linalg", "80 90; 80 90; 80 90; 75 80 90",
			map[string]string{"7.5": "native lacks 3!", "8.0": "native"},
		},
		{
			"few kernels for newer GPUs", "75 80 90; 75 80 90; 75 80 90; 80 90",
			map[string]string{"7.5": "native lacks 1", "8.0": "native"},
		},
		{
			"a part from before the GPU", "80 90 100; 80 90 100; 80 90 100; 80 90",
			map[string]string{"10.0": "native lacks 1!", "9.0": "native"},
		},
		{
			"a gap", "70 75 80 90; 70 75 80 90; 70 75 80 90; 70 75 80 90; 70 75 80 90; 70 90",
			map[string]string{"8.0": "native lacks 1!", "7.5": "native", "9.0": "native"},
		},
		{"regions without kernels, as cuSPARSELt's", "80 90; 100f; 100- 120-; 80- 90-", map[string]string{"8.0": "native", "10.0": "native"}},
		{"a region for each GPU, as flash-attention 3", "80; 80; 90a; 90a; 100f", map[string]string{"8.0": "native", "9.0": "native", "10.0": "native", "12.0": "none"}},
		{
			"one architecture in all", "80; 80",
			map[string]string{"8.0": "native", "9.0": "none"},
		},
		{
			"PTX for what comes", "80 90 p90; 80 90 p90",
			map[string]string{"9.0": "native", "10.0": "ptx 2 by 8.4", "7.5": "none"},
		},
		{"NCCL: linked again from PTX", "linked 80 90; rel 80 90 p90; rel 80 90 p90", map[string]string{"9.0": "native", "10.0": "ptx 1 by 8.4"}},
		{"no PTX in one of them", "linked 80 90; rel 80 90 p90; rel 80 90", map[string]string{"10.0": "none"}},
		{"cuFFT: by its own means", "own p75; own 90; own p80", map[string]string{"7.5": "ptx by 8.4", "9.0": "native", "7.0": "none"}},
		{"without a wrapper", "80 90; lost 52", map[string]string{"8.0": "native"}},
		{"zstd", "80z 90z; 80 90z", map[string]string{"8.0": "native zstd 1", "9.0": "native zstd 2"}},
	} {
		l := factstest.Library(t, "lib/libx.so", c.regions)
		for capability, want := range c.want {
			got := "none"
			for _, s := range l.Runs {
				if s.Capability != capability {
					continue
				}
				got = s.How
				if s.PTX > 0 {
					got += fmt.Sprintf(" %d", s.PTX)
				}
				if s.Version != "" {
					got += " by " + s.Version
				}
				if s.Lacking > 0 {
					got += fmt.Sprintf(" lacks %d", s.Lacking)
				}
				if l.PartlyFor(capability) {
					got += "!"
				}
				if s.Zstd > 0 {
					got += fmt.Sprintf(" zstd %d", s.Zstd)
				}
			}
			if got != want {
				t.Errorf("%s, %s: %q, want %q", c.name, capability, got, want)
			}
		}
	}
	if l := factstest.Library(t, "lib/libcublasLt.so.13", "80 90; 80 90; 80 90; 75 80 90"); l.PartlyFor("7.5") {
		t.Error("cuBLAS chooses by GPU")
	}
}

func TestStem(t *testing.T) {
	for name, want := range map[string]string{
		"usr/lib/libcublas.so.12": "libcublas", "x.libs/libcublas-1d85e7bc.so.12.4.5.8": "libcublas", "x.libs/libnvjpeg.4a0b5c81.so.13": "libnvjpeg",
		"b/libbitsandbytes_cuda118.so": "libbitsandbytes", "b/libbitsandbytes_rocm64.so": "libbitsandbytes", "p/_C.abi3.so": "_C.abi3",
		"torch/lib/libtorch_cuda.so": "libtorch_cuda",
	} {
		if got := facts.Stem(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
