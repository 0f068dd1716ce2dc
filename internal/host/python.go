package host

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
)

// Python is an interpreter of this machine.
type Python struct {
	Path    string // absolute
	Version string // the full version: 3.11.2
}

// FindPython finds an interpreter on this machine that makes byte code for CPython of a full version: one of the same version, else
// the newest patch release of the same minor version, which shares its byte code (PEP 3147, the magic number). Where several are
// as good, the first of the PATH counts, then those that uv has brought.
func FindPython(ctx context.Context, version string) (Python, bool) {
	minor, _, final := splitVersion(version)
	var best Python
	patch := -1
	for _, path := range pythons(minor) {
		p, ok := askPython(ctx, path)
		if !ok {
			continue
		}
		if p.Version == version {
			return p, true
		}
		m, n, released := splitVersion(p.Version)
		if final && released && m == minor && n > patch { // byte code still changes between pre-releases
			best, patch = p, n
		}
	}
	return best, best.Path != ""
}

// AnyPython finds an interpreter on this machine of at least Python 3.least, one of a minor version such as 3.11 before others.
func AnyPython(ctx context.Context, minor string, least int) (Python, bool) {
	for _, path := range append(pythons(minor), brought("3")...) {
		p, ok := askPython(ctx, path)
		found, _, _ := splitVersion(p.Version)
		if n, err := strconv.Atoi(strings.TrimPrefix(found, "3.")); ok && err == nil && n >= least {
			return p, true
		}
	}
	return Python{}, false
}

// splitVersion takes 3.11.2 apart. final is false of a pre-release, 3.14.0rc1.
func splitVersion(version string) (minor string, patch int, final bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return version, 0, false
	}
	patch, err := strconv.Atoi(parts[2])
	return parts[0] + "." + parts[1], patch, err == nil
}

// pythons lists programs that may be a Python of a minor version.
func pythons(minor string) []string {
	var found []string
	add := func(path string) {
		if !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	for _, name := range []string{"python" + minor, "python3", "python"} {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(path) {
				add(path)
			}
		}
	}
	for _, path := range brought(minor) {
		add(path)
	}
	return found
}

// brought lists the interpreters that uv has brought of a version, or of all that begin with it.
func brought(version string) []string {
	dir := uvPythons()
	if !filepath.IsAbs(dir) {
		return nil // of whatever directory this process is in
	}
	found, _ := filepath.Glob(filepath.Join(dir, "cpython-"+version+".*", "bin", "python"+version)) // the pattern is in order
	slices.Sort(found)
	return found
}

// uvPythons is where uv keeps the interpreters that it brings (uv, "Python versions").
func uvPythons() string {
	if dir := os.Getenv("UV_PYTHON_INSTALL_DIR"); dir != "" {
		return dir
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "uv", "python")
}

// aboutPython prints what [askPython] reads. What has no global lock compiles some constants in another way.
const aboutPython = `import sys, json
v = sys.version_info
print(json.dumps({
    "Path": sys.executable,
    "Version": "%d.%d.%d" % v[:3] + ("" if v[3] == "final" else {"alpha": "a", "beta": "b"}.get(v[3], "rc") + str(v[4])),
    "Usual": sys.implementation.name == "cpython" and "t" not in getattr(sys, "abiflags", ""),
}))`

// askPython asks a program which Python it is.
func askPython(ctx context.Context, path string) (Python, bool) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-I", "-S", "-c", aboutPython)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	out, err := child.Output(cmd)
	if err != nil {
		return Python{}, false
	}
	var p struct {
		Python
		Usual bool
	}
	if json.Unmarshal(out, &p) != nil || !p.Usual || !filepath.IsAbs(p.Path) {
		return Python{}, false
	}
	return p.Python, true
}
