package catalog

import (
	"slices"
	"strings"
	"testing"
)

// TestMissingTable: each thing is of a kind that a sign tells of, is named once, and has an answer.
func TestMissingTable(t *testing.T) {
	table := loadMissing()
	seen := make(map[string]bool)
	for _, m := range table.Missing {
		if !slices.ContainsFunc(table.Sign, func(s sign) bool { return s.Kind == m.Kind }) {
			t.Errorf("no sign tells of %q", m.Kind)
		}
		if len(m.Names) == 0 || len(m.Apt) == 0 && len(m.Requires) == 0 && m.Note == "" {
			t.Errorf("%+v says nothing", m)
		}
		if len(m.Zypper) > 0 && slices.Equal(m.Zypper, m.Dnf) {
			t.Errorf("%q: zypper says what dnf says", m.Names)
		}
		for _, name := range m.Names {
			if seen[m.Kind+" "+name] {
				t.Errorf("%s %s is there twice", m.Kind, name)
			}
			seen[m.Kind+" "+name] = true
		}
	}
	for _, s := range table.Sign {
		if (s.Name == "") != (s.expr.Regexp().NumSubexp() == 1) || s.Name != "" && !seen[s.Kind+" "+s.Name] {
			t.Errorf("the sign %q has no name that is known", s.Pattern)
		}
	}
}

// TestFindMissing reads what tools really print.
func TestFindMissing(t *testing.T) {
	for _, c := range []struct{ log, name, want string }{
		{"      _configtest.c:2:10: fatal error: mpi.h: No such file or directory\n          2 | #include <mpi.h>\n            |          ^~~~~~~\n      compilation terminated.\n      failure.", "mpi.h", "libopenmpi-dev"},
		{"a.c:1:10: fatal error: 'zlib.h' file not found", "zlib.h", "zlib1g-dev"},
		{"src/a.cc:3:10: fatal error: boost/thread/mutex.hpp: No such file or directory", "boost/thread/mutex.hpp", "libboost-all-dev"},
		{"pesq.c:6:10: fatal error: Python.h: No such file or directory\ncompilation terminated.\nerror: command '/usr/bin/gcc' failed with exit code 1", "Python.h", "python3-dev"},
		{"error: command 'gcc' failed: No such file or directory", "gcc", "g++"},
		{"error: command 'x86_64-linux-gnu-g++' failed: No such file or directory", "g++", "g++"},
		{"error: command '/opt/bin/aarch64-conda-linux-gnu-cc' failed: No such file or directory", "cc", "g++"},
		{"error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-g++'", "g++", "g++"},
		{"RuntimeError: Unsupported compiler -- at least C++11 support is needed!", "g++", "g++"},
		{"unable to execute 'gcc': No such file or directory\nerror: command 'gcc' failed with exit status 1", "gcc", "g++"},
		{"/bin/sh: 1: git: not found", "git", "git"},
		{"/bin/sh: git: not found", "git", "git"},
		{"sh: line 1: go: command not found", "go", "golang-go"},
		{"./build.sh: line 3: cargo: command not found", "cargo", "cargo"},
		{"make: gcc: No such file or directory\nmake: *** [Makefile:2: a] Error 127", "gcc", "g++"},
		{"    raise child_exception_type(errno_num, err_msg, err_filename)\nFileNotFoundError: [Errno 2] No such file or directory: 'pkg-config'", "pkg-config", "pkg-config"},
		{"checking whether the C compiler works... no\nconfigure: error: no acceptable C compiler found in $PATH", "gcc", "g++"},
		{"CMake Error at CMakeLists.txt:2 (project):\n  No CMAKE_CXX_COMPILER could be found.", "g++", "g++"},
		{"  No CMAKE_Fortran_COMPILER could be found.", "gfortran", "gfortran"},
		{"CMake Error at /usr/share/cmake-3.25/Modules/CMakeDetermineCUDACompiler.cmake:180 (message):\n  Failed to find nvcc.", "nvcc", ""},
		{"OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "nvcc", ""},
		{"RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", "ninja", "requires ninja"},
		{"RuntimeError: CMake must be installed to build the following extensions: _kenlm", "cmake", "requires cmake"},
		{"error: can't find Rust compiler", "cargo", "cargo"},
		{"CMake Error at CMakeLists.txt:3 (find_package):\n  Could not find a package configuration file provided by \"Eigen3\" with any of\n  the following names:", "Eigen3", "libeigen3-dev"},
		{"  Could NOT find MPI (missing: MPI_C_FOUND)\nCall Stack (most recent call first):", "MPI", "libopenmpi-dev"},
		{"Package cairo was not found in the pkg-config search path.\nPackage 'cairo', required by 'virtual:world', not found", "cairo", "libcairo2-dev"},
		{"No package 'xmlsec1' found", "xmlsec1", "libxmlsec1-dev"},
		{"/usr/bin/ld: cannot find -lopenblas: No such file or directory\ncollect2: error: ld returned 1 exit status", "openblas", "libopenblas-dev"},
		// The last that is known decides, and what is only told does not.
		{"sh: 1: git: not found\na.c:1:10: fatal error: numa.h: No such file or directory\nb.c:1:10: fatal error: own.h: No such file or directory", "numa.h", "libnuma-dev"},
		{"-- Could NOT find MPI (missing: MPI_C_FOUND)\na.c:1:1: error: expected identifier", "", ""},
		{"error: command '/usr/bin/gcc' failed with exit code 1", "", ""},
		{"checking for go... not found", "", ""},
	} {
		m, ok := FindMissing(strings.Split(c.log, "\n"))
		got := strings.Join(m.Apt, " ")
		if len(m.Requires) > 0 {
			got = "requires " + strings.Join(m.Requires, " ")
		}
		if ok != (c.name != "") || m.Name != c.name || got != c.want {
			t.Errorf("%q: %q brings %q, want %q by %q", c.log, got, m.Name, c.name, c.want)
		}
	}
}
