package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/layer"
)

// A file counts for the package whose list has it, under the old names of merged directories too, and for one only.
func TestSizes(t *testing.T) {
	const site = "opt/env/lib/python3.12/site-packages"
	root := factstest.Dir{Path: factstest.WriteFiles(t, map[string]string{
		"var/lib/dpkg/status":                  "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\nPackage: tar\nVersion: 1.34\n",
		"var/lib/dpkg/info/libc6:amd64.list":   "/.\n/lib/x86_64-linux-gnu/libc.so.6\n/usr/share/doc/libc6/copyright\n",
		"var/lib/dpkg/info/tar.list":           "/bin/tar\n/usr/share/doc/libc6/copyright\n",
		"usr/lib/x86_64-linux-gnu/libc.so.6":   strings.Repeat("c", 5000),
		"usr/share/doc/libc6/copyright":        strings.Repeat("d", 300),
		"bin/tar":                              strings.Repeat("t", 400),
		"opt/env/conda-meta/zlib-1.3-0.json":   `{"name": "zlib", "version": "1.3", "build": "0", "files": ["lib/libz.so", "lib/libz.a"]}`,
		"opt/env/lib/libz.so":                  strings.Repeat("z", 700),
		"opt/env/lib/libz.a":                   strings.Repeat("a", 100),
		site + "/numpy-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 2.0\n",
		site + "/numpy/core.py":                strings.Repeat("n", 900),
		"var/cache/apt/pkgcache.bin":           strings.Repeat("p", 2000),
	})}
	f := &facts.Facts{Root: root}
	var files []File
	if err := root.All(func(i facts.Info) error {
		f.Paths = append(f.Paths, i)
		if i.Type == layer.Regular && !strings.HasPrefix(i.Path, "var/lib/") {
			files = append(files, File{Path: i.Path, Size: i.Size})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.FindPackages(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := (&Report{Facts: f, Files: files, Stored: 7}).Sizes()
	packages := map[string]int64{}
	var sum int64
	for _, p := range got.Packages {
		packages[strings.TrimSpace(p.Kind+" "+p.Name+" "+p.Version)] = p.Size
		sum += p.Size
	}
	metadata := packages["python numpy 2.0"] - 900
	record := packages["in no package"] - 2000
	want := map[string]int64{
		"debian libc6 2.36-9": 5300, "debian tar 1.34": 400, "conda zlib 1.3": 800, "python numpy 2.0": 900 + metadata, "in no package": 2000 + record,
	}
	if diff := cmp.Diff(want, packages); diff != "" || sum != got.Size || got.Stored != 7 || metadata <= 0 || record <= 0 {
		t.Errorf("%d of %d bytes: %s", sum, got.Size, diff)
	}
	var could []string
	for _, p := range got.Removable {
		could = append(could, p.Name)
	}
	if diff := cmp.Diff([]string{"package caches", "documentation", "static libraries"}, could); diff != "" {
		t.Error(diff)
	}
	if got.Directories[0].Name != "/usr" || got.Directories[0].Size != 5300 {
		t.Errorf("the largest directory is %+v", got.Directories[0])
	}
}

// Lists that lie about their packages, and an image with nothing in it.
func TestSizesOfOddImages(t *testing.T) {
	empty := (&Report{Facts: &facts.Facts{}}).Sizes()
	if empty.Size != 0 || len(empty.Packages)+len(empty.Directories)+len(empty.Removable) != 0 {
		t.Errorf("of nothing: %+v", empty)
	}
	root := factstest.Dir{Path: factstest.WriteFiles(t, map[string]string{
		"var/lib/dpkg/info/evil.list":     "../../../../x\n\x00\n//etc//passwd\n" + strings.Repeat("y", 70_000) + "\n",
		"var/lib/dpkg/info/.list":         "/x\n",
		"opt/conda/conda-meta/a-1-0.json": `{"name": "a", "version": "1", "build": "0", "files": ["../../x", ""]}`,
		"opt/conda/conda-meta/b-1-0.json": `{"name": "b", "files": 3`,
		"x":                               "12345",
		"etc/passwd":                      "123",
	})}
	f := &facts.Facts{Root: root}
	if err := root.All(func(i facts.Info) error { f.Paths = append(f.Paths, i); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := f.FindPackages(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := (&Report{Facts: f, Files: []File{{Path: "x", Size: 5}, {Path: "etc/passwd", Size: 3}, {Path: "z", Size: -1}}}).Sizes()
	var sum int64
	for _, p := range got.Packages {
		sum += p.Size
	}
	if got.Size != 8 || sum != 8 || got.Files != 3 {
		t.Errorf("%+v", got)
	}
}
