package python

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
)

// root is the content of an image: files by path; a value that begins with "-> " is a symlink.
type root map[string]string

func (r root) with(more root) root {
	all := root{}
	for _, m := range []root{r, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func (r root) tree(t testing.TB) *image.Tree {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range sortedKeys(r) {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(r[name])), Typeflag: tar.TypeReg}
		if target, ok := strings.CutPrefix(r[name], "-> "); ok {
			h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, target
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(r[name])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	st := storetest.New(t)
	d, err := layer.FromTar(t.Context(), st, &buf, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := image.NewTree(t.Context(), st, []layer.Descriptor{d})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// elfFile is as much of a program as Find looks at.
func elfFile(machine uint16, loader, text string) string {
	const headerSize, segmentSize = 64, 56
	b := make([]byte, headerSize+segmentSize)
	copy(b, elfMagic+"\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint64(b[32:], headerSize)
	binary.LittleEndian.PutUint16(b[56:], 1)
	segment := b[headerSize:]
	binary.LittleEndian.PutUint32(segment, 3)
	binary.LittleEndian.PutUint64(segment[8:], headerSize+segmentSize)
	binary.LittleEndian.PutUint64(segment[32:], uint64(len(loader)+1))
	return string(b) + loader + "\x00" + text
}

const (
	x86, arm  = 62, 183
	glibcText = "GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\nCopyright"
)

func debian(machine uint16, triplet string) root {
	return root{
		"lib":                                  "-> usr/lib",
		"bin":                                  "-> usr/bin",
		"usr/bin/python3":                      "-> python3.11",
		"usr/bin/python3.11":                   elfFile(machine, "/lib64/ld-linux-x86-64.so.2", "x3.11.9\x00\x003.11.2\x00"),
		"usr/lib/python3.11/os.py":             "",
		"usr/lib/" + triplet + "/libc.so.6":    elfFile(machine, "", glibcText),
		"usr/lib/python3/dist-packages/foo.py": "",
		"usr/local/lib/python3.11/dist-packages/x": "",
	}
}

func TestFindDebian(t *testing.T) {
	tree := debian(x86, "x86_64-linux-gnu").with(root{
		"usr/lib/python3/dist-packages/PyYAML-6.0.egg-info":                          "Metadata-Version: 1.2\nName: PyYAML\nVersion: 6.0\n",
		"usr/lib/python3/dist-packages/old.egg-info/PKG-INFO":                        "Name: old\nVersion: 1\n",
		"usr/lib/python3/dist-packages/old.egg-info/requires.txt":                    "six>=1\n\n[dev]\npytest\n",
		"usr/lib/python3/dist-packages/torch-1.0.dist-info/METADATA":                 "Name: torch\nVersion: 1.0\n",
		"usr/local/lib/python3.11/dist-packages/torch-2.7.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: torch\nVersion: 2.7.0\nRequires-Dist: sympy>=1.13\nRequires-Dist: filelock\n\nbody: x\n",
		"usr/local/lib/python3.11/dist-packages/broken-2.7.0.dist-info/METADATA":     "nonsense",
		"usr/local/lib/python3.11/dist-packages/without_metadata-1.dist-info/RECORD": "",
	}).tree(t)
	got, err := Find(t.Context(), tree, v1.Platform{OS: "linux", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	want := &Interpreter{
		Executable: "/usr/bin/python3.11", Version: "3.11.2", Prefix: "/usr", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36",
		SitePackages: []string{"/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages"},
		Packages: []Installed{
			{Name: "old", Version: "1", Requires: []string{"six>=1"}, Path: "/usr/lib/python3/dist-packages/old.egg-info"},
			{Name: "pyyaml", Version: "6.0", Path: "/usr/lib/python3/dist-packages/PyYAML-6.0.egg-info"},
			{Name: "torch", Version: "2.7.0", Requires: []string{"sympy>=1.13", "filelock"}, Path: "/usr/local/lib/python3.11/dist-packages/torch-2.7.0.dist-info"},
		},
	}
	// 3.11.9 stands first in the program, but as the end of another string: alone is what counts.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.CacheTag() != "cpython-311" || got.Minor() != "3.11" {
		t.Errorf("tags %s, %s", got.CacheTag(), got.Minor())
	}
}

func TestFindOthers(t *testing.T) {
	glibc := elfFile(arm, "", "\x00GLIBC_2.17\x00GLIBC_2.9\x00GLIBC_2.28\x00GLIBC_PRIVATE\x00")
	for name, test := range map[string]struct {
		root root
		path []string
		want Interpreter
	}{
		"conda": {
			root: root{
				"opt/conda/bin/python":                                   "-> python3.12",
				"opt/conda/bin/python3.12":                               elfFile(arm, "/lib/ld-linux-aarch64.so.1", "\x003.12.4\x00"),
				"opt/conda/lib/python3.12/os.py":                         "",
				"opt/conda/lib/python3.12/site-packages/README":          "",
				"lib/aarch64-linux-gnu/libc.so.6":                        glibc,
				"opt/conda/lib/python3.12/site-packages/a.egg-info/x.py": "",
			},
			want: Interpreter{Executable: "/opt/conda/bin/python3.12", Version: "3.12.4", Prefix: "/opt/conda", Platform: "aarch64", Glibc: "2.28", SitePackages: []string{"/opt/conda/lib/python3.12/site-packages"}},
		},
		"alpine": {
			root: root{
				"usr/bin/python3":                          "-> python3.12",
				"usr/bin/python3.12":                       elfFile(x86, "/lib/ld-musl-x86_64.so.1", ""),
				"usr/lib/libpython3.12.so.1.0":             elfFile(x86, "", "\x003.12.11\x00"),
				"usr/lib/python3.12/os.py":                 "",
				"usr/lib/python3.12/site-packages/x.py":    "",
				"lib/ld-musl-x86_64.so.1":                  elfFile(x86, "", "\x001.2.5\x00"),
				"lib/libc.so.6":                            elfFile(x86, "", glibcText),
				"usr/lib/python3.12/site-packages/y/z.txt": "",
			},
			want: Interpreter{Executable: "/usr/bin/python3.12", Version: "3.12.11", Prefix: "/usr", Platform: "x86_64", Musl: "1.2", SitePackages: []string{"/usr/lib/python3.12/site-packages"}},
		},
		"by the image's PATH, version from the library": {
			root: debian(x86, "x86_64-linux-gnu").with(root{
				"srv/py/bin/python3":                        "-> /srv/py/bin/python3.13",
				"srv/py/bin/python3.13":                     elfFile(x86, "/lib64/ld-linux-x86-64.so.2", ""),
				"srv/py/lib64":                              "-> lib",
				"srv/py/lib/libpython3.13.so.1.0":           elfFile(x86, "", "\x003.13.1+\x00"),
				"srv/py/lib/python3.13/os.py":               "",
				"srv/py/lib/python3.13/site-packages/x.txt": "",
			}),
			path: []string{"/nowhere", "/srv/py/bin"},
			want: Interpreter{Executable: "/srv/py/bin/python3.13", Version: "3.13.1", Prefix: "/srv/py", Platform: "x86_64", Glibc: "2.36", SitePackages: []string{"/srv/py/lib/python3.13/site-packages"}},
		},
		"versions of others around it": {
			root: debian(x86, "x86_64-linux-gnu").with(root{
				"usr/bin/python3.11": elfFile(x86, "/lib64/ld-linux-x86-64.so.2", "\x0013.11.5\x002.3.11.6\x00at 3.11.7\x003.11.x\x003.11.8\x003.11.9\x00"),
			}),
			want: Interpreter{Executable: "/usr/bin/python3.11", Version: "3.11.8", Prefix: "/usr", Platform: "x86_64", Glibc: "2.36", SitePackages: []string{"/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages"}},
		},
		"version from dpkg": {
			root: debian(x86, "x86_64-linux-gnu").with(root{
				"usr/bin/python3.11":  elfFile(x86, "/lib64/ld-linux-x86-64.so.2", ""),
				"var/lib/dpkg/status": "Package: a\nVersion: 3.11.9\n\nPackage: python3.11-minimal\nStatus: install ok installed\nDescription: x\n more\nVersion: 3.11.2-6+deb12u6\n",
			}),
			want: Interpreter{Executable: "/usr/bin/python3.11", Version: "3.11.2", Prefix: "/usr", Platform: "x86_64", Glibc: "2.36", SitePackages: []string{"/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Find(t.Context(), test.root.tree(t), v1.Platform{}, test.path...)
			if err != nil {
				t.Fatal(err)
			}
			test.want.Implementation = "cpython"
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	deb := debian(arm, "aarch64-linux-gnu")
	without := func(names ...string) root {
		r := deb.with(nil)
		for _, n := range names {
			delete(r, n)
		}
		return r
	}
	for name, test := range map[string]struct {
		root root
		want string
	}{
		"nothing":       {root{"etc/hostname": "x"}, "no Python 3"},
		"a script":      {root{"usr/bin/python3": "#!/bin/sh\nexec python3.11\n"}, "no Python 3"},
		"a loop":        {root{"usr/bin/python3": "-> python", "usr/bin/python": "-> python3"}, "no Python 3"},
		"other machine": {deb, "built for aarch64"},
		"no library":    {without("usr/lib/python3.11/os.py").with(root{"usr/bin/python3.11": elfFile(x86, "/lib64/ld.so", "\x003.11.2\x00")}), "standard library"},
		"no libc":       {debianWithoutLibc(), "libc.so.6"},
		"riscv":         {deb.with(root{"usr/bin/python3.11": elfFile(243, "", "")}), "ELF number 243"},
		"a cut off ELF": {deb.with(root{"usr/bin/python3.11": elfMagic}), "no 64-bit"},
		"wild segments": {debianWithoutLibc().with(root{"usr/bin/python3.11": wildELF()}), "libc.so.6"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Find(t.Context(), test.root.tree(t), v1.Platform{OS: "linux", Architecture: "amd64"})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want an error with %q", err, test.want)
			}
			if name == "nothing" && !strings.Contains(fault.HintOf(err), "bootstrap.packages") {
				t.Errorf("hint %q", fault.HintOf(err))
			}
		})
	}
}

func debianWithoutLibc() root {
	r := debian(x86, "x86_64-linux-gnu")
	delete(r, "usr/lib/x86_64-linux-gnu/libc.so.6")
	return r
}

// wildELF claims segments far outside of itself.
func wildELF() string {
	b := []byte(elfFile(x86, "/lib64/ld.so", "\x003.11.2\x00"))
	binary.LittleEndian.PutUint16(b[56:], 0xffff)
	binary.LittleEndian.PutUint64(b[64+8:], 1<<63)
	return string(b)
}

// TestFindThisMachinesPython copies real interpreters into a tree and compares what is read with what they say.
func TestFindThisMachinesPython(t *testing.T) {
	const ask = `
import sys, os, glob, platform, sysconfig
print(os.path.realpath(sys.executable)); print(sys.base_prefix); print("%d.%d.%d" % sys.version_info[:3])
print(platform.machine()); print(os.confstr("CS_GNU_LIBC_VERSION").split()[1]); print(sysconfig.get_paths()["stdlib"])
`
	for _, python := range pythons(t) {
		out, err := exec.Command(python, "-I", "-c", ask).Output()
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Split(strings.TrimSpace(string(out)), "\n")
		r := root{said[5] + "/os.py": ""}
		for _, pattern := range []string{said[0], "/lib/*-linux-gnu/libc.so.6", "/lib64/libc.so.6", said[1] + "/lib/libpython3.*.so.1.0", "/usr/lib/*/libpython3.*.so.1.0"} {
			paths, _ := filepath.Glob(pattern)
			for _, p := range paths {
				data, err := os.ReadFile(p)
				if err != nil {
					t.Fatal(err)
				}
				r[p] = string(data)
			}
		}
		absolute := root{}
		for name, data := range r {
			absolute[strings.TrimPrefix(name, "/")] = data
		}
		got, err := Find(t.Context(), absolute.tree(t), v1.Platform{}, filepath.Dir(said[0]))
		if err != nil {
			t.Errorf("%s: %v", python, err)
			continue
		}
		if read := []string{got.Executable, got.Prefix, got.Version, got.Platform, got.Glibc}; !slices.Equal(read, said[:5]) {
			t.Errorf("read %q, it says %q", read, said[:5])
		}
	}
}
