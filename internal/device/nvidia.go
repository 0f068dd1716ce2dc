package device

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// libraryDir is where the driver's libraries appear in the container: the place that NVIDIA's own images have had on their
// LD_LIBRARY_PATH ever since.
const libraryDir = "/usr/local/nvidia/lib64"

// driverLibraries are the libraries of NVIDIA's driver that compute and its tools use, without version: those of the
// capabilities "compute" and "utility" (NVIDIA Container Toolkit, "Driver Capabilities"; driver README, "Installed
// Components"). Programs open them by name, so all have to come from the kernel's driver.
var driverLibraries = []string{
	"libcuda.so", "libcudadebugger.so", "libnvidia-allocator.so", "libnvidia-cfg.so", "libnvidia-gpucomp.so", "libnvidia-ml.so",
	"libnvidia-nvvm.so", "libnvidia-nvvm70.so", "libnvidia-opencl.so", "libnvidia-pkcs11.so", "libnvidia-pkcs11-openssl3.so",
	"libnvidia-ptxjitcompiler.so", "libnvidia-sandboxutils.so", "libnvidia-tileiras.so",
}

// driverPrograms go to /usr/bin.
var driverPrograms = []string{"nvidia-smi", "nvidia-debugdump"}

// commonDevices serve all GPUs.
var commonDevices = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"}

// nvidia collects the driver's files. The error wraps fs.ErrNotExist when the kernel has no such driver.
func (h Host) nvidia(names []string) (*Edits, error) {
	version, err := h.DriverVersion()
	if err != nil {
		return nil, err
	}
	gpus, err := h.choose(names)
	if err != nil {
		return nil, err
	}
	e := &Edits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, From: "NVIDIA driver " + version} // void: no runtime inside shall add any
	for _, dev := range append(gpus, commonDevices...) {
		if h.exists(dev) {
			e.bind(h.path(dev), dev, false)
		}
	}
	dir := h.driverDir(version)
	if dir == "" {
		return nil, fault.Hint(fmt.Errorf("the kernel has NVIDIA's driver %s, but its libcuda.so.%s is in no library directory", version, version),
			"install the driver's libraries, or name their directory in LD_LIBRARY_PATH")
	}
	if err := e.bindLibraries(dir); err != nil {
		return nil, err
	}
	e.searched(libraryDir)
	for _, name := range driverPrograms {
		if file := h.program(name, dir); file != "" {
			e.bind(file, "/usr/bin/"+name, true)
		}
	}
	return e, nil
}

var driverVersion = lazyregexp.New(`NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

// DriverVersion returns the version of the kernel's NVIDIA driver, such as "580.159.04". The error wraps fs.ErrNotExist when
// there is none.
func (h Host) DriverVersion() (string, error) {
	text, err := os.ReadFile(h.path("/proc/driver/nvidia/version"))
	if err != nil {
		return "", err
	}
	m := driverVersion.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("/proc/driver/nvidia/version does not say the driver's version: %.80q", text)
	}
	return string(m[1]), nil
}

// choose returns the device files of GPUs. Their numbers are those of nvidia-smi, in the order of the PCI bus, and need not
// be those of the device files.
func (h Host) choose(names []string) ([]string, error) {
	all, err := h.gpus()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("NVIDIA's driver has no GPU: %w", fs.ErrNotExist)
	}
	if names[0] == All {
		return all, nil
	}
	var chosen []string
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= len(all) {
			return nil, fault.Usage(fault.Hint(fmt.Errorf("there is no GPU %q", name), fmt.Sprintf("there are 0 to %d", len(all)-1)))
		}
		chosen = append(chosen, all[n])
	}
	return chosen, nil
}

var (
	deviceMinor = lazyregexp.New(`(?m)^Device Minor:\s*(\d+)`)
	gpuDevice   = lazyregexp.New(`^nvidia(\d+)$`)
)

// gpus returns the device file of each GPU in the order of the PCI bus; where the driver does not list them, in that of
// their numbers.
func (h Host) gpus() ([]string, error) {
	dirs, err := os.ReadDir(h.path("/proc/driver/nvidia/gpus")) // named by address, and sorted
	if err == nil && len(dirs) > 0 {
		var files []string
		for _, d := range dirs {
			text, err := os.ReadFile(h.path("/proc/driver/nvidia/gpus/" + d.Name() + "/information"))
			if err != nil {
				return nil, err
			}
			if m := deviceMinor.FindSubmatch(text); m != nil {
				files = append(files, "/dev/nvidia"+string(m[1]))
			}
		}
		return files, nil
	}
	var numbers []int
	entries, err := os.ReadDir(h.path("/dev"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if m := gpuDevice.FindStringSubmatch(e.Name()); m != nil {
			n, _ := strconv.Atoi(m[1])
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var files []string
	for _, n := range numbers {
		files = append(files, fmt.Sprintf("/dev/nvidia%d", n))
	}
	return files, nil
}

// driverDir finds the directory with the libraries of exactly this driver. "" when there is none.
func (h Host) driverDir(version string) string {
	dirs := []string{
		"/usr/lib/" + multiarch(), "/lib/" + multiarch(), "/usr/lib64", "/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
		"/run/opengl-driver/lib", "/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/lib/wsl/lib", "/opt/nvidia/lib64",
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), dirs...) {
		if path.IsAbs(dir) && h.exists(dir+"/libcuda.so."+version) {
			return h.path(dir)
		}
	}
	return ""
}

// bindLibraries binds each library in dir under every name that it has there, and under its soname: links would lead out of
// the container.
func (e *Edits) bindLibraries(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name, _, ok := strings.Cut(entry.Name(), ".so")
		if !ok || !slices.Contains(driverLibraries, name+".so") {
			continue
		}
		file, err := filepath.EvalSymlinks(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // a link that leads nowhere
		}
		e.bind(file, path.Join(libraryDir, entry.Name()), true)
	}
	e.sonames()
	return nil
}

// program finds a program of the driver: on the PATH, or beside its libraries.
func (h Host) program(name, libraries string) string {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin", "/usr/local/nvidia/bin")
	for _, dir := range dirs {
		if path.IsAbs(dir) && h.exists(dir+"/"+name) {
			if file, err := filepath.EvalSymlinks(h.path(dir + "/" + name)); err == nil {
				return file
			}
		}
	}
	if file := filepath.Join(filepath.Dir(libraries), "bin", name); h.Root == "" {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}
