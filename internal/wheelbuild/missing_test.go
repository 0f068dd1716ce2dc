package wheelbuild

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
)

// TestMissing: what a build did not find is answered with what the base's package manager calls it, wherever in the end of the
// log it stands.
func TestMissing(t *testing.T) {
	const (
		numa  = "a.c:1:10: fatal error: numa.h: No such file or directory\n"
		plain = "the whole output is in" // what any failure says
	)
	traceback := strings.Repeat("  File \"setup.py\", line 1, in <module>\n", 40) // longer than the tail of a failure
	for _, c := range []struct {
		name, manager, log, want string
	}{
		{"apt", "usr/bin/apt-get", numa + traceback, `numa.h is not there: packages = ["libnuma-dev"] under [system]`},
		{"dnf", "usr/bin/dnf", numa, `numa.h is not there: packages = ["numactl-devel"] under [system]`},
		{"dnf, with no name that is known", "usr/bin/dnf", "a.c:1:10: fatal error: mpi.h: No such file or directory\n", "Debian calls it libopenmpi-dev"},
		{"zypper", "usr/bin/zypper", numa, `numa.h is not there: packages = ["libnuma-devel"] under [system]`},
		{"zypper, with Fedora's name", "usr/bin/zypper", "a.c:1:10: fatal error: zlib.h: No such file or directory\n", `packages = ["zlib-devel"] under [system]`},
		{"zypper, with no name that is known", "usr/bin/zypper", "a.c:1:10: fatal error: mpi.h: No such file or directory\n", "Debian calls it libopenmpi-dev"},
		{"neither", "etc/passwd", numa, "Debian calls it libnuma-dev"},
		{"a build requirement", "usr/bin/apt-get", "/bin/sh: 1: ninja: not found\n", `ninja is not there: requires = ["ninja"] under [python.compile.a]`},
		{"CUDA", "usr/bin/apt-get", "OSError: CUDA_HOME environment variable is not set. Please set it\n", "nvcc is not there: take a base with the CUDA toolkit"},
		{"crates", "usr/bin/apt-get", "error: failed to get `serde` as a dependency\nCaused by:\n  [6] Couldn't resolve host name (Could not resolve host: index.example.org)\n", "network = true under [python.compile.a]"},
		{"Go modules", "usr/bin/apt-get", "main.go:3:8: example.org/x@v1.0.0: Get \"https://proxy.example.org/x\": dial tcp: lookup proxy.example.org: no such host\n", "network = true under [python.compile.a]"},
		{"too long ago", "usr/bin/apt-get", numa + strings.Repeat("compiled\n", searchedLines), plain},
		{"a fault of the source", "usr/bin/apt-get", "a.c:1:1: error: unknown type name 'no'\n", plain},
	} {
		log := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(log, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		s := withFiles(t, Package{Name: "a", Version: "1"}, map[string]string{c.manager: "x"})
		err := s.explain(&execop.Failure{Title: "compile a 1", Log: log}, grant{})
		if !strings.Contains(fault.HintOf(err), c.want) {
			t.Errorf("%s: hint %q lacks %q", c.name, fault.HintOf(err), c.want)
		}
	}
}

// TestMissingWithoutLog: the lines of the error do where the log is gone.
func TestMissingWithoutLog(t *testing.T) {
	s := testSite(Package{Name: "a", Version: "1"})
	err := s.explain(&execop.Failure{Title: "compile a 1", Tail: []string{"/bin/sh: 1: cmake: not found"}}, grant{})
	if want := `requires = ["cmake"] under [python.compile.a]`; !strings.Contains(fault.HintOf(err), want) {
		t.Errorf("hint %q lacks %q", fault.HintOf(err), want)
	}
}
