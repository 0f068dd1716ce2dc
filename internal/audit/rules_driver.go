package audit

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/units"
)

// driverRules are about NVIDIA's driver on the cluster, and what an image expects or brings of it.
var driverRules = []Rule{
	{
		ID: "driver-too-old", Severity: Error,
		Title: "CUDA that the driver is too old for",
		Why: "CUDA does not start: \"CUDA driver version is insufficient for CUDA runtime version\", and torch says that the driver on your " +
			"system is too old. Within a major version of CUDA an older driver will do, but not across.",
		Remedy: "build with a CUDA that the driver takes ([python] torch-backend in the recipe names it: \"cu126\" is for drivers from 525 on), " +
			"or install NVIDIA's cuda-compat package, which works on data-centre GPUs",
		look: lookDriverTooOld,
	},
	{
		ID: "driver-minor-version", Severity: Note,
		Title: "CUDA that is newer than the driver",
		Why: "It runs by minor-version compatibility. What does not: functions that are new in this CUDA, and PTX of its version, which the " +
			"driver cannot compile.",
		Remedy: "nothing, as long as the libraries have machine code for the GPU (rules gpu-no-code and gpu-ptx-only)",
		look:   lookMinorVersion,
	},
	{
		ID: "driver-too-old-for-compression", Severity: Error,
		Title: "Device code that the driver cannot unpack",
		Why: "The code is compressed by zstd, as nvcc does since CUDA 12.4 with --compress-mode and since 13.0 always. An older driver finds no " +
			"code in it and says \"no kernel image is available\" or \"device kernel image is invalid\".",
		Remedy: "use a build of the package for an older CUDA, or have it compiled without: [python.compile.NAME] with " +
			"env = { NVCC_APPEND_FLAGS = \"--compress-mode=speed\" } in the recipe",
		look: lookCompression,
	},
	{
		ID: "driver-requirement", Severity: Warning,
		Title: "NVIDIA_REQUIRE_CUDA that the driver does not meet",
		Why: "The tools that bring NVIDIA's driver into a container compare it with NVIDIA_REQUIRE_CUDA, and refuse to start the container: " +
			"\"requirement error: unsatisfied condition\".",
		Remedy: "use a base image for a CUDA that the driver was made for; or, where minor-version compatibility is enough, set in the recipe " +
			"[image] env = { NVIDIA_DISABLE_REQUIRE = \"1\" }",
		look: lookRequirement,
	},
	{
		ID: "driver-compat-shadows", Severity: Error,
		Title: "CUDA compatibility libraries older than the driver",
		Why: "The image's libcuda.so.1 is found before the host's, and does not go with its kernel module: error 803, \"system has unsupported " +
			"display driver / cuda driver combination\".",
		Remedy: "take the compat directory out of LD_LIBRARY_PATH and of /etc/ld.so.conf.d: runtimes with NVIDIA's hook use " +
			"/usr/local/cuda/compat by themselves where it helps",
		look: lookCompatShadows,
	},
	{
		ID: "driver-stubs-on-path", Severity: Error,
		Title: "The stub of libcuda where the loader finds it",
		Why: "The stub is for linking only: each of its functions fails with error 34, \"CUDA driver is a stub library\", and the " +
			"host's driver behind it is never reached.",
		Remedy: "take the stubs directory out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, where LIBRARY_PATH is enough for linking",
		look:   lookStubs,
	},
	{
		ID: "driver-in-image", Severity: Warning,
		Title: "NVIDIA's driver inside the image",
		Why: "The driver's libraries must be of the version of the host's kernel module, so the runtime brings them from the host. Those in " +
			"the image are in the way: the loader may find them first, and then says \"driver/library version mismatch\".",
		Remedy: "remove the packages that brought them (libcuda1, libnvidia-compute-*, nvidia-driver-*), and install the CUDA toolkit without " +
			"a driver: cuda-toolkit-*, not cuda or nvidia-cuda-toolkit",
		look: lookDriverInImage,
	},
}

func lookDriverTooOld(s *Subject, report func(Finding)) error {
	driver := s.driver()
	if driver == nil {
		return nil
	}
	for _, f := range s.cudas() {
		least := cuda.MinimumDriver(f.version)
		if least == nil || !driver.OlderThan(least) {
			continue
		}
		found := Finding{
			Message: fmt.Sprintf("CUDA %s needs driver %s or newer, and the target has %s", f.version, least, driver),
			Path:    f.path, Seen: f.seen,
		}
		if c := s.newestCompat(); c != nil && !c.version.OlderThan(least) {
			s.addCompat(&found, c)
		}
		report(found)
	}
	return nil
}

// driverTooOld is whether CUDA does not start with the driver that programs will have.
func (s *Subject) driverTooOld() bool {
	driver := s.userDriver()
	return driver != nil && s.needsNewer(driver)
}

// needsNewer is whether some CUDA of the image is not for a driver.
func (s *Subject) needsNewer(driver cuda.Driver) bool {
	return slices.ContainsFunc(s.cudas(), func(f family) bool {
		least := cuda.MinimumDriver(f.version)
		return least != nil && driver.OlderThan(least)
	})
}

// addCompat says what compatibility libraries, new enough for the CUDA, make of a driver that is not.
func (s *Subject) addCompat(f *Finding, c *userLibrary) {
	f.Seen = append(f.Seen, rooted(c.path))
	by := s.reaches(c)
	if by == "" {
		f.Message += fmt.Sprintf("; the image has compatibility libraries of driver %s, which are not used", c.version)
		f.Remedy = fmt.Sprintf("put %s first in LD_LIBRARY_PATH: [image] env in the recipe (on data-centre GPUs only)", c.dir())
		return
	}
	f.Severity = s.compatVerdict()
	switch f.Severity {
	case Note:
		f.Message += fmt.Sprintf("; the image's compatibility libraries of driver %s make up for it (found by %s)", c.version, by)
		f.Why = "libcuda of the newer driver runs on the older kernel module (CUDA Compatibility, \"Forward Compatibility\"), without " +
			"interoperation with OpenGL and Vulkan."
		f.Remedy = "nothing"
	default:
		f.Message += fmt.Sprintf("; the image's compatibility libraries of driver %s may make up for it (found by %s)", c.version, by)
		f.Why = "Forward compatibility works on data-centre GPUs and from long-lived branches of the driver (450, 470, 525, 535, 550, 570, " +
			"580). On others CUDA ends with error 804, \"forward compatibility was attempted on non supported HW\"."
	}
}

func lookMinorVersion(s *Subject, report func(Finding)) error {
	driver := s.userDriver()
	if driver == nil {
		return nil
	}
	made := cuda.Newest(driver)
	for _, f := range s.cudas() {
		least := cuda.MinimumDriver(f.version)
		if least == nil || driver.OlderThan(least) || f.version.Major != made.Major || f.version.Minor <= made.Minor {
			continue
		}
		report(Finding{
			Message: fmt.Sprintf("CUDA %s is newer than driver %s, which was made for CUDA %s", f.version, driver, made),
			Path:    f.path, Seen: f.seen,
		})
	}
	return nil
}

func lookCompression(s *Subject, report func(Finding)) error {
	driver := s.userDriver()
	if driver == nil || !driver.OlderThan(cuda.ZstdDriver) || s.GPU == nil {
		return nil
	}
	if s.driverTooOld() {
		return nil // it does not come to that
	}
	var list []*facts.Library
	var seen []string
	for i := range s.GPU.Libraries {
		l := &s.GPU.Libraries[i]
		if n := s.zstdRegions(l); n > 0 && counts(l) && !s.hasReadableCopy(l) {
			list = append(list, l)
			seen = append(seen, fmt.Sprintf("%s: %d of %d regions", rooted(l.Path), n, l.Regions))
		}
	}
	if len(list) > 0 {
		report(Finding{
			Message: fmt.Sprintf("%s %s code compressed by zstd, which needs driver %s or newer, and the target has %s",
				libraryNames(list), has(list), cuda.ZstdDriver, driver),
			Path: list[0].Path, Seen: seen,
		})
	}
	return nil
}

// hasReadableCopy is whether there is a copy of a library without such code: libbitsandbytes_cuda124 of libbitsandbytes_cuda130.
func (s *Subject) hasReadableCopy(l *facts.Library) bool {
	return slices.ContainsFunc(s.GPU.Libraries, func(o facts.Library) bool {
		return o.Path != l.Path && o.Linked && len(o.Runs) > 0 && facts.Stem(o.Path) == facts.Stem(l.Path) && s.zstdRegions(&o) == 0
	})
}

// zstdRegions is how many regions of a library a GPU of the target runs from zstd, of all GPUs when none is named.
func (s *Subject) zstdRegions(l *facts.Library) int {
	if gpus := s.gpus(); len(gpus) > 0 {
		most := 0
		for _, sm := range gpus {
			if c := l.SupportFor(sm); c != nil {
				most = max(most, c.Zstd)
			}
		}
		return most
	}
	least := 0
	for i, c := range l.Runs {
		if i == 0 || c.Zstd < least {
			least = c.Zstd
		}
	}
	return least
}

func lookCompatShadows(s *Subject, report func(Finding)) error {
	driver := s.driver()
	if driver == nil {
		return nil
	}
	for _, c := range s.compats() {
		if c.by == "" {
			continue
		}
		switch {
		case c.version.Branch() < driver.Branch():
			report(Finding{
				Message: fmt.Sprintf("%s leads to libcuda of driver %s, older than the target's %s", c.by, c.version, driver),
				Path:    c.path, Seen: []string{c.by + ": " + c.dir()},
			})
		case c.version.OlderThan(driver):
			report(Finding{
				Severity: Warning,
				Message:  fmt.Sprintf("%s leads to libcuda of driver %s, older than the target's %s", c.by, c.version, driver),
				Path:     c.path, Seen: []string{c.by + ": " + c.dir()},
			})
		case driver.OlderThan(c.version) && len(s.gpus()) > 0 && s.compatVerdict() != Note && !s.needsNewer(driver):
			report(Finding{
				Severity: Warning,
				Message:  fmt.Sprintf("%s leads to libcuda of driver %s, newer than the target's %s, which would do", c.by, c.version, driver),
				Path:     c.path, Seen: []string{c.by + ": " + c.dir()},
				Why: "Newer libraries on an older kernel module work on data-centre GPUs only: on others CUDA ends with error 804, \"forward " +
					"compatibility was attempted on non supported HW\".",
			})
		}
	}
	return nil
}

// stubSize is below what size a libcuda is a stub, in bytes: stubs have some 50 kB, drivers 10 MB and more.
const stubSize = 1 << 20

// builtinDirs are where a loader looks by itself; with the name of the architecture on Debian.
var builtinDirs = lazyregexp.New(`^(usr/)?lib(64)?(/[a-z0-9_]+-linux-gnu)?$`)

func lookStubs(s *Subject, report func(Finding)) error {
	dirs := s.loaderDirs()
	for i := range s.Objects {
		o := &s.Objects[i]
		dir, base := path.Dir(o.Path), path.Base(o.Path)
		if base != "libcuda.so" && base != "libcuda.so.1" || o.Size >= stubSize {
			continue
		}
		by := dirs["/"+dir]
		found := Finding{Path: o.Path, Seen: []string{fmt.Sprintf("%s: %s", rooted(o.Path), units.Size(o.Size))}}
		switch {
		case by == "" && builtinDirs.MatchString(dir) && base == "libcuda.so.1":
			found.Message = "a stub of libcuda.so.1 is in /" + dir + ", where the host's driver is to be found"
			found.Remedy = "remove /" + o.Path + ", which is a copy of the toolkit's stub"
		case by == "LD_LIBRARY_PATH" && !s.isSonameIn(dir):
			found.Severity = Warning
			found.Message = "LD_LIBRARY_PATH leads to the stub of libcuda.so in /" + dir
			found.Why = "Programs that load \"libcuda.so\" and not \"libcuda.so.1\" get the stub, whose functions all fail with error 34, " +
				"\"CUDA driver is a stub library\"."
		case by != "":
			found.Message = by + " leads to the stub of libcuda.so.1 in /" + dir
		default:
			continue
		}
		report(found)
	}
	return nil
}

// isSonameIn is whether a directory, without a slash in front, has the name that programs look for.
func (s *Subject) isSonameIn(dir string) bool {
	if s.Root != nil && s.exists(path.Join(dir, "libcuda.so.1")) {
		return true
	}
	return slices.ContainsFunc(s.Objects, func(o facts.Object) bool { return o.Path == path.Join(dir, "libcuda.so.1") })
}

func lookDriverInImage(s *Subject, report func(Finding)) error {
	byVersion := map[string][]string{}
	for _, l := range s.driverLibraries(false) {
		v := l.version.String()
		byVersion[v] = append(byVersion[v], l.path)
	}
	for _, v := range slices.Sorted(maps.Keys(byVersion)) {
		paths := slices.Sorted(slices.Values(byVersion[v]))
		found := Finding{
			Message: fmt.Sprintf("libraries of driver %s are in the image: %s", v, baseList(paths)),
			Path:    paths[0], Seen: rootedAll(paths),
		}
		if cuda.ParseDriver(v).String() == s.driver().String() && s.driver() != nil {
			found.Severity = Note
			found.Why = "They are those of the target's driver today, and will be in the way after its next update."
		}
		report(found)
	}
	return nil
}

func baseList(paths []string) string {
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, path.Base(p))
	}
	return units.List(names, enough)
}

func lookRequirement(s *Subject, report func(Finding)) error {
	driver := s.driver()
	if off, _ := s.Env("NVIDIA_DISABLE_REQUIRE"); driver == nil || isOn(off) || s.Target.Runtime == cluster.Apptainer || s.Target.Runtime == cluster.Uenv {
		return nil
	}
	for _, v := range s.environment() {
		if !strings.HasPrefix(v.name, "NVIDIA_REQUIRE_") || v.name == "NVIDIA_REQUIRE_JETPACK" || s.meets(v.value) {
			continue
		}
		found := Finding{
			Message: fmt.Sprintf("%s asks for more than driver %s, which was made for CUDA %s", v.name, driver, cuda.Newest(driver)),
			Seen:    []string{v.String()},
		}
		if s.Target.Runtime == cluster.Enroot || s.Target.Runtime == cluster.Pyxis { // its hook 98-nvidia.sh asks
			found.Severity = Error
		}
		report(found)
	}
	return nil
}
