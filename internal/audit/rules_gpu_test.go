package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
)

// codeIn are the facts of an image with these libraries, "path: regions", the largest first.
func codeIn(t *testing.T, libraries ...string) *sample {
	t.Helper()
	f := &sample{GPU: &facts.GPUReport{}}
	for _, text := range libraries {
		name, regions, _ := strings.Cut(text, ": ")
		l := factstest.Library(t, name, regions)
		for i := range l.SASS { // so that no library is too small to matter
			l.SASS[i].Size *= 1000
		}
		for i := range l.PTX {
			l.PTX[i].Size *= 1000
		}
		f.GPU.Libraries = append(f.GPU.Libraries, l)
	}
	return f
}

func (f *sample) withLabel(name, value string) *sample {
	f.Config.Labels = map[string]string{name: value}
	return f
}

func gpuTarget(gpus ...string) cluster.Profile { return cluster.Profile{GPU: gpus} }

const (
	venv      = "opt/venv/lib/python3.12/site-packages/"
	libTorch  = venv + "torch/lib/libtorch_cuda.so: "
	libCublas = venv + "nvidia/cublas/lib/libcublas.so.12: "
)

func TestNoCode(t *testing.T) {
	old := codeIn(t, libTorch+"70 80 90", libCublas+"70 80 90 p90")
	checkRule(
		t, "gpu-no-code",
		ruleCase{"a new GPU", old, gpuTarget("12.0"), []string{"error: libtorch_cuda.so has no code for compute capability 12.0"}},
		ruleCase{"an older GPU", old, gpuTarget("6.0"), []string{"error: libtorch_cuda.so and 1 other library have no code for compute capability 6.0"}},
		ruleCase{"two GPUs", old, gpuTarget("8.0", "10.0"), []string{"error: libtorch_cuda.so has no code for compute capability 10.0"}},
		ruleCase{"a later GPU of the same kind", old, gpuTarget("8.6"), nil},
		ruleCase{"no target", old, gpuTarget(), nil},
		ruleCase{"no report", &sample{}, gpuTarget("9.0"), nil},
		ruleCase{"no capability", old, gpuTarget("H100"), nil},
		ruleCase{
			"a program of one's own", codeIn(t, "opt/app/bin/solver: 80"), gpuTarget("7.0", "9.0"),
			[]string{"error: solver has no code for compute capability 7.0", "error: solver has no code for compute capability 9.0"},
		},
		ruleCase{
			"an extension from before the GPU", codeIn(t, venv+"flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: 80 90"), gpuTarget("12.0"),
			[]string{"error: flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so has no code for compute capability 12.0"},
		},
		ruleCase{
			"an extension for newer GPUs", codeIn(t, venv+"flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: 80 90"), gpuTarget("7.5"),
			[]string{"note: flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so has no code for compute capability 7.5, and may not need any"},
		},
		ruleCase{
			"one of an extension's libraries", codeIn(t, venv+"vllm/_vllm_fa2_C.abi3.so: 80", venv+"vllm/_C.abi3.so: 75 80 100"), gpuTarget("10.0"), nil,
		},
		ruleCase{
			"for a GPU by its name", codeIn(t, venv+"x/_C_sm90.so: 90", venv+"flash_attn_3/_C.abi3.so: 80; 90a"), gpuTarget("10.0"),
			[]string{"note: _C_sm90.so and 1 other library have no code for compute capability 10.0, and may not need any"},
		},
		ruleCase{"another copy", codeIn(t, "opt/cuda/lib/libcublas.so.12: 80 90", libCublas+"80 90 100"), gpuTarget("10.0"), nil},
		ruleCase{"a copy for another CUDA", codeIn(t, venv+"b/libbitsandbytes_cuda130.so: 80", venv+"b/libbitsandbytes_cuda118.so: 70 80"), gpuTarget("7.0"), nil},
		ruleCase{
			"tools, libraries for some GPUs, leftovers", codeIn(t, venv+"nvidia/cuda_cupti/lib/libcupti.so.12: own 80; own 90", venv+"cusparselt/lib/libcusparseLt.so.0: 80 90",
				"usr/lib/libempty.a: rel 52"), gpuTarget("7.0"), nil,
		},
	)
	var found []Finding
	s := &Subject{Facts: (*facts.Facts)(old), Target: gpuTarget("12.0"), Context: t.Context()}
	if err := lookNoCode(s, func(f Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	want := []string{"/" + venv + "torch/lib/libtorch_cuda.so: machine code 7.0 8.0 9.0, no PTX"}
	if len(found) != 1 || found[0].Path != venv+"torch/lib/libtorch_cuda.so" || !slices.Equal(found[0].Seen, want) {
		t.Errorf("%+v", found)
	}
	bare := codeIn(t, "usr/share/kernels/x.cubin: 80")
	bare.GPU.Libraries[0].Format = fatbin.Cubin
	checkRule(t, "gpu-no-code", ruleCase{"a file that some program loads", bare, gpuTarget("9.0"), nil})
}

func withDriver(driver string, gpus ...string) cluster.Profile {
	return cluster.Profile{GPU: gpus, Driver: driver}
}

func TestPTXOnly(t *testing.T) {
	stack := codeIn(t, libTorch+"80 90 100 120", libCublas+"80 90 p90")
	extension := codeIn(t, venv+"xformers/_C.so: 80 p80")
	checkRule(
		t, "gpu-ptx-only",
		ruleCase{"no driver known", stack, gpuTarget("12.0"), []string{
			"warning: libcublas.so.12 has no machine code for compute capability 12.0, but PTX that the driver compiles if it is 550 or newer",
		}},
		ruleCase{"a driver that does", stack, withDriver("570.86.15", "12.0"), []string{
			"warning: libcublas.so.12 has no machine code for compute capability 12.0, but PTX that the driver compiles if it is 550 or newer",
		}},
		ruleCase{"a driver that does not", stack, withDriver("535.104.05", "12.0"), []string{
			"error: libcublas.so.12 has only PTX 8.4 for compute capability 12.0, which needs driver 550 or newer, and the target has 535.104.05",
		}},
		ruleCase{"an extension", extension, withDriver("535.104.05", "9.0"), []string{
			"warning: _C.so has only PTX 8.4 for compute capability 9.0, which needs driver 550 or newer, and the target has 535.104.05",
		}},
		ruleCase{"machine code", stack, withDriver("535.104.05", "9.0"), nil},
		ruleCase{"no target", stack, gpuTarget(), nil},
		ruleCase{"a better copy", codeIn(t, "usr/lib/libcublas.so.12: 80 p80", libCublas+"80 90"), gpuTarget("9.0"), nil},
		ruleCase{"a library for some GPUs", codeIn(t, venv+"nvidia/cufile/lib/libcufile.so.0: 80 p80"), gpuTarget("9.0"), nil},
	)
}

func TestPartWithoutCode(t *testing.T) {
	const linalg = venv + "torch/lib/libtorch_cuda_linalg.so: 80 90; 80 90; 80 90; 75 80 90"
	checkRule(
		t, "gpu-part-without-code",
		ruleCase{"MAGMA", codeIn(t, linalg), gpuTarget("7.5", "8.0"), []string{
			"warning: libtorch_cuda_linalg.so has code for compute capability 7.5, but not in all parts: 3 of 4 lack it",
		}},
		ruleCase{"all parts", codeIn(t, linalg), gpuTarget("8.6", "9.0"), nil},
		ruleCase{"one that chooses", codeIn(t, libCublas+"80 90; 80 90; 80 90; 75 80 90"), gpuTarget("7.5"), nil},
		ruleCase{"nothing at all", codeIn(t, linalg), gpuTarget("7.0"), nil},
	)
}

func TestSlimmed(t *testing.T) {
	slim := func(label string) *sample { return codeIn(t, libTorch+"90").withLabel(image.LabelSlim, label) }
	checkRule(
		t, "gpu-slimmed-for-other",
		ruleCase{"another GPU", slim("9.0"), gpuTarget("8.0", "9.0"), []string{"error: the image was slimmed for compute capability 9.0, and the target has 8.0"}},
		ruleCase{"two", slim("8.0 9.0"), gpuTarget("10.0"), []string{"error: the image was slimmed for compute capability 8.0, 9.0, and the target has 10.0"}},
		ruleCase{"the same", slim("9.0"), gpuTarget("9.0"), nil},
		ruleCase{"not slimmed", codeIn(t, libTorch+"90"), gpuTarget("8.0"), nil},
		ruleCase{"no target", slim("9.0"), gpuTarget(), nil},
	)
	checkRule(t, "gpu-no-code", ruleCase{"said once", slim("9.0"), gpuTarget("8.0"), nil})
}

func TestArchList(t *testing.T) {
	list := func(value string) *sample {
		return &sample{Config: v1.Config{Env: []string{"TORCH_CUDA_ARCH_LIST=" + value}}}
	}
	nothing := func(capability string) []string {
		return []string{"warning: TORCH_CUDA_ARCH_LIST has nothing that runs on compute capability " + capability +
			": extensions built in this image will have no code for it"}
	}
	checkRule(
		t, "gpu-arch-list",
		ruleCase{"no PTX", list("8.0"), gpuTarget("9.0"), nothing("9.0")},
		ruleCase{"the same major number", list("8.0"), gpuTarget("8.6"), nil},
		ruleCase{"of NGC", list("7.5 8.0 8.6 9.0 10.0 12.0+PTX"), gpuTarget("7.5", "9.0", "12.1"), nil},
		ruleCase{"only an older GPU's PTX", list("7.0;8.0+PTX"), gpuTarget("9.0"), []string{
			"note: TORCH_CUDA_ARCH_LIST has only PTX for compute capability 9.0: extensions built in this image will be compiled by the driver",
		}},
		ruleCase{"for one chip", list("9.0a"), gpuTarget("10.0"), nothing("10.0")},
		ruleCase{"a name", list("Hopper"), gpuTarget("8.0"), nothing("8.0")},
		ruleCase{"that name's own", list("Hopper"), gpuTarget("9.0"), nil},
		ruleCase{"not understood", list("Common"), gpuTarget("9.0"), nil},
		ruleCase{"not set", &sample{}, gpuTarget("9.0"), nil},
	)
}

func TestUnneededCode(t *testing.T) {
	large := codeIn(t, libTorch+"70 80 90; own 80 90", "usr/lib/libx.a: 70")
	large.GPU.Libraries[1].Linked = false
	for i := range large.GPU.Libraries[0].SASS {
		c := &large.GPU.Libraries[0].SASS[i]
		c.Size, c.Own = 300_000_000, 50_000_000
	}
	checkRule(
		t, "gpu-unneeded-code",
		ruleCase{"one GPU", large, gpuTarget("9.0"), []string{"note: 500.0 MB of 901.0 MB of device code are for other GPUs than 9.0"}},
		ruleCase{"two GPUs", large, gpuTarget("9.0", "8.0"), []string{"note: 250.0 MB of 901.0 MB of device code are for other GPUs than 8.0, 9.0"}},
		ruleCase{"all that there is", large, gpuTarget("7.0", "8.0", "9.0"), nil},
		ruleCase{"to be built again", large, gpuTarget("10.0"), nil},
		ruleCase{"little", codeIn(t, libTorch+"70 80 90"), gpuTarget("9.0"), nil},
		ruleCase{"no target", large, gpuTarget(), nil},
	)
}

func TestROCm(t *testing.T) {
	amd := func() facts.Library {
		return facts.Library{Path: venv + "torch/lib/libtorch_hip.so", Group: "torch", Format: fatbin.ELF, Linked: true, ROCm: []string{"gfx90a", "gfx942"}}
	}
	only := &sample{GPU: &facts.GPUReport{Libraries: []facts.Library{amd()}}}
	both := codeIn(t, venv+"b/libbitsandbytes_cuda130.so: 80 90")
	both.GPU.Libraries = append(both.GPU.Libraries, amd())
	checkRule(
		t, "gpu-rocm",
		ruleCase{"only AMD's", only, gpuTarget("9.0"), []string{
			"error: libtorch_hip.so has code for AMD's GPUs and the image none for NVIDIA's, which the target has",
		}},
		ruleCase{"both", both, gpuTarget("9.0"), nil},
		ruleCase{"no GPU named", only, gpuTarget(), nil},
	)
}

// Every name of a library is sorted as it should be.
func TestLibraryNames(t *testing.T) {
	for _, name := range []string{"libcublas.so.12", "libcublasLt.so.13", "libcudnn_engines_precompiled.so.9", "libnvjpeg.4a0b5c81.so.13", "libnppig.so.12", "libcufft.so.11"} {
		if !facts.OfToolkit(name) {
			t.Errorf("%s is not NVIDIA's", name)
		}
	}
	for _, name := range []string{"libcudf.so", "libcuml.so", "libnvinfo.so", "libtorch_cuda.so", "libcupy.so"} {
		if facts.OfToolkit(name) {
			t.Errorf("%s is NVIDIA's", name)
		}
	}
	for name, want := range map[string]bool{
		"torchao/_C_cutlass_90a.abi3.so": true, "sgl_kernel/sm100/common_ops.abi3.so": true, "vllm/_vllm_fa3_C.abi3.so": true, "x/flash_hopper.so": true,
		"vllm/_flashmla_C.abi3.so": true, "vllm/_C.abi3.so": false, "torchaudio/lib/libtorchaudio.so": false, "x/lib.cpython-312-x86_64-linux-gnu.so": false,
		"x/_C_120.so": false,
	} {
		if got := oneGPU.MatchString(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := fmt.Sprint(libraryNames([]*facts.Library{{Path: "a/b.so"}, {}, {}})); got != "b.so and 2 other libraries" {
		t.Error(got)
	}
}
