package facts

import (
	"strings"

	"sconce.dev/sconce/internal/elfx"
)

// driverLibraries are those of NVIDIA's driver that the container runtime brings in for computing and for what it calls
// utilities and video, and what their symbols begin with. Source: the lists in libnvidia-container's nvc_info.c and
// Apptainer's nvliblist.conf; the beginnings are those in the headers cuda.h, nvml.h, nvcuvid.h, nvEncodeAPI.h and
// nvOpticalFlowCommon.h.
var driverLibraries = []elfx.HostLibrary{
	{Name: "libcuda.so.1", Symbols: []string{"cu"}},
	{Name: "libcuda.so", Symbols: []string{"cu"}},
	{Name: "libcudadebugger.so.1"},
	{Name: "libnvidia-ml.so.1", Symbols: []string{"nvml"}},
	{Name: "libnvidia-ml.so", Symbols: []string{"nvml"}},
	{Name: "libnvidia-cfg.so.1"},
	{Name: "libnvidia-nscq.so.2"},
	{Name: "libnvidia-opencl.so.1"},
	{Name: "libnvidia-gpucomp.so"},
	{Name: "libnvidia-ptxjitcompiler.so.1"},
	{Name: "libnvidia-fatbinaryloader.so"},
	{Name: "libnvidia-allocator.so.1"},
	{Name: "libnvidia-compiler.so"},
	{Name: "libnvidia-nvvm.so.4"},
	{Name: "libnvcuvid.so.1", Symbols: []string{"cuvid"}},
	{Name: "libnvidia-encode.so.1", Symbols: []string{"NvEncode"}},
	{Name: "libnvidia-opticalflow.so.1", Symbols: []string{"NvOF"}},
	{Name: "libnvoptix.so.1"},
}

// IsDriverLibrary says whether the name is of a library that comes with NVIDIA's driver.
func IsDriverLibrary(name string) bool {
	for _, h := range driverLibraries {
		if SonameStem(name) == SonameStem(h.Name) {
			return true
		}
	}
	return strings.HasPrefix(name, "libnvidia-")
}

// SonameStem returns the name of a library up to .so.
func SonameStem(name string) string {
	stem, _, _ := strings.Cut(name, ".so")
	return stem
}
