package condalock

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

func digest(text string) store.Digest { return store.DigestOf([]byte(text)) }

func packageAt(name, version, build, subdir string, depends ...string) conda.Package {
	p, err := fromURL("https://conda.anaconda.org/conda-forge/" + subdir + "/" + name + "-" + version + "-" + build + ".conda")
	if err != nil {
		panic(err)
	}
	p.Depends, p.SHA256, p.MD5 = depends, digest(name), digest(name).Hex()[:32]
	return p.Package
}

func sample() *Lock {
	return &Lock{
		Channels: []string{"https://conda.anaconda.org/conda-forge"}, Sources: []string{"environment.yml"},
		Platforms: []Platform{{
			Name: "linux-64",
			Packages: []conda.Package{
				packageAt("libzlib", "1.3.1", "hb9d3cd8_2", "linux-64", "__glibc >=2.17"),
				packageAt("python", "3.12.9", "h9e4cc4f_1_cpython", "linux-64", "libzlib >=1.3", "libzlib <2"),
				packageAt("six", "1.17.0", "pyhd8ed1ab_0", "noarch", "python"),
			},
			Wheels: []Wheel{{Name: "einops", Version: "0.8.1", URL: "https://files.example.org/einops-0.8.1-py3-none-any.whl", SHA256: digest("einops")}},
		}},
	}
}

// TestLockRoundTrip writes a lock, reads it, and has conda-lock read it.
func TestLockRoundTrip(t *testing.T) {
	l := sample()
	text, err := l.Write()
	if err != nil {
		t.Fatal(err)
	}
	again, err := sample().Write()
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("written twice, it differs (%v)", err)
	}
	back, err := Parse("conda-lock.yml", text, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	l.Format = "conda-lock.yml"
	l.Platforms[0].Packages[1].Depends = []string{"libzlib >=1.3,<2"} // the format has one entry of a name
	if diff := cmp.Diff(l, back); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	other, err := back.Write()
	if err != nil || !bytes.Equal(text, other) {
		t.Errorf("written after reading, it differs (%v):\n%s\n%s", err, text, other)
	}
}

// TestLockByCondaLock has conda-lock itself read what is written.
func TestLockByCondaLock(t *testing.T) {
	text, err := sample().Write()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "conda-lock.yml")
	write(t, file, string(text))
	out := condatest.Python(t, []string{"conda-lock==4.0.3"}, `
import pathlib, sys
from conda_lock.lockfile import parse_conda_lock_file
lock = parse_conda_lock_file(pathlib.Path(sys.argv[1]))
for p in lock.package:
    print(p.manager, p.name, p.version, p.platform, p.url, p.hash.sha256, dict(sorted(p.dependencies.items())))
`, file)
	want := "conda libzlib 1.3.1 linux-64 https://conda.anaconda.org/conda-forge/linux-64/libzlib-1.3.1-hb9d3cd8_2.conda " + digest("libzlib").Hex() +
		" {'__glibc': '>=2.17'}\n"
	if !strings.Contains(out, want) || !strings.Contains(out, "pip einops 0.8.1 linux-64") || !strings.Contains(out, "{'libzlib': '>=1.3,<2'}") {
		t.Errorf("conda-lock reads:\n%swant a line\n%s", out, want)
	}
}

// TestReadPixiLock reads what py-rattler writes as pixi.lock.
func TestReadPixiLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pixi.lock")
	one := sample().Platforms[0].Packages
	request, err := json.Marshal([]record{recordOf(one[0]), recordOf(one[1]), recordOf(one[2])})
	if err != nil {
		t.Fatal(err)
	}
	condatest.Python(t, []string{"py-rattler==" + Rattler}, `
import json, sys
import rattler
from rattler import LockFile, LockPlatform, LockChannel, PackageRecord, RepoDataRecord
from rattler.package import BuildString
p = LockPlatform("linux-64")
lock = LockFile([p])
lock.set_channels("default", [LockChannel("https://conda.anaconda.org/conda-forge/")])
for r in json.loads(sys.argv[2]):
    record = PackageRecord(r["name"], r["version"], BuildString(r["build"]), r["build_number"], r["subdir"], noarch=r.get("noarch"),
        depends=r.get("depends", []), sha256=bytes.fromhex(r["sha256"]), md5=bytes.fromhex(r["md5"]), size=77, license="MIT")
    lock.add_conda_package("default", p, RepoDataRecord(record, r["fn"], r["url"], r["channel"]))
lock.to_path(sys.argv[1])
`, file, string(request))
	l, err := Read(file, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	part, err := l.For("linux-64")
	if err != nil {
		t.Fatal(err)
	}
	for i := range one {
		one[i].Size, one[i].License = 77, "MIT"
	}
	if diff := cmp.Diff(one, part.Packages); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	if l.Format != "pixi.lock" || l.Channels[0] != "https://conda.anaconda.org/conda-forge" {
		t.Errorf("format %s, channels %v", l.Format, l.Channels)
	}
}

const hash1, hash2 = "9e4cc4f00000000000000000000000000000000000000000000000000000cafe", "0123456789abcdef0123456789abcdef"

const withCategories = `version: 1
metadata:
  content_hash: {linux-64: abc}
  channels: [{url: conda-forge, used_env_vars: []}]
  platforms: [linux-64]
  sources: [environment.yml]
package:
- {name: six, version: 1.17.0, manager: conda, platform: linux-64, dependencies: {python: ''}, url: "https://conda.anaconda.org/conda-forge/noarch/six-1.17.0-pyhd8ed1ab_0.conda", hash: {md5: ` + hash2 + `, sha256: ` + hash1 + `}, category: main, optional: false}
- {name: pytest, version: '8.0', manager: conda, platform: linux-64, dependencies: {}, url: "https://conda.anaconda.org/conda-forge/noarch/pytest-8.0-py_0.conda", hash: {md5: ` + hash2 + `}, category: dev, optional: true}
- {name: einops, version: 0.8.1, manager: pip, platform: linux-64, dependencies: {}, url: "https://files.example.org/einops-0.8.1-py3-none-any.whl", hash: {sha256: ` + hash1 + `}, category: main, optional: false}
- {name: six, version: 1.17.0, manager: conda, platform: linux-64, dependencies: {python: ''}, url: "https://conda.anaconda.org/conda-forge/noarch/six-1.17.0-pyhd8ed1ab_0.conda", hash: {md5: ` + hash2 + `, sha256: ` + hash1 + `}, category: dev, optional: true}
`

func TestReadLocks(t *testing.T) {
	for _, test := range []struct {
		name, text string
		selection  Selection
		platform   string
		want       string // packages and wheels
	}{
		{
			"pixi, version 6", `version: 6
environments:
  default:
    channels: [{url: "https://conda.anaconda.org/conda-forge/"}]
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/noarch/six-1.17.0-pyhd8ed1ab_0.conda
      - pypi: https://files.example.org/einops-0.8.1-py3-none-any.whl
  gpu:
    channels: []
    packages:
      linux-64: []
packages:
- conda: https://conda.anaconda.org/conda-forge/noarch/six-1.17.0-pyhd8ed1ab_0.conda
  sha256: ` + hash1 + `
  depends: [python]
  size: 18455
- pypi: https://files.example.org/einops-0.8.1-py3-none-any.whl
  name: einops
  version: 0.8.1
  sha256: ` + hash1 + `
`, Selection{}, "linux-64", "six-1.17.0-pyhd8ed1ab_0 noarch python sha256 18455 | einops 0.8.1",
		},
		{
			"pixi, version 7, a platform with a name of its own", `version: 7
platforms:
- {name: cluster, subdir: linux-aarch64, virtual-packages: [__cuda=12]}
environments:
  gpu:
    channels: [{url: "https://conda.anaconda.org/conda-forge/"}]
    packages:
      cluster:
      - conda: ./local/linux-aarch64/tool-1-h_3.tar.bz2
packages:
- conda: ./local/linux-aarch64/tool-1-h_3.tar.bz2
  md5: ` + hash2 + `
`, Selection{Environment: "gpu"}, "linux-aarch64", "tool-1-h_3 linux-aarch64  md5 0 |",
		},
		{
			"conda-lock's own, with categories", withCategories, Selection{}, "linux-64", "six-1.17.0-pyhd8ed1ab_0 noarch python sha256 0 | einops 0.8.1",
		},
		{
			"conda-lock's own, with a category besides", withCategories,
			Selection{Categories: []string{"dev"}},
			"linux-64",
			"pytest-8.0-py_0 noarch python md5 0, six-1.17.0-pyhd8ed1ab_0 noarch python sha256 0 | einops 0.8.1",
		},
		{
			"explicit, in the order of the file", `# platform: linux-64
@EXPLICIT
https://conda.anaconda.org/conda-forge/linux-64/python-3.12.9-h_1.conda#sha256:` + hash1 + `
https://me:secret@conda.example.org/t/TOKEN/conda-forge/noarch/pip-24.0-pyhd8ed1ab_0.conda#` + hash2 + `

/opt/channel/linux-64/a-1-0.tar.bz2
`, Selection{}, "linux-64", "python-3.12.9-h_1 linux-64  sha256 0, pip-24.0-pyhd8ed1ab_0 noarch python md5 0, a-1-0 linux-64   0 |",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := Parse("lock", []byte(test.text), test.selection)
			if err != nil {
				t.Fatal(err)
			}
			part, err := l.For(test.platform)
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(part); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if _, err := l.For("osx-64"); err == nil {
				t.Error("it has packages for osx-64")
			}
			for _, p := range part.Packages {
				if strings.Contains(p.URL+p.Channel, "secret") || strings.Contains(p.URL+p.Channel, "TOKEN") {
					t.Errorf("a login stays: %s %s", p.URL, p.Channel)
				}
			}
		})
	}
}

func summary(part *Platform) string {
	var packages, wheels []string
	for _, p := range part.Packages {
		hash := ""
		switch {
		case p.SHA256 != "":
			hash = "sha256"
		case p.MD5 != "":
			hash = "md5"
		}
		name := strings.TrimSuffix(strings.TrimSuffix(p.File, ".conda"), ".tar.bz2")
		packages = append(packages, strings.Join([]string{name, p.Subdir, p.Noarch, hash, strconv.FormatInt(p.Size, 10)}, " "))
	}
	for _, w := range part.Wheels {
		wheels = append(wheels, w.Name+" "+w.Version)
	}
	return strings.TrimSpace(strings.Join(packages, ", ") + " | " + strings.Join(wheels, ", "))
}

func TestReadLockErrors(t *testing.T) {
	entry := func(text string) string {
		return "metadata: {platforms: [linux-64]}\npackage:\n- " + text + "\n"
	}
	for _, test := range []struct{ name, text, want string }{
		{"no lock", "a: b\n", "not a lock of conda packages"},
		{"two addresses of one package", entry("{name: a, manager: conda, platform: linux-64, url: 'https://x/c/noarch/a-1-0.conda', hash: {}}\n- {name: a, manager: conda, platform: linux-64, url: 'https://x/c/noarch/a-2-0.conda', hash: {}}"), "it is there twice"},
		{"no YAML", "a: [", "not YAML"},
		{"a newer conda-lock", "version: 2\nmetadata: {}\n", "version 2 of conda-lock.yml is not known"},
		{"an older pixi", "version: 4\nenvironments: {default: {}}\n", "version 4 of pixi.lock is not known"},
		{"an environment that pixi does not have", "version: 6\nenvironments: {gpu: {}}\n", `no environment "default", only gpu`},
		{"a package that pixi does not have", "version: 6\nenvironments: {default: {packages: {linux-64: [{conda: 'https://x/c/noarch/a-1-0.conda'}]}}}\n", "not among the packages"},
		{"pixi's own builds", "version: 6\nenvironments: {default: {packages: {linux-64: [{conda_source: 'a[1] @ .'}]}}}\n", "built from source by pixi"},
		{"an address that is none", entry("{name: a, manager: conda, platform: linux-64, url: 'a.conda'}"), "package 1, a: \"a.conda\" is not the address"},
		{"an address of another package", entry("{name: a, manager: conda, platform: linux-64, url: 'https://x/c/noarch/b-1-0.conda'}"), "the address is of b"},
		{"a hash that is none", entry("{name: a, manager: conda, platform: linux-64, url: 'https://x/c/noarch/a-1-0.conda', hash: {sha256: zz}}"), "is not a digest"},
		{"a platform that is none", entry("{name: a, manager: conda, platform: ../x, url: 'https://x/c/noarch/a-1-0.conda'}"), `"../x" is not a platform`},
		{"a hash in @EXPLICIT that is none", "@EXPLICIT\nhttps://x/c/noarch/a-1-0.conda#123\n", "lock:2:1: \"123\" is neither an MD5 nor a SHA-256"},
		{"a package twice", "@EXPLICIT\nhttps://x/c/noarch/a-1-0.conda\nhttps://x/c/noarch/a-2-0.conda\n", "lock:3:1: it is there twice"},
		{"two platforms", "@EXPLICIT\nhttps://x/c/linux-64/a-1-0.conda\nhttps://x/c/osx-64/b-1-0.conda\n", "lock:3:1: b-1-0.conda is for osx-64"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("lock", []byte(test.text), Selection{})
			if err == nil || !strings.Contains(err.Error(), test.want) || fault.CodeOf(err) != fault.CodeUsage {
				t.Errorf("error: %v, want one with %q", err, test.want)
			}
		})
	}
}

// A category that no package has is a slip.
func TestUnknownCategory(t *testing.T) {
	_, err := Parse("conda-lock.yml", []byte(withCategories), Selection{Categories: []string{"dve"}})
	if err == nil || !strings.Contains(err.Error(), `no package is of the category "dve", only of dev, main`) {
		t.Errorf("error: %v", err)
	}
}

func TestExplicit(t *testing.T) {
	part := sample().Platforms[0]
	part.Packages[0].SHA256 = ""
	text := part.Explicit()
	back, err := Parse("explicit.txt", text, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range part.Packages {
		got := back.Platforms[0].Packages[i]
		if got.URL != p.URL || got.SHA256 != p.SHA256 || got.SHA256 == "" && got.MD5 != p.MD5 {
			t.Errorf("read: %+v\nwritten: %+v", got, p)
		}
	}
}

func FuzzLock(f *testing.F) {
	text, err := sample().Write()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("@EXPLICIT\nhttps://x/c/noarch/a-1-0.conda#" + hash1 + "\n")
	f.Add("version: 7\nplatforms: [{name: a, subdir: linux-64}]\nenvironments: {default: {packages: {a: [{conda: 'https://x/c/noarch/a-1-0.conda'}]}}}\npackages: [{conda: 'https://x/c/noarch/a-1-0.conda', md5: " + hash2 + "}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse("lock", []byte(text), Selection{})
		if err != nil {
			return
		}
		for _, part := range l.Platforms {
			for _, p := range part.Packages {
				if err := check(&p); err != nil {
					t.Errorf("read: %v", err)
				}
			}
		}
		written, err := l.Write()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(l.Platforms, func(p Platform) bool { return p.Name == "" }) {
			return // an @EXPLICIT file that does not say for which platform
		}
		if _, err := Parse("again", written, Selection{}); err != nil {
			t.Errorf("what is written cannot be read: %v\n%s", err, written)
		}
	})
}

// What a channel says of dependencies stands in the lock, which others print.
func TestWriteRefusesControls(t *testing.T) {
	for _, depends := range []string{"b >=1", "b\u202e >=1", "b >=1\u009b31m"} {
		l := &Lock{Platforms: []Platform{{Name: "linux-64", Packages: []conda.Package{packageAt("a", "1", "0", "linux-64", depends)}}}}
		text, err := l.Write()
		if bytes.ContainsFunc(text, quote.HarmfulInLines) || depends == "b >=1" && err != nil {
			t.Errorf("%q: %v\n%q", depends, err, text)
		}
	}
}
