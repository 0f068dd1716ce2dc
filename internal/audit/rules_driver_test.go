package audit

import (
	"slices"
	"testing"

	"sconce.dev/sconce/internal/facts"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/cluster"
)

// withObjects gives the facts ELF files, whose sizes are those of stubs for libcuda.so and of libraries for all else.
func (f *sample) withObjects(objects ...facts.Object) *sample {
	f.Objects = objects
	return f
}

// library is a file without needs; its soname is what stands behind it.
func library(name string, soname ...string) facts.Object {
	o := facts.Object{Path: name, Size: 30 << 20, Arch: "amd64", Kind: "shared", Dynamic: true}
	if len(soname) > 0 {
		o.Soname = soname[0]
	}
	return o
}

func stub(name string) facts.Object {
	o := library(name, "libcuda.so.1")
	o.Size = 60_000
	return o
}

func program(name string, needed ...string) facts.Object {
	return facts.Object{Path: name, Size: 1 << 20, Arch: "amd64", Kind: "pie", Dynamic: true, Needed: needed}
}

func (f *sample) withEnv(env ...string) *sample {
	f.Config = v1.Config{Env: env}
	return f
}

func (f *sample) withPython(distributions ...facts.Distribution) *sample {
	f.Pythons = append(f.Pythons, facts.Python{Dir: "opt/venv/lib/python3.12/site-packages", Version: "3.12", Distributions: distributions})
	return f
}

func onDriver(driver string, gpus ...string) cluster.Profile {
	return cluster.Profile{Driver: driver, GPU: gpus}
}

func onRuntime(r cluster.Runtime, driver string, gpus ...string) cluster.Profile {
	return cluster.Profile{Driver: driver, GPU: gpus, Runtime: r}
}

const compat13 = "usr/local/cuda-13.0/compat/libcuda.so.580.95.05"

// cuda13 is an image with CUDA 13.2, found by everything that tells it.
func cuda13() *sample {
	f := &sample{Root: mapRoot{
		"opt/venv/lib/python3.12/site-packages/torch/version.py": "__version__ = '2.15.0'\ndebug = False\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n",
	}}
	return f.withObjects(
		library("opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", "libcudart.so.13"),
		program("opt/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so", "libcudart.so.13", "libc.so.6"),
	).withPython(
		facts.Distribution{Name: "nvidia-cuda-runtime", Version: "13.2.86", Dir: "x/nvidia_cuda_runtime-13.2.86.dist-info"},
		facts.Distribution{Name: "torch", Version: "2.15.0", Dir: "x/torch-2.15.0.dist-info"},
	)
}

func cuda12() *sample {
	return (&sample{}).withObjects(
		library("opt/x/libcudart-9335f6a2.so.12.4.127", "libcudart-9335f6a2.so.12.4.127"),
		program("opt/x/solver", "libcudart-9335f6a2.so.12.4.127"),
	)
}

func TestDriverTooOld(t *testing.T) {
	compat := func(env ...string) *sample {
		f := cuda13().withEnv(env...)
		return f.withObjects(append(f.Objects, library(compat13, "libcuda.so.1"))...)
	}
	const (
		tooOld = "CUDA 13.2 needs driver 580.65.06 or newer, and the target has 570.86.15"
		path   = "LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat:/usr/local/nvidia/lib64"
	)
	linked := compat()
	linked.Root = aliasRoot{linked.Root.(mapRoot), map[string]string{"/usr/local/cuda/compat": "/usr/local/cuda-13.0/compat"}}
	checkRule(
		t, "driver-too-old",
		ruleCase{"another major version", cuda13(), onDriver("570.86.15", "9.0"), []string{"error: " + tooOld}},
		ruleCase{"the first that will do", cuda13(), onDriver("580.65.06"), nil},
		ruleCase{"just the branch", cuda13(), onDriver("580"), nil},
		ruleCase{"one before", cuda13(), onDriver("580.65.05"), []string{"error: CUDA 13.2 needs driver 580.65.06 or newer, and the target has 580.65.05"}},
		ruleCase{"minor-version compatibility", cuda12(), onDriver("525.60.13"), nil},
		ruleCase{"before that", cuda12(), onDriver("520.61.05"), []string{"error: CUDA 12.4 needs driver 525.60.13 or newer, and the target has 520.61.05"}},
		ruleCase{"driver not known", cuda13(), onDriver("", "9.0"), nil},
		ruleCase{"only the base image", (&sample{}).withEnv("CUDA_VERSION=13.0.1"), onDriver("570.86.15"), []string{
			"error: CUDA 13.0 needs driver 580.65.06 or newer, and the target has 570.86.15",
		}},
		ruleCase{"a base image whose CUDA nothing uses", cuda12().withEnv("CUDA_VERSION=13.0.1"), onDriver("570.86.15"), nil},
		ruleCase{"a CUDA of the future", (&sample{}).withEnv("CUDA_VERSION=14.0.0"), onDriver("570.86.15"), nil},
		ruleCase{"no CUDA", &sample{}, onDriver("450.80.02"), nil},
		ruleCase{"compatibility libraries", compat(path), onDriver("570.86.15", "9.0"), []string{
			"note: " + tooOld + "; the image's compatibility libraries of driver 580.95.05 make up for it (found by LD_LIBRARY_PATH)",
		}},
		ruleCase{"on GPUs that may not take them", compat(path), onDriver("570.86.15", "8.9"), []string{
			"warning: " + tooOld + "; the image's compatibility libraries of driver 580.95.05 may make up for it (found by LD_LIBRARY_PATH)",
		}},
		ruleCase{"on a driver of a short-lived branch", compat(path), onDriver("560.35.03", "9.0"), []string{
			"warning: CUDA 13.2 needs driver 580.65.06 or newer, and the target has 560.35.03; the image's compatibility libraries of " +
				"driver 580.95.05 may make up for it (found by LD_LIBRARY_PATH)",
		}},
		ruleCase{"not found", compat(), onRuntime(cluster.Apptainer, "570.86.15", "9.0"), []string{
			"error: " + tooOld + "; the image has compatibility libraries of driver 580.95.05, which are not used",
		}},
		ruleCase{"found by the hook", linked, onRuntime(cluster.Pyxis, "570.86.15", "9.0"), []string{
			"note: " + tooOld + "; the image's compatibility libraries of driver 580.95.05 make up for it (found by NVIDIA's hook)",
		}},
	)
	var found Finding
	s := &Subject{Facts: (*facts.Facts)(cuda13()), Target: onDriver("570.86.15"), Context: t.Context()}
	if err := lookDriverTooOld(s, func(f Finding) { found = f }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13",
		"nvidia-cuda-runtime 13.2.86 in /opt/venv/lib/python3.12/site-packages", "torch 2.15.0 is built for CUDA 13.2",
	}
	if !slices.Equal(found.Seen, want) || "/"+found.Path != want[0] {
		t.Errorf("%+v", found)
	}
}

// aliasRoot has links to directories.
type aliasRoot struct {
	mapRoot

	links map[string]string
}

func (r aliasRoot) Resolve(name string) (string, error) {
	if to, ok := r.links[name]; ok {
		return to, nil
	}
	return r.mapRoot.Resolve(name)
}

func TestMinorVersion(t *testing.T) {
	checkRule(
		t, "driver-minor-version",
		ruleCase{"12.4 on 525", cuda12(), onDriver("525.60.13"), []string{"note: CUDA 12.4 is newer than driver 525.60.13, which was made for CUDA 12.0"}},
		ruleCase{"13.2 on 580", cuda13(), onDriver("580.65.06"), []string{"note: CUDA 13.2 is newer than driver 580.65.06, which was made for CUDA 13.0"}},
		ruleCase{"its own", cuda12(), onDriver("550.54.15"), nil},
		ruleCase{"a newer one", cuda12(), onDriver("580.65.06"), nil},
		ruleCase{"one that is too old", cuda13(), onDriver("550.54.15"), nil},
		ruleCase{"driver not known", cuda12(), onDriver(""), nil},
	)
}

func TestCompression(t *testing.T) {
	const library = "opt/x/libsolver.so: "
	checkRule(
		t, "driver-too-old-for-compression",
		ruleCase{"525", codeIn(t, library+"80z 90z; 80z 90z"), onDriver("525.60.13", "9.0"), []string{
			"error: libsolver.so has code compressed by zstd, which needs driver 550.54.14 or newer, and the target has 525.60.13",
		}},
		ruleCase{"no GPU named", codeIn(t, library+"80z 90z; 80z 90z"), onDriver("525.60.13"), []string{
			"error: libsolver.so has code compressed by zstd, which needs driver 550.54.14 or newer, and the target has 525.60.13",
		}},
		ruleCase{"the first that unpacks it", codeIn(t, library+"80z 90z"), onDriver("550.54.14", "9.0"), nil},
		ruleCase{"lz4", codeIn(t, library+"80 90"), onDriver("525.60.13", "9.0"), nil},
		ruleCase{"zstd for another GPU", codeIn(t, library+"80 90z"), onDriver("525.60.13", "8.0"), nil},
		ruleCase{"a copy", codeIn(t, venv+"b/libbitsandbytes_cuda130.so: 80z", venv+"b/libbitsandbytes_cuda124.so: 80"), onDriver("525.60.13", "8.0"), nil},
		ruleCase{"driver not known", codeIn(t, library+"80z 90z"), onDriver("", "9.0"), nil},
		ruleCase{"no report", &sample{}, onDriver("525.60.13", "9.0"), nil},
	)
}

func TestCompatShadows(t *testing.T) {
	image := func(env string) *sample {
		return (&sample{Root: mapRoot{}}).withObjects(library("usr/local/cuda-12.4/compat/libcuda.so.550.54.15", "libcuda.so.1")).withEnv(env)
	}
	config := image("A=b")
	config.Root = mapRoot{
		"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n", "etc/ld.so.conf.d/cuda.conf": "# CUDA\n/usr/local/cuda-12.4/compat\n",
	}
	marked := image("A=b")
	marked.Root = mapRoot{
		"etc/ld.so.conf": "include /etc/*.d/*.conf\n", "etc/ld.so.conf.d/cuda.conf": "/usr/local/cuda-12.4/compat=libc6\n",
	}
	const path = "LD_LIBRARY_PATH=/usr/local/cuda-12.4/compat"
	checkRule(
		t, "driver-compat-shadows",
		ruleCase{"a newer driver", image(path), onDriver("580.65.06", "9.0"), []string{
			"error: LD_LIBRARY_PATH leads to libcuda of driver 550.54.15, older than the target's 580.65.06",
		}},
		ruleCase{"by ldconfig", config, onDriver("580.65.06", "9.0"), []string{
			"error: /etc/ld.so.conf leads to libcuda of driver 550.54.15, older than the target's 580.65.06",
		}},
		ruleCase{"by all that ldconfig understands", marked, onDriver("580.65.06", "9.0"), []string{
			"error: /etc/ld.so.conf leads to libcuda of driver 550.54.15, older than the target's 580.65.06",
		}},
		ruleCase{"of the same branch", image(path), onDriver("550.90.07", "9.0"), []string{
			"warning: LD_LIBRARY_PATH leads to libcuda of driver 550.54.15, older than the target's 550.90.07",
		}},
		ruleCase{"the same branch, as far as known", image(path), onDriver("550", "9.0"), nil},
		ruleCase{"an older driver", image(path), onDriver("535.104.05", "9.0"), nil},
		ruleCase{"an older driver with a GPU that may not take it", image(path), onDriver("535.104.05", "8.9"), []string{
			"warning: LD_LIBRARY_PATH leads to libcuda of driver 550.54.15, newer than the target's 535.104.05, which would do",
		}},
		ruleCase{"not on the path", image("LD_LIBRARY_PATH=/usr/local/nvidia/lib64"), onDriver("580.65.06", "9.0"), nil},
		ruleCase{"driver not known", image(path), onDriver("", "9.0"), nil},
	)
}

func TestStubs(t *testing.T) {
	image := func(env string, objects ...facts.Object) *sample {
		return (&sample{Root: mapRoot{}}).withEnv(env).withObjects(objects...)
	}
	const dir = "usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs/"
	config := image("A=b", stub(dir+"libcuda.so"))
	config.Root = mapRoot{"etc/ld.so.conf": "/" + dir + "\n"}
	checkRule(
		t, "driver-stubs-on-path",
		ruleCase{"with the soname", image("LD_LIBRARY_PATH=/"+dir, stub(dir+"libcuda.so.1")), onDriver(""), []string{
			"error: LD_LIBRARY_PATH leads to the stub of libcuda.so.1 in /" + dir[:len(dir)-1],
		}},
		ruleCase{"without", image("LD_LIBRARY_PATH=/"+dir, stub(dir+"libcuda.so")), onDriver(""), []string{
			"warning: LD_LIBRARY_PATH leads to the stub of libcuda.so in /" + dir[:len(dir)-1],
		}},
		ruleCase{"by ldconfig", config, onDriver(""), []string{"error: /etc/ld.so.conf leads to the stub of libcuda.so.1 in /" + dir[:len(dir)-1]}},
		ruleCase{"a copy beside the system's libraries", image("A=b", stub("usr/lib/x86_64-linux-gnu/libcuda.so.1")), onDriver(""), []string{
			"error: a stub of libcuda.so.1 is in /usr/lib/x86_64-linux-gnu, where the host's driver is to be found",
		}},
		ruleCase{"for linking", image("LIBRARY_PATH=/"+dir, stub(dir+"libcuda.so")), onDriver(""), nil},
		ruleCase{"a driver", image("LD_LIBRARY_PATH=/opt/compat", library("opt/compat/libcuda.so.1")), onDriver(""), nil},
	)
}

func TestDriverInImage(t *testing.T) {
	image := (&sample{}).withObjects(
		library("usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05", "libcuda.so.1"), library("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.104.05"),
		library("usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.17.4"), library("usr/lib/libcudart.so.12.4.127"), library(compat13),
		library("opt/conda/cuda-compat/libcuda.so.580.95.05"),
	)
	const libraries = " libraries of driver 535.104.05 are in the image: libcuda.so.535.104.05, libnvidia-ml.so.535.104.05"
	checkRule(
		t, "driver-in-image",
		ruleCase{"any target", image, onDriver(""), []string{"warning:" + libraries}},
		ruleCase{"another driver", image, onDriver("550.54.15"), []string{"warning:" + libraries}},
		ruleCase{"the same driver", image, onDriver("535.104.05"), []string{"note:" + libraries}},
		ruleCase{"compatibility libraries", (&sample{}).withObjects(library(compat13)), onDriver(""), nil},
	)
}

func TestRequirement(t *testing.T) {
	// As NVIDIA's images have it, here with fewer brands.
	const requires = "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=tesla,driver>=545,driver<546"
	image := func(env ...string) *sample { return (&sample{}).withEnv(append(env, requires)...) }
	const refused = "NVIDIA_REQUIRE_CUDA asks for more than driver 525.60.13, which was made for CUDA 12.0"
	checkRule(
		t, "driver-requirement",
		ruleCase{"not met", image(), onDriver("525.60.13"), []string{"warning: " + refused}},
		ruleCase{"where it is asked", image(), onRuntime(cluster.Pyxis, "525.60.13"), []string{"error: " + refused}},
		ruleCase{"where it is not", image(), onRuntime(cluster.Apptainer, "525.60.13"), nil},
		ruleCase{"by the driver's branch", image(), onDriver("535.104.05"), nil},
		ruleCase{"by CUDA", image(), onDriver("550.54.15"), nil},
		ruleCase{"switched off", image("NVIDIA_DISABLE_REQUIRE=1"), onDriver("525.60.13"), nil},
		ruleCase{"driver not known", image(), onDriver(""), nil},
		ruleCase{"by the GPU", (&sample{}).withEnv("NVIDIA_REQUIRE_ARCH=arch>=8.0"), onDriver("550.54.15", "7.0"), []string{
			"warning: NVIDIA_REQUIRE_ARCH asks for more than driver 550.54.15, which was made for CUDA 12.4",
		}},
		ruleCase{"a GPU that does", (&sample{}).withEnv("NVIDIA_REQUIRE_ARCH=arch>=8.0"), onDriver("550.54.15", "9.0"), nil},
		ruleCase{"not understood", (&sample{}).withEnv("NVIDIA_REQUIRE_X=what?"), onDriver("550.54.15"), nil},
	)
}

// A libcuda that is found before the host's counts for PTX and for compression.
func TestCompatCounts(t *testing.T) {
	f := codeIn(t, "opt/x/libsolver.so: 80z p80z").withEnv("LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat").withObjects(library(compat13))
	clean := []ruleCase{{"newer on the path", f, onDriver("535.104.05", "8.0"), nil}}
	checkRule(t, "driver-too-old-for-compression", clean...)
	checkRule(t, "gpu-ptx-only", ruleCase{"newer on the path", f, onDriver("535.104.05", "9.0"), []string{
		"warning: libsolver.so has no machine code for compute capability 9.0, but PTX that the driver compiles if it is 550 or newer",
	}})
}
