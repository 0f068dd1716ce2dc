package test

import (
	"archive/tar"
	"fmt"
	"path/filepath"
	"strings"
)

// Directories of the images.
const (
	site     = "usr/local/lib/python3.12/site-packages/"
	multi    = "usr/lib/x86_64-linux-gnu/"
	cuda     = "usr/local/cuda-12.4/"
	solver   = "opt/solver/lib/libsolver.so"
	abi      = ".cpython-312-x86_64-linux-gnu.so"
	startDir = "PATH=/usr/local/bin:/usr/bin"
)

// library is an image with one library.
func library(f file) content { return content{files: files{solver: f}} }

func withSolver(f file) func(*content) { return withFile(solver, f) }

func deviceCodeImages(b binaries) []ailing {
	large := filepath.Join(b.dir, "code-large")
	return []ailing{
		{
			rule: "gpu-no-code", from: "dir", target: "--gpu 9.0", image: library(b.lib("code-80")), cure: withSolver(b.lib("code-80-90")),
			severity: "error", path: solver, message: "libsolver.so has no code for compute capability 9.0",
		},
		{
			rule: "gpu-ptx-only", from: "tar", target: "--gpu 9.0", image: library(b.lib("code-80-ptx")), cure: withSolver(b.lib("code-80-90")),
			severity: "warning", path: solver, message: "libsolver.so has no machine code for compute capability 9.0, but PTX that the driver compiles if it is newer than 615",
		},
		{
			rule: "gpu-part-without-code", from: "sqsh", target: "--gpu 8.0", image: library(b.lib("code-in-part")), cure: withSolver(b.lib("code-in-all")),
			severity: "warning", path: solver, message: "libsolver.so has code for compute capability 8.0, but not in all parts: 12 of 13 lack it",
		},
		{
			rule: "gpu-slimmed-for-other", from: "oci", target: "--gpu 9.0", image: content{labels: map[string]string{"dev.sconce.slim": "8.0"}},
			cure: withLabel("dev.sconce.slim", "8.0 9.0"), severity: "error", message: "the image was slimmed for compute capability 8.0, and the target has 9.0",
		},
		{
			rule: "gpu-arch-list", from: "sqsh", target: "--gpu 9.0", image: content{env: environment("TORCH_CUDA_ARCH_LIST=7.0;8.0")},
			cure: withVariable("TORCH_CUDA_ARCH_LIST", "7.0;8.0;9.0"), severity: "warning",
			message: "TORCH_CUDA_ARCH_LIST has nothing that runs on compute capability 9.0: extensions built in this image will have no code for it",
		},
		{
			rule: "gpu-unneeded-code", from: "mksquashfs", target: "--gpu 9.0", image: library(file{from: large}),
			cure: withSolver(file{from: large, at: b.largeArch, to: 90}), severity: "note",
			message: "210.0 MB of 210.0 MB of device code are for other GPUs than 9.0",
		},
		{
			rule: "gpu-rocm", from: "dir", target: "--gpu 9.0", image: library(b.lib("hip")), cure: withSolver(b.lib("code-80-90")),
			severity: "error", path: solver, message: "libsolver.so has code for AMD's GPUs and the image none for NVIDIA's, which the target has",
		},
	}
}

// distribution are the files by which pip knows an installed package; tag is that of its wheel.
func distribution(dir, name, version, tag string, lines ...string) files {
	info := fmt.Sprintf("%s%s-%s.dist-info/", dir, name, version)
	return files{
		info + "METADATA": text("Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + strings.Join(append(lines, ""), "\n")),
		info + "WHEEL":    text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: " + tag + "\n"),
	}
}

const (
	anyTag      = "py3-none-any"
	compiledTag = "cp312-cp312-manylinux_2_17_x86_64"
)

// python is an interpreter with packages.
func (b binaries) python(packages ...files) files {
	return join(append(packages, files{"usr/local/bin/python3.12": b.prog("python"), "usr/local/bin/python3": linkTo("python3.12")})...)
}

func torchVersion(version, cuda string) file {
	return text("__version__ = '" + version + "'\ncuda: Optional[str] = " + cuda + "\nhip: Optional[str] = None\n")
}

// torch is PyTorch as far as its metadata goes.
func torch(version, cuda string) files {
	return join(distribution(site, "torch", version, compiledTag), files{site + "torch/version.py": torchVersion(version, cuda)})
}

func driverImages(b binaries) []ailing {
	const compat = cuda + "compat/libcuda.so.550.54.15"
	return []ailing{
		{
			rule: "driver-too-old", from: "dir", target: "--driver 570.86.15", image: content{files: b.python(torch("2.9.0", "'13.0'"))},
			cure: withFile(site+"torch/version.py", torchVersion("2.9.0", "'12.8'")), severity: "error", path: site + "torch/version.py",
			message: "CUDA 13.0 needs driver 580.65.06 or newer, and the target has 570.86.15",
		},
		{
			rule: "driver-minor-version", from: "tar", target: "--driver 525.60.13", image: content{files: b.python(torch("2.6.0", "'12.4'"))},
			cure: withFile(site+"torch/version.py", torchVersion("2.6.0", "'12.0'")), severity: "note", path: site + "torch/version.py",
			message: "CUDA 12.4 is newer than driver 525.60.13, which was made for CUDA 12.0",
		},
		{
			rule: "driver-too-old-for-compression", from: "tar", target: "--gpu 9.0 --driver 525.60.13", image: library(b.lib("code-80-90")),
			cure: withSolver(b.lib("code-lz4")), severity: "error", path: solver,
			message: "libsolver.so has code compressed by zstd, which needs driver 550.54.14 or newer, and the target has 525.60.13",
		},
		{
			rule: "driver-requirement", from: "oci", target: "--driver 525.60.13", image: content{env: environment("NVIDIA_REQUIRE_CUDA=cuda>=12.4")},
			cure: withVariable("NVIDIA_REQUIRE_CUDA", "cuda>=12.0"), severity: "warning",
			message: "NVIDIA_REQUIRE_CUDA asks for more than driver 525.60.13, which was made for CUDA 12.0",
		},
		{
			rule: "driver-compat-shadows", from: "dir", target: "--gpu 9.0 --driver 580.65.06", image: content{files: files{
				compat: b.lib("libcuda"), "etc/ld.so.conf": text("include ld.so.conf.d/*.conf\n"), "etc/ld.so.conf.d/cuda.conf": text("/" + cuda + "compat\n"),
			}},
			cure: without("etc/ld.so.conf.d/cuda.conf"), severity: "error", path: compat,
			message: "/etc/ld.so.conf leads to libcuda of driver 550.54.15, older than the target's 580.65.06",
		},
		{
			rule: "driver-stubs-on-path", from: "sqsh", image: content{
				files: files{cuda + "lib64/stubs/libcuda.so.1": b.lib("libcuda")}, env: environment("LD_LIBRARY_PATH=/" + cuda + "lib64/stubs"),
			},
			cure: withoutVariable("LD_LIBRARY_PATH"), severity: "error", path: cuda + "lib64/stubs/libcuda.so.1",
			message: "LD_LIBRARY_PATH leads to the stub of libcuda.so.1 in /" + cuda + "lib64/stubs",
		},
		{
			rule: "driver-in-image", from: "tar", image: content{files: files{multi + "libnvidia-ml.so.535.104.05": b.lib("libcuda")}},
			cure: without(multi + "libnvidia-ml.so.535.104.05"), severity: "warning", path: multi + "libnvidia-ml.so.535.104.05",
			message: "libraries of driver 535.104.05 are in the image: libnvidia-ml.so.535.104.05",
		},
		{
			rule: "cuda-toolkit-differs", from: "dir", image: content{files: join(b.python(torch("2.6.0", "'12.4'")), files{
				"usr/local/cuda": linkTo("cuda-13.0"), "usr/local/cuda-13.0/bin/nvcc": b.prog("sh"), "usr/local/cuda-13.0/version.json": toolkitVersion("13.0.1"),
			})},
			cure: withFile("usr/local/cuda-13.0/version.json", toolkitVersion("12.4.1")), severity: "warning", path: site + "torch-2.6.0.dist-info",
			message: "torch 2.6.0 was built for CUDA 12.4, and the CUDA toolkit of the image is 13.0.1",
		},
	}
}

func toolkitVersion(v string) file {
	return text(`{"cuda": {"name": "CUDA SDK", "version": "` + v + `"}}` + "\n")
}

func duplicateImages(b binaries) []ailing {
	openMP := func(second string) files {
		return join(b.python(distribution(site, "torch", "2.6.0", compiledTag), distribution(site, "sklearn", "1.6", compiledTag)), files{
			site + "torch/_C" + abi: b.lib("needs-gomp"), site + "torch/libgomp-a34b3233.so.1": b.lib("gomp"),
			site + "sklearn/_x" + abi: b.lib(second), site + "sklearn/libiomp5.so": b.lib("iomp"), site + "sklearn/libgomp-1d85e7bc.so.1": b.lib("gomp-other"),
		})
	}
	return []ailing{
		{
			rule: "duplicate-nccl", from: "oci", image: content{
				files: join(b.python(torch("2.6.0", "'12.4'"), distribution(site, "nvidia_nccl_cu12", "2.21.5", compiledTag)), files{
					site + "torch/lib/libtorch_cuda.so": b.lib("torch-nccl"), site + "nvidia/nccl/lib/libnccl.so.2": b.lib("nccl"),
					"opt/nccl/lib/libnccl.so.2.18.1": b.lib("nccl"), "opt/nccl/lib/libnccl.so.2": linkTo("libnccl.so.2.18.1"),
				}),
				env: environment("LD_LIBRARY_PATH=/opt/nccl/lib"),
			},
			cure: withoutVariable("LD_LIBRARY_PATH"), severity: "error", path: "opt/nccl/lib/libnccl.so.2.18.1",
			message: "LD_LIBRARY_PATH puts NCCL 2.18.1 before version 2.21.5, which libtorch_cuda.so would get by itself",
		},
		{
			rule: "duplicate-cudnn", from: "sqsh", image: content{
				files: join(b.python(torch("2.6.0", "'12.4'"), distribution(site, "nvidia_cudnn_cu12", "9.5.1.17", compiledTag)), files{
					site + "torch/lib/libtorch_cuda.so": b.lib("torch-cudnn"), site + "nvidia/cudnn/lib/libcudnn.so.9": b.lib("cudnn"),
					site + "nvidia/cudnn/lib/libcudnn_graph.so.9": b.lib("cudnn-graph"),
					"opt/cudnn/lib/libcudnn_graph.so.9.1.0":       b.lib("cudnn-graph"), "opt/cudnn/lib/libcudnn_graph.so.9": linkTo("libcudnn_graph.so.9.1.0"),
				}),
				env: environment("LD_LIBRARY_PATH=/opt/cudnn/lib"),
			},
			cure: withoutVariable("LD_LIBRARY_PATH"), severity: "error", path: "opt/cudnn/lib/libcudnn_graph.so.9.1.0",
			message: "LD_LIBRARY_PATH has parts of cuDNN 9.1.0, which libcudnn.so.9 9.5.1.17 loads in place of its own",
		},
		{
			rule: "duplicate-openmp", from: "tar", image: content{files: openMP("needs-iomp")},
			cure: withFile(site+"sklearn/_x"+abi, b.lib("needs-gomp-other")), severity: "note", path: site + "torch/_C" + abi,
			message: "packages of Python 3.12 in /usr/local load 2 OpenMP runtimes: GNU (libgomp), Intel (libiomp5)",
		},
	}
}

func linkImages(b binaries) []ailing {
	start := []string{"start"}
	return []ailing{
		{
			rule: "link-undefined-symbol", from: "tar", image: content{files: join(
				b.python(torch("2.6.0", "'12.4'"), distribution(site, "flash_attn", "2.7.4", compiledTag)), files{
					site + "torch/__init__.py": text("from torch._C import *\n"), site + "torch/_C" + abi: b.lib("torch-C"), site + "torch/lib/libc10.so": b.lib("c10-new"),
					site + "flash_attn_2_cuda" + abi: b.lib("flash"),
				},
			)},
			cure: withFile(site+"torch/lib/libc10.so", b.lib("c10-old")), severity: "error", path: site + "flash_attn_2_cuda" + abi,
			message: "flash-attn 2.7.4 was built for another PyTorch than the image's (2.6.0), which lacks c10::Device::old",
		},
		{
			rule: "link-missing-library", from: "oci", image: content{files: files{"usr/bin/start": b.prog("needs-a")}, cmd: start},
			cure: withFile("usr/lib/liba.so.1", b.lib("liba")), severity: "error", path: "usr/bin/start",
			message: "/usr/bin/start needs liba.so.1, which the loader does not find in the image",
		},
		{
			rule: "link-missing-version", from: "sqsh", image: content{
				files: files{"usr/bin/start": b.prog("needs-stdcxx"), multi + "libstdc++.so.6": b.lib("stdcxx-old")}, cmd: start,
			},
			cure: withFile(multi+"libstdc++.so.6", b.lib("stdcxx-new")), severity: "error", path: "usr/bin/start",
			message: "/usr/bin/start needs version GLIBCXX_3.4.30 of libstdc++.so.6, but the image's (/" + multi + "libstdc++.so.6) has versions up to GLIBCXX_3.4.29",
		},
		{
			rule: "link-host-glibc", from: "dir", target: "--glibc 2.38 --runtime apptainer", image: content{files: files{multi + "libc.so.6": b.lib("libc-2.31")}},
			cure: withFile(multi+"libc.so.6", b.lib("libc-2.38")), severity: "warning", path: multi + "libc.so.6",
			message: "the image's C library has versions up to GLIBC_2.31, the host's is GLIBC_2.38, and the runtime brings in the driver's libraries and, with --nv, the host's OpenGL and OpenCL",
		},
		{
			rule: "link-cpu-architecture", from: "tar", image: content{files: files{
				"usr/bin/one": program(b.withByte("sh", elfMachine, arm64)), "usr/bin/two": program(b.withByte("sh", elfMachine, arm64)),
			}},
			cure: withFile("usr/bin/two", b.prog("sh")), severity: "error", path: "usr/bin/one",
			message: "the image says that it is for amd64, but 2 programs are for arm64 and 1 for amd64",
		},
		{
			rule: "link-cpu-level", from: "dir", target: "--cpu-level 2", image: content{files: files{"usr/bin/start": b.prog("v3")}},
			cure: withFile("usr/bin/start", b.prog("sh")), severity: "error", path: "usr/bin/start",
			message: "up to x86-64-v3 is needed by 1 file of the image, the target's processors have x86-64-v2",
		},
		{
			rule: "link-unusable-library", from: "tar", image: content{files: files{"usr/lib/libmodel.so": text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")}},
			cure: withFile("usr/lib/libmodel.so", b.lib("empty")), severity: "warning", path: "usr/lib/libmodel.so",
			message: "/usr/lib/libmodel.so cannot be loaded",
		},
		{
			rule: "link-program-interpreter", from: "oci", image: content{files: files{"usr/bin/start": b.prog("musl")}, cmd: start},
			cure: withFile("usr/bin/start", b.prog("sh")), severity: "error", path: "usr/bin/start",
			message: "/usr/bin/start needs the loader /lib/ld-musl-x86_64.so.1, which the image does not have",
		},
	}
}

// The processor that an ELF file is for (elf.h): the offset of the field, and a value.
const (
	elfMachine = 18
	arm64      = 183
)

// manyModules are modules of Python with byte code for as many as said.
func manyModules(n, compiled int) files {
	all := files{}
	for i := range n {
		all[fmt.Sprintf("%smany/m%d.py", site, i)] = text("x = 1\n")
		if i < compiled {
			all[fmt.Sprintf("%smany/__pycache__/m%d.cpython-312.pyc", site, i)] = text("code")
		}
	}
	return all
}

func pythonImages(b binaries) []ailing {
	const venv = "opt/venv/lib/python3.12/site-packages/"
	many := content{files: b.python(distribution(site, "many", "1.0", anyTag), manyModules(200, 60))}
	return []ailing{
		{
			rule: "python-requirement-unmet", from: "dir", image: content{files: b.python(
				distribution(site, "scipy", "1.11", anyTag, "Requires-Dist: numpy<2"), distribution(site, "numpy", "2.1.0", anyTag),
			)},
			cure:     withFile(site+"scipy-1.11.dist-info/METADATA", text("Metadata-Version: 2.1\nName: scipy\nVersion: 1.11\nRequires-Dist: numpy<3\n")),
			severity: "warning", path: site + "scipy-1.11.dist-info", message: "scipy 1.11 requires numpy<2, but numpy 2.1.0 is installed",
		},
		{
			rule: "python-abi", from: "oci", image: content{files: b.python(distribution(site, "x", "1.0", compiledTag), files{
				site + "x/__init__.py": text(""), site + "x/_m.cpython-310-x86_64-linux-gnu.so": b.lib("plain"),
			})},
			cure: func(c *content) {
				c.files[site+"x/_m"+abi] = b.lib("plain")
				delete(c.files, site+"x/_m.cpython-310-x86_64-linux-gnu.so")
			},
			severity: "error", path: site + "x/_m.cpython-310-x86_64-linux-gnu.so",
			message: "1 compiled module of x for CPython 3.10 on x86_64-linux-gnu, and Python 3.12 on x86_64 (glibc) cannot import it",
		},
		{
			rule: "python-shadowed", from: "tar", image: content{files: b.python(torch("2.6.0", "'12.4'"), distribution(venv, "torch", "2.7.0", compiledTag), files{
				"opt/venv/pyvenv.cfg": text("home = /usr/local/bin\ninclude-system-site-packages = true\nversion = 3.12.4\n"),
			})},
			cure:     withFile("opt/venv/pyvenv.cfg", text("home = /usr/local/bin\ninclude-system-site-packages = false\nversion = 3.12.4\n")),
			severity: "warning", path: venv + "torch-2.7.0.dist-info",
			message: "torch 2.7.0 in /" + venv[:len(venv)-1] + " hides version 2.6.0 in /" + site[:len(site)-1],
		},
		{
			rule: "python-no-bytecode", from: "sqsh", image: many, cure: func(c *content) { c.files = join(c.files, manyModules(200, 200)) },
			severity: "warning", path: site[:len(site)-1], message: "140 of 200 Python modules in /" + site[:len(site)-1] + " have no byte code for Python 3.12",
		},
		{
			rule: "python-torch-cpu", from: "dir", target: "--gpu 9.0", image: content{files: b.python(torch("2.6.0+cpu", "None"))},
			cure: withFile(site+"torch/version.py", torchVersion("2.6.0", "'12.4'")), severity: "error", path: site + "torch-2.6.0+cpu.dist-info",
			message: "torch 2.6.0+cpu is a build for the processor alone, and the target has GPUs of compute capability 9.0",
		},
		{
			rule: "python-torch-pair", from: "oci", image: content{files: b.python(
				torch("2.6.0", "'12.4'"), distribution(site, "torchvision", "0.20.1", compiledTag, "Requires-Dist: torch==2.5.1"),
			)},
			cure:     withFile(site+"torchvision-0.20.1.dist-info/METADATA", text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.21\nRequires-Dist: torch==2.6.0\n")),
			severity: "error", path: site + "torchvision-0.20.1.dist-info", message: "torchvision 0.20.1 requires torch==2.5.1, but torch 2.6.0 is installed",
		},
	}
}

func environmentImages(b binaries) []ailing {
	variable := func(rule, from, target, pair, severity, message string) ailing {
		name, _, _ := strings.Cut(pair, "=")
		return ailing{
			rule: rule, from: from, target: target, image: content{env: environment(pair)}, cure: withoutVariable(name), severity: severity, message: message,
		}
	}
	nccl := join(b.python(distribution(site, "nvidia_nccl_cu12", "2.27.5", compiledTag)), files{site + "nvidia/nccl/lib/libnccl.so.2": b.lib("nccl")})
	extra := files{"opt/extra/x.py": text("x = 1\n")}
	many := b.python()
	for _, name := range []string{"six", "idna", "click", "rich", "certifi"} {
		many = join(many, distribution(site, name, "1.0", anyTag))
	}
	return []ailing{
		{
			rule: "env-nvidia-devices", from: "sqsh", target: "--runtime pyxis", image: content{
				files: files{solver: b.lib("code-80-90")}, env: environment("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"),
			},
			cure: withVariable("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), severity: "warning",
			message: "NVIDIA_DRIVER_CAPABILITIES=utility lacks compute",
		},
		variable("env-cuda-visible-devices", "oci", "", "CUDA_VISIBLE_DEVICES=0", "warning", "the image sets CUDA_VISIBLE_DEVICES=0"),
		variable("env-not-set", "oci", "--runtime apptainer", "HOME=/data", "note", "Apptainer will not use the image's HOME: it sets that itself"),
		variable("env-multiline", "oci", "--runtime enroot", "BANNER=one\ntwo", "warning",
			"enroot will not set BANNER as the image has it, for its line breaks, quotes or ${NAME}"),
		variable("env-not-evaluated", "oci", "", "JOBS=$(nproc)", "warning", "JOBS has $(…) in its value, which is not evaluated"),
		variable("env-search-path", "sqsh", "", "LD_LIBRARY_PATH=/opt/nothing/lib:/usr/lib", "note", "LD_LIBRARY_PATH names 1 directory that the image does not have"),
		{
			rule: "env-python-path", from: "oci", image: content{files: extra, env: environment("PYTHONPATH=/opt/extra")}, cure: withoutVariable("PYTHONPATH"),
			severity: "note", message: "PYTHONPATH=/opt/extra comes before the packages of every Python in the image",
		},
		{
			rule: "env-user-site", from: "oci", target: "--runtime apptainer", image: content{files: many}, cure: withVariable("PYTHONNOUSERSITE", "1"),
			severity: "note", path: site[:len(site)-1], message: "~/.local/lib/python3.12 of the user comes before the 5 packages of /" + site[:len(site)-1],
		},
		{
			rule: "env-preload", from: "sqsh", image: content{env: environment("LD_PRELOAD=libempty.so")}, cure: withFile("usr/lib/libempty.so", b.lib("empty")),
			severity: "warning", message: "LD_PRELOAD names libempty.so, which the image does not have",
		},
		variable("env-debug", "sqsh", "", "CUDA_LAUNCH_BLOCKING=1", "note", "the image sets CUDA_LAUNCH_BLOCKING=1"),
		variable("env-build-flags", "oci", "", "MAX_JOBS=256", "note", "the image sets MAX_JOBS=256: as many compilers at once may need 1280 GB"),
		variable("env-secrets", "sqsh", "", "HF_TOKEN=hf_abcdefghijkl", "warning", "HF_TOKEN is in the image's environment, 15 characters"),
		variable("env-network-interface", "oci", "", "NCCL_SOCKET_IFNAME=eth0", "warning", "the image sets NCCL_SOCKET_IFNAME=eth0"),
		variable("env-nccl-workaround", "oci", "--fabric infiniband", "NCCL_IB_DISABLE=1", "warning",
			"the image sets NCCL_IB_DISABLE=1: NCCL will use TCP although the nodes have InfiniBand"),
		variable("env-nccl-net", "sqsh", "--fabric slingshot", "NCCL_NET=IB", "error",
			"NCCL_NET=IB asks for InfiniBand, but the nodes have Slingshot: NCCL will stop"),
		{
			rule: "env-nccl-plugin", from: "oci", image: content{files: nccl, env: environment("NCCL_NET_PLUGIN=spcx")}, cure: withoutVariable("NCCL_NET_PLUGIN"),
			severity: "warning", message: "NCCL_NET_PLUGIN=spcx names a plugin that NCCL does not find in the image",
		},
	}
}

func fileImages(b binaries) []ailing {
	one := func(rule, from, target, name string, ill, well file, severity, at, message string) ailing {
		return ailing{
			rule: rule, from: from, target: target, image: content{files: files{name: ill}}, cure: withFile(name, well),
			severity: severity, path: at, message: message,
		}
	}
	const key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
	device := file{kind: tar.TypeChar}
	return []ailing{
		{
			rule: "files-hidden", from: "dir", target: "--runtime pyxis", image: content{files: files{"tmp/model/weights": text("0123456789")}},
			cure: without("tmp/model/weights"), severity: "warning", path: "tmp", message: "pyxis will hide 1 file of 10 B that the image has in /tmp",
		},
		one("files-setuid", "tar", "", "opt/bin/helper", withMode(b.prog("sh"), 0o4755), b.prog("sh"),
			"warning", "opt/bin/helper", "1 program with setuid or setgid that no distribution brings"),
		one("files-world-writable", "dir", "", "opt/run.sh", withMode(text("#!/bin/sh\n"), 0o757), withMode(text("#!/bin/sh\n"), 0o755),
			"warning", "opt/run.sh", "everybody may write to 1 object, such as /opt/run.sh"),
		one("files-unreadable", "tar", "--runtime apptainer", "opt/data/model", withMode(text("0123456789"), 0o600), text("0123456789"),
			"warning", "opt/data", "users cannot read 1 file of 10 B in /opt/data"),
		one("files-devices", "tar", "", "opt/root/dev/null", device, text(""), "note", "opt/root/dev/null", "the image has 1 device file outside /dev"),
		one("files-caches", "dir", "", "root/.cache/pip/http/body", zeros(6_000_000), zeros(1000), "note", "root/.cache/pip",
			"caches of package managers take 6.0 MB in 1 file, in /root/.cache/pip"),
		one("files-static", "mksquashfs", "", cuda+"lib64/libcublas_static.a", zeros(600_000_000), zeros(9_000_000), "note", cuda+"lib64/libcublas_static.a",
			"static libraries of more than 10.0 MB take 600.0 MB in 1 file"),
		{
			rule: "files-in-hidden-layers", from: "oci", image: content{below: files{"opt/source.tar": zeros(60 << 20)}, files: files{"opt/.wh.source.tar": text("")}},
			cure: func(c *content) { c.below["opt/source.tar"] = text("") }, severity: "note",
			message: "62.9 MB in 1 file of lower layers are removed or replaced by layers above",
		},
		one("files-secrets", "tar", "", "root/.ssh/id_ed25519", text(key), text("ssh-ed25519 AAAA\n"), "warning", "root/.ssh/id_ed25519",
			"/root/.ssh/id_ed25519 has a private key, on line 1"),
	}
}

func networkImages(b binaries) []ailing {
	const nccl, ofi = site + "nvidia/nccl/lib/libnccl.so.2", "usr/lib/"
	with := func(more files) content {
		return content{files: join(b.python(distribution(site, "nvidia_nccl_cu12", "2.27.5", compiledTag)), files{nccl: b.lib("nccl")}, more)}
	}
	plugin := func(plugin, fabric string) content {
		return with(files{
			ofi + "libnccl-net.so": b.lib(plugin), ofi + "libfabric.so.1": b.lib(fabric), ofi + "libcxi.so.1": b.lib("cxi"), ofi + "libefa.so.1": b.lib("efa"),
		})
	}
	openMPI := files{
		"usr/lib/libmpi.so.40": b.lib("openmpi"), "usr/lib/libopen-pal.so.80": b.lib("openpal"), "usr/lib/libpmix.so.2": b.lib("pmix"),
		"usr/bin/app": b.prog("needs-openmpi"), "usr/lib/libmpi.so.12": b.lib("mpich"),
	}
	return []ailing{
		{
			rule: "network-plugin-missing", from: "sqsh", target: "--fabric slingshot", image: with(files{ofi + "libfabric.so.1": b.lib("fabric-cxi"), ofi + "libcxi.so.1": b.lib("cxi")}),
			cure: withFile(ofi+"libnccl-net.so", b.lib("plugin")), severity: "warning", path: nccl,
			message: "/" + nccl + " finds no network plugin for Slingshot: between nodes it will use TCP",
		},
		{
			rule: "network-plugin-version", from: "tar", target: "--fabric slingshot", image: plugin("plugin-old", "fabric-cxi"),
			cure: withFile(ofi+"libnccl-net.so", b.lib("plugin")), severity: "warning", path: ofi + "libnccl-net.so",
			message: "/" + ofi + "libnccl-net.so has no version of the plugin's interface that NCCL 2.27.5 looks for (6 to 10)",
		},
		{
			rule: "network-plugin-provider", from: "dir", target: "--fabric slingshot", image: plugin("plugin", "fabric-efa"),
			cure: withFile(ofi+"libfabric.so.1", b.lib("fabric-cxi")), severity: "warning", path: ofi + "libnccl-net.so",
			message: "NCCL will load /" + ofi + "libnccl-net.so, whose /" + ofi + "libfabric.so.1 has no provider cxi for Slingshot",
		},
		{
			rule: "network-copies", from: "dir", image: content{files: files{"usr/lib/libpmix.so.2": b.lib("pmix"), "opt/pmix/lib/libpmix.so.2": b.lib("pmix")}},
			cure: without("opt/pmix/lib/libpmix.so.2"), severity: "note", message: "the image has 2 copies of libpmix.so.2",
		},
		{
			rule: "network-mpi-family", from: "tar", target: "--mpi mpich", image: content{files: openMPI}, cure: withFile("usr/bin/app", b.prog("needs-mpich")),
			severity: "warning", path: "usr/lib/libmpi.so.40",
			message: "1 file uses the image's Open MPI (/usr/lib/libmpi.so.40), which the cluster's MPI of MPICH's family cannot replace",
		},
		{
			rule: "network-mpi-launch", from: "dir", target: "--pmi pmix", image: content{files: files{"usr/lib/libmpi.so.12": b.lib("mpich"), "usr/lib/libpmix.so.2": b.lib("pmix")}},
			cure: withFile("usr/lib/libmpi.so.12", b.lib("mpich-pmix")), severity: "warning", path: "usr/lib/libmpi.so.12",
			message: "/usr/lib/libmpi.so.12 is of MPICH's family and built without PMIx, and srun speaks pmix",
		},
		{
			rule: "network-verbs-missing", from: "oci", target: "--fabric infiniband", image: with(files{"usr/lib/libibverbs.so.1": b.lib("verbs")}),
			cure: withFile(multi+"libibverbs/libmlx5-rdmav34.so", b.lib("mlx5")), severity: "warning", path: "usr/lib/libibverbs.so.1",
			message: "/usr/lib/libibverbs.so.1 is there, but no driver of any adapter (such as libmlx5-rdmav34.so)",
		},
	}
}
