package audit

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
)

// driver is that of the target, nil when it is not known.
func (s *Subject) driver() cuda.Driver { return cuda.ParseDriver(s.Target.Driver) }

// userDriver is the version of the libcuda that programs will have: the host's, or that of compatibility libraries in front of
// it that work there. It is nil when the target's driver is not known.
func (s *Subject) userDriver() cuda.Driver {
	driver := s.driver()
	if driver == nil {
		return nil
	}
	if c := s.newestCompat(); c != nil && driver.OlderThan(c.version) && s.reaches(c) != "" && s.compatVerdict() != Error {
		return c.version
	}
	return driver
}

// userLibrary is a library of the driver in the image.
type userLibrary struct {
	path    string // without a slash in front
	version cuda.Driver
	by      string // how the loader comes to its directory: "LD_LIBRARY_PATH", "/etc/ld.so.conf" or ""
}

func (c userLibrary) dir() string { return "/" + path.Dir(c.path) }

var (
	driverLibrary = lazyregexp.New(`^lib(cuda|nvcuvid|nvoptix|nvidia-[a-z0-9-]+)\.so\.(\d{3,4}(\.\d{2,3}){1,2})$`)
	compatDir     = lazyregexp.New(`(^|/)(cuda-)?compat(-[\d.]+)?(/|$)`)
)

// driverLibraries are the parts of drivers in the image: in directories for forward compatibility, or elsewhere.
func (s *Subject) driverLibraries(compat bool) []userLibrary {
	var list []userLibrary
	dirs := s.loaderDirs()
	for i := range s.Objects {
		o := &s.Objects[i]
		m := driverLibrary.FindStringSubmatch(path.Base(o.Path))
		if m == nil || compatDir.MatchString(path.Dir(o.Path)) != compat {
			continue
		}
		list = append(list, userLibrary{o.Path, cuda.ParseDriver(m[2]), dirs["/"+path.Dir(o.Path)]})
	}
	return list
}

// compats are the libcuda of packages for forward compatibility.
func (s *Subject) compats() []userLibrary {
	return slices.DeleteFunc(s.driverLibraries(true), func(c userLibrary) bool { return !strings.HasPrefix(path.Base(c.path), "libcuda.") })
}

// newestCompat is the compatibility library that programs will have, or could: one that the loader finds, else the newest.
func (s *Subject) newestCompat() *userLibrary {
	list := s.compats()
	if len(list) == 0 {
		return nil
	}
	found := slices.MaxFunc(list, func(a, b userLibrary) int {
		return cmp.Or(boolCompare(a.by != "", b.by != ""), slices.Compare(a.version, b.version))
	})
	return &found
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// reaches says by what means programs come to a compatibility library, "" when they do not.
func (s *Subject) reaches(c *userLibrary) string {
	switch {
	case c.by != "":
		return c.by
	case s.hasHook() && s.resolve("/usr/local/cuda/compat") == c.dir():
		return "NVIDIA's hook" // libnvidia-container, and nvidia-cdi-hook enable-cuda-compat
	}
	return ""
}

// hasHook is whether the runtime starts containers through NVIDIA's container tools.
func (s *Subject) hasHook() bool { return s.underEnroot() || s.Target.Runtime == cluster.Podman }

// compatVerdict is how surely forward compatibility works on the target: Note for yes, Warning for maybe, Error for no.
func (s *Subject) compatVerdict() Severity {
	gpus := s.gpus()
	switch {
	case len(gpus) > 0 && s.driver().Branch() < cuda.CompatBranches[0]:
		return Error
	case len(gpus) == 0, slices.ContainsFunc(gpus, func(sm int) bool { return !cuda.TakesCompat(sm) }):
		return Warning
	case !slices.Contains(cuda.CompatBranches, s.driver().Branch()):
		return Warning
	}
	return Note
}

// resolve follows the links in a name. What is not there stays as it is.
func (s *Subject) resolve(name string) string {
	if s.Root != nil {
		if real, err := s.Root.Resolve(name); err == nil {
			return real
		}
	}
	return path.Clean(name)
}

// loaderDirs are the directories that the loader is told to search before those built into it, and what tells it.
func (s *Subject) loaderDirs() map[string]string {
	dirs := map[string]string{}
	value, _ := s.Env("LD_LIBRARY_PATH")
	for _, dir := range strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ';' }) {
		if path.IsAbs(dir) {
			dirs[s.resolve(dir)] = "LD_LIBRARY_PATH"
		}
	}
	if s.Root == nil {
		return dirs
	}
	for _, dir := range elfx.ConfigDirs(s.Root) {
		if real := s.resolve(dir); dirs[real] == "" {
			dirs[real] = "/etc/ld.so.conf"
		}
	}
	return dirs
}
