package conda_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tooltest"
)

type member struct {
	tar.Header
	data string
}

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.Size = int64(len(m.data))
		if m.Mode == 0 && m.Typeflag != tar.TypeXGlobalHeader {
			m.Mode = 0o644
		}
		err := w.WriteHeader(&m.Header)
		if err == nil {
			_, err = w.Write([]byte(m.data))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func fileOf(name, data string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeReg}, data}
}

func special(name string, kind byte, link string) member {
	return member{tar.Header{Name: name, Typeflag: kind, Linkname: link}, ""}
}

// unpackBytes unpacks an archive of a package called x.
func unpackBytes(t testing.TB, p condatest.Package, archive []byte, target conda.Target) ([]conda.Unpacked, error) {
	t.Helper()
	return conda.Unpack(t.Context(), bytes.NewReader(archive), int64(len(archive)), p.Record(archive), target, t.TempDir())
}

func TestHostilePackages(t *testing.T) {
	x := func(files map[string]condatest.File) condatest.Package { return pkg("x", files) }
	a := map[string]condatest.File{"a": {Data: "a"}}
	archive := func(p condatest.Package) []byte { return p.Bytes(t) }
	info := func(name, text string) condatest.Package {
		p := x(a)
		p.Info = map[string]string{"info/" + name: text}
		return p
	}
	python := func(entry string) condatest.Package {
		return condatest.Package{Name: "x", Version: "1", Noarch: "python", EntryPoints: []string{entry}}
	}
	globalPath := member{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "b"}}, ""}
	member := func(name string, data []byte) condatest.Member { return condatest.Member{Name: name, Data: data} }
	for name, c := range map[string]struct {
		p    condatest.Package
		data []byte // nil: as p says
		want string
	}{
		"a path upwards":              {p: x(map[string]condatest.File{"../a": {Data: "a"}}), want: "could lead anywhere"},
		"an absolute path":            {p: x(map[string]condatest.File{"/etc/a": {Data: "a"}}), want: "absolute path"},
		"a path that nobody lists":    {p: x(map[string]condatest.File{"a/../../b": {Data: "a", Unlisted: true}}), want: "could lead anywhere"},
		"a whiteout":                  {p: x(map[string]condatest.File{"lib/.wh.a": {Data: "a"}}), want: "removes files"},
		"a record":                    {p: x(map[string]condatest.File{"conda-meta/y-1-0.json": {Data: "a"}}), want: "conda-meta"},
		"a control character":         {p: x(map[string]condatest.File{"a\nb": {Data: "a"}}), want: "control character"},
		"a long component":            {p: x(map[string]condatest.File{strings.Repeat("a", 256): {Data: "a"}}), want: "longer than 255"},
		"a deep path":                 {p: x(map[string]condatest.File{strings.Repeat("a/", 2000) + "a": {Data: "a"}}), want: "too many directories"},
		"a file and its directory":    {p: x(map[string]condatest.File{"a": {Data: "a"}, "a/b": {Data: "b"}}), want: "is no directory"},
		"below a link":                {p: x(map[string]condatest.File{"a": {Link: "/etc"}, "a/b": {Data: "b"}}), want: "is no directory"},
		"another hash":                {p: x(map[string]condatest.File{"a": {Data: "a", SHA256: strings.Repeat("0", 64)}}), want: "paths.json says 0000"},
		"no hash":                     {p: x(map[string]condatest.File{"a": {Data: "a", SHA256: "x"}}), want: "hash is listed as"},
		"another size":                {p: x(a), data: x(a).WithTar(t, tarOf(t, fileOf("a", "ab"))), want: "paths.json says 1"},
		"a file that is missing":      {p: x(a), data: x(a).WithTar(t, tarOf(t)), want: "not in the archive"},
		"a file that is there twice":  {p: x(a), data: x(a).WithTar(t, tarOf(t, fileOf("a", "a"), fileOf("./a", "a"))), want: "there twice"},
		"a device":                    {p: x(a), data: x(a).WithTar(t, tarOf(t, special("a", tar.TypeChar, ""))), want: "special file"},
		"a fifo":                      {p: x(a), data: x(a).WithTar(t, tarOf(t, special("a", tar.TypeFifo, ""))), want: "special file"},
		"a link in a file's place":    {p: x(a), data: x(a).WithTar(t, tarOf(t, special("a", tar.TypeSymlink, "/etc/passwd"))), want: "listed as a hardlink"},
		"a hard link to nowhere":      {p: x(a), data: x(a).WithTar(t, tarOf(t, special("a", tar.TypeLink, "../../etc/passwd"))), want: "hard link"},
		"a hard link to itself":       {p: x(a), data: x(a).WithTar(t, tarOf(t, special("a", tar.TypeLink, "a"))), want: "hard link"},
		"a tar that is cut":           {p: x(a), data: x(a).WithTar(t, tarOf(t, fileOf("a", strings.Repeat("a", 5000)))[:2000]), want: "paths.json says 1"},
		"no tar":                      {p: x(a), data: x(a).WithTar(t, bytes.Repeat([]byte("x"), 2000)), want: "read its pkg"},
		"another package":             {p: x(a), data: pkg("y", a).Bytes(t), want: `"y", and "x" was to be there`},
		"no index":                    {p: info("index.json", ""), want: "index.json"},
		"an empty index":              {p: info("index.json", "null"), want: "empty"},
		"a list that is none":         {p: info("paths.json", `{"paths": 1}`), want: "paths.json"},
		"a list of null":              {p: info("paths.json", "null"), want: "no list of files"},
		"a list without files":        {p: info("paths.json", `{"paths_version": 1}`), want: "no list of files"},
		"a newer list":                {p: info("paths.json", `{"paths_version": 2, "paths": []}`), want: "version 2"},
		"a file listed twice":         {p: info("paths.json", `{"paths": [{"_path": "a"}, {"_path": "a"}]}`), want: "listed twice"},
		"an unknown kind":             {p: info("paths.json", `{"paths": [{"_path": "a", "path_type": "fifo"}]}`), want: "no kind of file"},
		"an unknown way to replace":   {p: info("paths.json", `{"paths": [{"_path": "a", "prefix_placeholder": "/x", "file_mode": "odd"}]}`), want: "no kind of file"},
		"a negative size":             {p: info("paths.json", `{"paths": [{"_path": "a", "size_in_bytes": -1}]}`), want: "negative"},
		"a prefix without room":       {p: x(map[string]condatest.File{"a": {Data: "\x00/short/lib\x00", Placeholder: "/short"}}), want: "room for a prefix of 6 bytes"},
		"code in an entry point":      {p: python("say = os;import shutil:run"), want: "does not name a function"},
		"an entry point upwards":      {p: python("../say = os:run"), want: "name of a command"},
		"any Python where there is 0": {p: condatest.Package{Name: "x", Version: "1", Noarch: "python", Files: map[string]condatest.File{"site-packages/a.py": {}}}, want: "environment has none"},
		"two places that are one": {
			p: condatest.Package{Name: "x", Version: "1", Noarch: "python", Files: map[string]condatest.File{"site-packages/a": {}, "lib/python3.11/site-packages/a": {}}}, want: "it goes where",
		},
		"no zip":                {p: x(a), data: []byte("PK no"), want: "read the archive's directory"},
		"nothing":               {p: x(a), data: []byte{}, want: "read the archive's directory"},
		"no files":              {p: x(a), data: condatest.Zip(t, member("info-x.tar.zst", nil)), want: "no member pkg-"},
		"two of a kind":         {p: x(a), data: condatest.Zip(t, member("info-x.tar.zst", nil), member("pkg-x.tar.zst", nil), member("pkg-y.tar.zst", nil)), want: "two of its kind"},
		"another compression":   {p: x(a), data: condatest.Zip(t, member("info-x.tar.bz2", nil)), want: "it is no .tar.zst"},
		"many members":          {p: x(a), data: condatest.Zip(t, slices.Repeat([]condatest.Member{member("x", nil)}, 65)...), want: "more than 64 are not believed"},
		"another format":        {p: x(a), data: condatest.Zip(t, member("metadata.json", []byte(`{"conda_pkg_format_version": 3}`))), want: "version 3"},
		"no zstd":               {p: x(a), data: condatest.Zip(t, member("info-x.tar.zst", []byte("no zstd at all")), member("pkg-x.tar.zst", nil)), want: "read its info"},
		"two readings":          {p: x(a), data: append(archive(x(a)), "more"...), want: "something follows"},
		"a global pax header":   {p: x(a), data: x(a).WithTar(t, tarOf(t, globalPath, fileOf("a", "a"))), want: "global pax header"},
		"a package that is cut": {p: x(a), data: archive(x(a))[:200], want: "read the archive's directory"},
	} {
		t.Run(name, func(t *testing.T) {
			data := c.data
			if data == nil {
				data = c.p.Bytes(t)
			}
			target := conda.Target{Prefix: prefix}
			if strings.Contains(name, "entry point") || strings.Contains(name, "places") {
				target.Python = conda.Python{Version: "3.11.1", SitePackages: "lib/python3.11/site-packages"}
			}
			files, err := unpackBytes(t, c.p, data, target)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "conda package x-1-") {
				t.Errorf("got %v, %v; want an error with %q", files, err, c.want)
			}
			if fault.HintOf(err) == "" {
				t.Error("there is no hint")
			}
		})
	}
}

// A small archive cannot fill the disk or the memory: not by files that it lists, nor by others, nor by how many or how large they claim
// to be.
func TestLimits(t *testing.T) {
	const limit = 100_000
	large := strings.Repeat("a", 2*limit)
	for name, p := range map[string]condatest.Package{
		"a file":                  pkg("x", map[string]condatest.File{"a": {Data: large}}),
		"a file that none knows":  pkg("x", map[string]condatest.File{"a": {Data: "a"}, "b": {Data: large, Unlisted: true}}),
		"several, listed or not":  pkg("x", map[string]condatest.File{"a": {Data: large[:limit/2]}, "b": {Data: large[:limit/2], Unlisted: true}, "c": {Data: large[:limit/2]}}),
		"of the older kind":       {Name: "x", Version: "1", TarBz2: true, Files: map[string]condatest.File{"a": {Data: large}}},
		"what replacing makes it": pkg("x", map[string]condatest.File{"a": {Data: strings.Repeat("PF", limit/4), Placeholder: "PF", FileMode: "text"}}),
	} {
		data := p.Bytes(t)
		_, err := conda.UnpackWithin(t.Context(), bytes.NewReader(data), int64(len(data)), p.Record(data), conda.Target{Prefix: "/opt/conda/envs/long"}, t.TempDir(), limit)
		if err == nil || !strings.Contains(err.Error(), "unpacks to more than 100000 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for size, want := range map[int64]int64{0: 1 << 30, 1 << 20: 1<<30 + 512<<20, 1 << 40: 64 << 30} {
		if got := conda.UnpackedLimit(size); got != want {
			t.Errorf("%d bytes may unpack to %d, want %d", size, got, want)
		}
	}

	var info bytes.Buffer
	if err := tar.NewWriter(&info).WriteHeader(&tar.Header{Name: "info/index.json", Typeflag: tar.TypeReg, Size: conda.MaxMetadata + 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := conda.UnpackParts(t.Context(), info.Bytes(), nil, pkg("x", nil).Record(nil), conda.Target{Prefix: prefix}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "are not believed") {
		t.Errorf("a large index: %v", err)
	}
}

// A package of more members than MaxMembers is given up at the first that is too many.
func TestTooManyMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine reads the headers of half a million members")
	}
	header := tarOf(t, fileOf("unlisted", ""))[:512]
	if n, err := conda.WalkMany(t.Context(), header, conda.MaxMembers+1); n != conda.MaxMembers || err == nil || !strings.Contains(err.Error(), "more than 500000 members") {
		t.Errorf("%d members, %v", n, err)
	}
}

// No program of a package runs as somebody else.
func TestModes(t *testing.T) {
	p := pkg("x", map[string]condatest.File{"a": {Data: "a"}, "b": {Data: "b"}})
	a, b := fileOf("a", "a"), fileOf("b", "b")
	a.Mode, b.Mode = 0o6755, 0o1640
	files, err := unpackBytes(t, p, p.WithTar(t, tarOf(t, a, b)), conda.Target{Prefix: prefix})
	if err != nil || files[0].Mode != 0o755 || files[1].Mode != 0o640 {
		t.Errorf("got %+v, %v", files, err)
	}
}

// Tars of conda-build have hard links, directories and names that begin with "./".
func TestOddButGood(t *testing.T) {
	p := pkg("x", map[string]condatest.File{"a": {Data: condatest.Placeholder + "\n"}, "b": {Data: condatest.Placeholder + "\n"}, "d/e": {Dir: true}, "f": {Link: "a"}})
	files, err := unpackBytes(t, p, p.WithTar(t, tarOf(t,
		special("./", tar.TypeDir, ""), special("d/", tar.TypeDir, ""), fileOf("./a", condatest.Placeholder+"\n"), special("b", tar.TypeLink, "./a"),
		special("f", tar.TypeSymlink, "a"), fileOf("unlisted", "x"), special("unlisted-device", tar.TypeBlock, ""), special("d/e/", tar.TypeDir, ""))),
		conda.Target{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Path+" "+f.Link+string(f.Content))
	}
	if want := "a /opt/conda\n|b /opt/conda\n|d/e |f a"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A package is not blamed for a disk that is full.
func TestFullDisk(t *testing.T) {
	for _, size := range []int{2, 1000} {
		p := pkg("x", map[string]condatest.File{"a": {Data: strings.Repeat("a", size)}})
		data := p.Bytes(t)
		err := conda.UnpackOnFullDisk(t.Context(), bytes.NewReader(data), int64(len(data)), p.Record(data), conda.Target{Prefix: prefix})
		if !errors.Is(err, syscall.ENOSPC) || fault.HintOf(err) != "" {
			t.Errorf("got %v, with the hint %q", err, fault.HintOf(err))
		}
	}
}

// Some zip writers make every archive one of the large kind.
func TestZip64(t *testing.T) {
	p := pkg("x", map[string]condatest.File{"a": {Data: "a"}})
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, p.Bytes(t), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/usr/bin/python3", "-I", "-c", `import sys, zipfile
old, new = zipfile.ZipFile(sys.argv[1]), zipfile.ZipFile(sys.argv[1] + "64", "w")
for name in reversed(old.namelist()):
    with new.open(name, "w", force_zip64=True) as f: f.write(old.read(name))
new.close()`, in).CombinedOutput()
	if err != nil {
		tooltest.Missing(t, "%v: %s", err, out)
	}
	data, err := os.ReadFile(in + "64")
	if err != nil {
		t.Fatal(err)
	}
	if files, err := unpackBytes(t, p, data, conda.Target{Prefix: prefix}); err != nil || len(files) != 1 {
		t.Errorf("got %v, %v", files, err)
	}
}

func FuzzArchive(f *testing.F) {
	p := pkg("x", map[string]condatest.File{"a": {Data: condatest.Placeholder}})
	f.Add(p.Bytes(f), false)
	f.Add([]byte("BZh91AY&SY"), true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, bz2 bool) {
		r := p.Record(nil)
		if bz2 {
			r.File = strings.TrimSuffix(r.File, ".conda") + ".tar.bz2"
		}
		_, err := conda.ReadDistributions(t.Context(), bytes.NewReader(data), int64(len(data)), r.File)
		files, err2 := conda.Unpack(t.Context(), bytes.NewReader(data), int64(len(data)), r, conda.Target{Prefix: prefix}, dir)
		if err2 == nil {
			good(t, files)
		}
		_ = err
		clear(t, dir)
	})
}

// What comes out of an archive that is taken lies below the prefix, and is what its hash says.
func FuzzUnpack(f *testing.F) {
	info := func(paths string) []byte {
		return tarOf(f, fileOf("info/index.json", `{"name": "x", "version": "1", "build": "0", "noarch": "python"}`), fileOf("info/paths.json", paths),
			fileOf("info/link.json", `{"noarch": {"entry_points": ["a = b:c"]}}`))
	}
	f.Add(info(`{"paths": [{"_path": "a", "prefix_placeholder": "/p", "file_mode": "binary"}, {"_path": "site-packages/b.py"}]}`),
		tarOf(f, fileOf("a", "/p\x00"), fileOf("site-packages/b.py", "b")))
	f.Add(tarOf(f, fileOf("info/index.json", `{"name": "x", "version": "1", "build": "0"}`), fileOf("info/files", "a\nb\n"), fileOf("info/has_prefix", "/p text a\n")),
		tarOf(f, fileOf("a", "/p\x00"), special("b", tar.TypeLink, "a")))
	dir := f.TempDir()
	target := conda.Target{Prefix: prefix, Python: conda.Python{Version: "3.12.1", SitePackages: "lib/python3.12/site-packages"}}
	f.Fuzz(func(t *testing.T, info, files []byte) {
		p := conda.Package{Name: "x", Version: "1", Build: "0", File: "x-1-0.conda"}
		if got, err := conda.UnpackParts(t.Context(), info, files, p, target, dir); err == nil {
			good(t, got)
		}
		clear(t, dir)
	})
}

func good(t *testing.T, files []conda.Unpacked) {
	t.Helper()
	seen := map[string]bool{}
	for _, f := range files {
		if path.Clean(f.Path) != f.Path || path.IsAbs(f.Path) || strings.HasPrefix(f.Path, "..") || strings.HasPrefix(f.Path, "conda-meta/") || seen[f.Path] {
			t.Errorf("%q is laid down", f.Path)
		}
		seen[f.Path] = true
		if sum := sha256.Sum256(f.Content); f.SHA256 != "" && f.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%q is not what its hash says", f.Path)
		}
	}
}

func clear(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		os.Remove(path.Join(dir, e.Name()))
	}
}
