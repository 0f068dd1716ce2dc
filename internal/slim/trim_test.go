package slim

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func TestPatterns(t *testing.T) {
	for text, paths := range map[string][2][]string{
		"*.a":               {{"usr/lib/libc.a", "x.a", "a/x.a/y"}, {"x.ab", "usr/lib/a"}},
		"/usr/share/doc/**": {{"usr/share/doc/gcc/README", "usr/share/doc/gcc"}, {"usr/share/doc", "opt/usr/share/doc/x"}},
		"/usr/share/doc":    {{"usr/share/doc", "usr/share/doc/gcc/README"}, {"usr/share/docs"}},
		"usr/include":       {{"usr/include/stdio.h"}, {"opt/usr/include/x.h"}},
		"**/tests/**":       {{"usr/lib/python3/site-packages/numpy/tests/test_x.py", "tests/x"}, {"usr/tests", "usr/tests.py", "contests/x"}},
		"**/tests":          {{"usr/tests", "tests", "usr/tests/x"}, {"contests", "usr/tests.py"}},
		"/opt/*/lib?.so":    {{"opt/a/libx.so"}, {"opt/a/b/libx.so", "opt/a/lib.so"}},
		"test_[!a-c].py":    {{"x/test_d.py"}, {"x/test_a.py"}},
		"/a/**/z":           {{"a/z", "a/b/z", "a/b/c/z"}, {"b/z", "az"}},
	} {
		r, err := newRemover(Options{Remove: []string{text}})
		if err != nil {
			t.Fatal(err)
		}
		for i, list := range paths {
			for _, p := range list {
				if got := r.reason(&layer.Entry{Path: p}, nil) != ""; got != (i == 0) {
					t.Errorf("%s: %s goes: %t", text, p, got)
				}
			}
		}
	}
	for _, text := range []string{"", "/", "*", "**", "/**", "**/*", "/a/../b", "./a", "a//b", "[x", "[]"} {
		if _, _, err := Image(t.Context(), nil, nil, Options{Remove: []string{text}}); err == nil {
			t.Errorf("%q is taken for a pattern", text)
		}
	}
}

func TestTrimKeys(t *testing.T) {
	for want, o := range map[string]Options{
		"slim-v2 gpu=90 ptx=keep":                                 {GPUs: []int{90}},
		"slim-v2 gpu=90 ptx=keep trim-v2 strip":                   {GPUs: []int{90}, Strip: true},
		`slim-v2 gpu= ptx=keep trim-v1 remove="*.a" remove="b c"`: {Remove: []string{"b c", "*.a", "*.a"}},
		"slim-v2 gpu= ptx=keep trim-v1 strip package-caches":      {Strip: true, PackageCaches: true},
	} {
		if got := o.Key(); got != want {
			t.Errorf("key %q, want %q", got, want)
		}
	}
}

func sumMD5(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

// built compiles a library and a program that needs it, with symbols for debuggers.
func built(t *testing.T) (library, program []byte) {
	t.Helper()
	gcc := tooltest.Path(t, "gcc")
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("lib.c", "int answer(void) { return 42; }\n")
	write("main.c", "int answer(void);\nint main(void) { return answer() - 42; }\n")
	for _, args := range [][]string{
		{"-g", "-shared", "-fPIC", "-Wl,-soname,libanswer.so.1", "-o", "libanswer.so.1", "lib.c"},
		{"-g", "-o", "main", "main.c", "./libanswer.so.1"},
	} {
		cmd := exec.Command(gcc, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	return read("libanswer.so.1"), read("main")
}

func TestTrim(t *testing.T) {
	for _, c := range []layer.Compression{layer.Gzip, layer.Zstd} {
		st := storetest.Alone(t)
		lib, program := built(t)
		text := bytes.Repeat([]byte("text "), 2000)
		files := map[string][]byte{
			"torch/lib/libx.so": lib, "torch/lib/libx.a": text, "torch/tests/test_x.py": text, "torch/__init__.py": text, "torch.libs/liby.so": lib,
		}
		var things []thing
		for name, data := range files {
			things = append(things, fileOf(site+name, data))
		}
		things = append(things, linkTo(site+"torch/z.a.keep", site+"torch/lib/libx.a"), linkTo(site+"torch/z.a.keep2", site+"torch/lib/libx.a"))
		sums := fmt.Sprintf("%s  usr/lib/libanswer.so.1\n%s  usr/bin/main\n%s  usr/share/doc/main/README\n%s  etc/other\n",
			sumMD5(lib), sumMD5(program), sumMD5(text), sumMD5(text))
		im := imageOf(
			t, st,
			foreign(t, st, fileOf("usr/lib/libanswer.so.1", lib), fileOf("usr/bin/main", program), fileOf("usr/share/doc/main/README", text),
				fileOf("var/lib/dpkg/info/main.md5sums", []byte(sums)), fileOf("var/lib/apt/lists/x_Packages", text), fileOf("usr/lib/valgrind/v.so", lib)),
			chunked(t, st, c, things...),
			chunked(t, st, c, fileOf(site+"torch-2.7.0.dist-info/RECORD", recordOf(files)), fileOf("usr/share/doc/.wh.main", nil)),
		)
		o := Options{Strip: true, PackageCaches: true, Remove: []string{"*.a", "/usr/share/doc/**", "**/tests/**"}}
		said, err := ExplainTrim(t.Context(), st, outlineOf(t, st, im), o)
		if err != nil {
			t.Fatal(err)
		}
		made, report := mustSlim(t, st, im, o)
		if said.Layers = report.Layers; !sameJSON(said, report) {
			t.Errorf("said %+v, done %+v", said, report)
		}
		after := contentsOf(t, st, made)
		for _, gone := range []string{site + "torch/lib/libx.a", site + "torch/tests/test_x.py", "var/lib/apt/lists/x_Packages", "usr/share/doc/main/README"} {
			if after[gone] != nil {
				t.Errorf("%s is still there", gone)
			}
		}
		for _, same := range []string{site + "torch.libs/liby.so", "usr/lib/valgrind/v.so"} {
			if !bytes.Equal(after[same], lib) {
				t.Errorf("%s was stripped", same)
			}
		}
		if !bytes.Equal(after[site+"torch/z.a.keep"], text) {
			t.Error("a hard link lost its file")
		}
		if n := checkRecords(t, after); n != 3 {
			t.Errorf("RECORD has %d lines", n)
		}
		wantSums := fmt.Sprintf("%s  usr/lib/libanswer.so.1\n%s  usr/bin/main\n%s  etc/other\n",
			sumMD5(after["usr/lib/libanswer.so.1"]), sumMD5(after["usr/bin/main"]), sumMD5(text))
		if got := string(after["var/lib/dpkg/info/main.md5sums"]); got != wantSums {
			t.Errorf("md5sums\n%s\nwant\n%s", got, wantSums)
		}
		if len(after["usr/bin/main"]) >= len(program) || len(report.Stripped) != 3 || len(report.Removed) != 4 || len(report.Unstripped) != 2 {
			t.Errorf("report %+v", report)
		}
		runStripped(t, after)
		for _, d := range made.Layers {
			if err := layer.Verify(t.Context(), st, d); err != nil {
				t.Error(err)
			}
		}
		if made.Config.Config.Labels["kept"] != "yes" || made.Config.History[0].Comment != "trimmed" {
			t.Errorf("config %+v", made.Config)
		}
		if again, r := mustSlim(t, st, made, o); again.Digest != made.Digest || losesCode(r) {
			t.Errorf("trimmed twice it is %s: %+v", again.Digest, r)
		}
		if again, r := mustSlim(t, st, im, o); again.Digest != made.Digest || !sameJSON(r, report) {
			t.Error("from what is known it is another")
		}
	}
}

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func runStripped(t *testing.T, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	for name, to := range map[string]string{"usr/lib/libanswer.so.1": "libanswer.so.1", "usr/bin/main": "main"} {
		if err := os.WriteFile(filepath.Join(dir, to), files[name], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "main"))
	cmd.Dir = dir // where it was linked with ./libanswer.so.1, and its soname is looked for
	cmd.Env = []string{"LD_LIBRARY_PATH=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the stripped program: %v: %s", err, out)
	}
}

// TestTrimNeeded keeps libraries that something needs, and those that links in other layers lead to.
func TestTrimNeeded(t *testing.T) {
	st := storetest.Alone(t)
	lib, program := built(t)
	real := fileOf("usr/lib/libanswer.so.1.2", lib)
	link := thing{layer.Entry{Path: "usr/lib/libanswer.so.1", Type: layer.Symlink, Link: "libanswer.so.1.2"}, nil}
	im := imageOf(
		t, st,
		chunked(t, st, layer.Gzip, real, link, fileOf("usr/lib/libother.so", lib), fileOf("opt/data", []byte("data"))),
		chunked(t, st, layer.Gzip, fileOf("usr/bin/main", program)),
		foreign(t, st, linkTo("srv/data", "opt/data")),
	)
	made, report := mustSlim(t, st, im, Options{Remove: []string{"*.so*", "/opt/**"}})
	after := contentsOf(t, st, made)
	if after["usr/lib/libanswer.so.1.2"] == nil || after["usr/lib/libother.so"] != nil || after["srv/data"] == nil {
		t.Errorf("left: %d files", len(after))
	}
	var kept []string
	for _, k := range report.Kept {
		kept = append(kept, k.Path+": "+k.Reason)
	}
	want := []string{
		"opt/data: a link in another layer leads to it: srv/data", "usr/lib/libanswer.so.1: needed by usr/bin/main",
		"usr/lib/libanswer.so.1.2: needed by usr/lib/libanswer.so.1",
	}
	if !slices.Equal(kept, want) {
		t.Errorf("kept %q", kept)
	}
	made, report = mustSlim(t, st, im, Options{Remove: []string{"*.so*", "main"}})
	if after := contentsOf(t, st, made); after["usr/lib/libanswer.so.1.2"] != nil || len(report.Kept) > 0 {
		t.Errorf("without the program its library stays: %+v", report.Kept)
	}
}

// TestTrimCompiler keeps what every link needs, as long as there is a compiler.
func TestTrimCompiler(t *testing.T) {
	st := storetest.Alone(t)
	text := []byte("text")
	im := imageOf(t, st, chunked(t, st, layer.Gzip, fileOf("usr/lib/gcc/x/12/collect2", text), fileOf("usr/lib/gcc/x/12/libgcc.a", text), fileOf("usr/lib/liby.a", text)))
	made, report := mustSlim(t, st, im, Options{Remove: []string{"*.a"}})
	after := contentsOf(t, st, made)
	if after["usr/lib/gcc/x/12/libgcc.a"] == nil || after["usr/lib/liby.a"] != nil || len(report.Kept) != 1 {
		t.Errorf("kept %+v", report.Kept)
	}
	made, report = mustSlim(t, st, im, Options{Remove: []string{"*.a", "collect2"}})
	if after := contentsOf(t, st, made); len(after) != 0 || len(report.Kept) != 0 {
		t.Errorf("without the compiler %d files stay", len(after))
	}
}

// TestTrimAndGPU does both, and finds the same device code.
func TestTrimAndGPU(t *testing.T) {
	st := storetest.Alone(t)
	im := torchImage(t, st, layer.Gzip)
	o := hopper
	o.Remove = []string{"__init__.py"}
	made, report := mustSlim(t, st, im, o)
	after := contentsOf(t, st, made)
	if checkRecords(t, after) != 2 || len(report.Removed) != 1 || !losesCode(report) || report.After >= report.Before {
		t.Errorf("report %+v", report)
	}
	only, _ := mustSlim(t, st, im, hopper)
	name := site + "torch/lib/libtorch_cuda.so"
	if !bytes.Equal(contentsOf(t, st, only)[name], after[name]) {
		t.Error("the library is another")
	}
	if f, err := fatbin.Scan(bytes.NewReader(after[name]), int64(len(after[name])), fatbin.Options{}); err != nil || len(f.Problems) > 0 {
		t.Errorf("%v, %+v", err, f)
	}
	var comments []string
	for _, h := range made.Config.History {
		comments = append(comments, h.Comment)
	}
	if !strings.Contains(strings.Join(comments, "|"), "device code slimmed to 9.0; trimmed") {
		t.Errorf("history %q", comments)
	}
}

// cudaProgram is a library with symbols for debuggers, too.
func cudaProgram(t *testing.T) []byte {
	t.Helper()
	gcc, dir := tooltest.Path(t, "gcc"), t.TempDir()
	region := regionOf(sass(80).sized(20_000), sass(90).sized(20_000))
	source := `__asm__(".section .nv_fatbin,\"a\"\n.balign 8\n.incbin \"region\"\n.previous");` + "\nint answer(void) { return 42; }\n"
	for name, data := range map[string][]byte{"region": region, "lib.c": []byte(source)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(gcc, "-g", "-shared", "-fPIC", "-o", "lib.so", "lib.c")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "lib.so"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestTrimAndGPUAtOnce writes each layer once, and makes the files that are made when one is done after the other. What was found for
// one pattern is not looked for again for the next.
func TestTrimAndGPUAtOnce(t *testing.T) {
	for _, c := range []layer.Compression{layer.Gzip, layer.Zstd} {
		st := storetest.Alone(t)
		lib, stripped, text := cudaLibrary(20_000), cudaProgram(t), []byte(strings.Repeat("text ", 2000))
		files := map[string][]byte{"torch/lib/a.first": lib, "torch/lib/b.so": lib, "torch/lib/c.so": stripped, "torch/x.a": text}
		record := recordOf(files)
		im := imageOf(
			t, st,
			foreign(t, st, fileOf("opt/a.first", lib), linkTo("opt/b.so", "opt/a.first"), fileOf("opt/x.a", text), fileOf("etc/os-release", text)),
			chunked(t, st, c, fileOf(site+"torch/lib/a.first", lib), linkTo(site+"torch/lib/b.so", site+"torch/lib/a.first"),
				fileOf(site+"torch/lib/c.so", stripped), fileOf(site+"torch/x.a", text), fileOf(site+"torch-2.7.0.dist-info/RECORD", record)),
			chunked(t, st, c, fileOf(site+"torch-2.7.0.dist-info/RECORD", record), fileOf("opt/other.so", lib)),
			chunked(t, st, c, fileOf("opt/only.so", lib)),
			chunked(t, st, c, fileOf("opt/only.a", text), fileOf("opt/text", text)),
		)
		o := Options{GPUs: hopper.GPUs, Strip: true, Remove: []string{"*.first", "*.a"}}
		var seen sink
		made, report, err := Image(progress.With(t.Context(), &seen), st, im, o)
		if err != nil {
			t.Fatal(err)
		}
		if seen.begun["rewrite"] != len(im.Layers) {
			t.Errorf("%d layers took %d rewritings", len(im.Layers), seen.begun["rewrite"])
		}
		if len(report.Stripped) != 1 || !losesCode(report) {
			t.Errorf("report %+v", report)
		}
		if n := checkRecords(t, contentsOf(t, st, made)); n != 2 {
			t.Errorf("RECORD has %d lines", n)
		}
		slimmed, _ := mustSlim(t, st, im, hopper)
		after, _ := mustSlim(t, st, slimmed, Options{Strip: true, Remove: o.Remove})
		if diff := cmp.Diff(after.Config.RootFS.DiffIDs, made.Config.RootFS.DiffIDs); diff != "" {
			t.Errorf("one after the other (-) and at once (+):\n%s", diff)
		}
		seen, o.Remove = sink{}, []string{"*.a"}
		if _, _, err := Image(progress.With(t.Context(), &seen), st, im, o); err != nil || seen.cached != len(im.Layers) {
			t.Errorf("with other patterns: %v, %d layers of %d are known", err, seen.cached, len(im.Layers))
		}
	}
}

func TestPackageCaches(t *testing.T) {
	r, err := newRemover(Options{PackageCaches: true})
	if err != nil {
		t.Fatal(err)
	}
	conda := map[string]bool{}
	condaDirs([]layer.IndexEntry{{Entry: layer.Entry{Path: "opt/conda/pkgs/urls.txt"}}}, conda)
	for p, want := range map[string]string{
		"var/cache/apt/archives/x.deb": "apt", "var/lib/apt/lists/partial/x": "apt", "var/cache/dnf/a/b": "dnf", "root/.cache/pip/http/a": "pip",
		"root/.cache/uv/x": "uv", "opt/conda/pkgs/a.conda": "conda", "opt/conda/pkgs/cache/x.json": "conda",
		"opt/conda/pkgs/a/lib/x.so": "", "srv/pkgs/a.tar.bz2": "", "var/lib/dpkg/status": "", "var/lib/apt/extended_states": "",
		"usr/lib/python3/__pycache__/x.pyc": "", "var/cache/apt/.wh.x": "", "var/cache/debconf/config.dat": "",
	} {
		if want != "" {
			want = "package cache of " + want
		}
		if got := r.reason(&layer.Entry{Path: p}, conda); got != want {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	if got := r.reason(&layer.Entry{Path: "var/cache/apt/archives", Type: layer.Dir}, conda); got != "" {
		t.Errorf("a directory goes: %q", got)
	}
}

func TestUnstrippable(t *testing.T) {
	beside := map[string]bool{"usr/lib/.libgcrypt.so.20.hmac": true, "usr/lib/libsoftokn3.chk": true}
	exists := func(p string) bool { return beside[p] }
	for p, want := range map[string]bool{
		"usr/lib/libgcrypt.so.20": true, "usr/lib/libsoftokn3.so": true, "usr/lib/libfoo.so": false, "usr/lib/ossl-modules/fips.so": true,
		"x/numpy.libs/libblas.so": true, "usr/lib/ld-linux-x86-64.so.2": true, "usr/lib/libcuda.so.1": true, "usr/lib/libnvidia-ml.so.1": true,
		"usr/lib/debug/x.debug": true, "usr/lib/libcublas.so.12": false, "usr/bin/ld": false,
	} {
		if got := unstrippable(&layer.Entry{Path: p}, exists); (got != "") != want {
			t.Errorf("%s: %q", p, got)
		}
	}
}

// outlineOf is the outline of an image of the store.
func outlineOf(t testing.TB, st *store.Store, im *image.Image) *image.Outline {
	t.Helper()
	img, err := im.V1(st)
	if err != nil {
		t.Fatal(err)
	}
	o, err := image.ReadOutline(t.Context(), st, img)
	if err != nil {
		t.Fatal(err)
	}
	return o
}
