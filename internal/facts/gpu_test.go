package facts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../fatbin/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// content is what the images of these tests hold.
type content struct {
	path string
	data []byte
	link string // a hard link
}

const site = "usr/lib/python3.12/site-packages/"

// damaged is a library whose first region says that it is larger than it is.
func damaged(t testing.TB) []byte {
	t.Helper()
	b := fixture(t, "host.so")
	f, err := fatbin.Scan(bytes.NewReader(b), int64(len(b)), fatbin.Options{SectionsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	b[f.Regions[0].Offset+13] = 0x7f // of the 8 bytes of its size
	return b
}

func contents(t testing.TB) []content {
	t.Helper()
	return []content{
		{path: "opt/cuda/lib/libnot.a", data: make([]byte, 5000)},
		{path: "opt/cuda/lib/x.fatbin", data: fixture(t, "lz4.fatbin")},
		{path: "opt/data", data: fixture(t, "lz4.fatbin")}, // nothing says that it would be one
		{path: site + "nvidia/nccl/lib/libnccl.so.2", data: fixture(t, "host.so")},
		{path: site + "nvidia/nccl/lib/libnccl.so", link: site + "nvidia/nccl/lib/libnccl.so.2"},
		{path: site + "small.fatbin", data: fixture(t, "stored.fatbin")},
		{path: site + "torch/lib/libbad.so", data: damaged(t)},
		{path: site + "torch/lib/libhip.o", data: fixture(t, "hip.o")},
		{path: site + "torch/lib/libtext.so", data: bytes.Repeat([]byte("no ELF file. "), 500)},
	}
}

// chunked makes a layer as sconce does.
func chunked(t testing.TB, st *store.Store, files []content) layer.Descriptor {
	t.Helper()
	w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: layer.Zstd})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b content) int { return strings.Compare(a.path, b.path) }) {
		e := layer.Entry{Path: f.path, Mode: 0o644, Size: int64(len(f.data))}
		if f.link != "" {
			t.Fatal("links have to be sorted")
		}
		if err := w.Add(e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(f.data)), nil }); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tarOf(t testing.TB, files []content) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.path, Mode: 0o644, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(f.data)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func foreign(t testing.TB, st *store.Store, blob []byte, mediaType string) layer.Descriptor {
	t.Helper()
	digest, err := st.PutBlob(blob)
	if err != nil {
		t.Fatal(err)
	}
	return layer.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(blob))}
}

func treeFilesOf(t testing.TB, st *store.Store, layers ...layer.Descriptor) Files {
	t.Helper()
	tree, err := image.NewTree(t.Context(), st, layers)
	if err != nil {
		t.Fatal(err)
	}
	return Tree(tree, st)
}

// squashedRoot is the root of a squashfs of the files.
func squashedRoot(t testing.TB, files []content) Root {
	t.Helper()
	root, err := newSquashRoot(squashed(t, files, nil))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// squashed makes a squashfs of the files; the second name of one with two is in the same directory.
func squashed(t testing.TB, files []content, edit func(name string)) *squashfs.Reader {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.sqsh")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := squashfs.NewWriter(f, 0, squashfs.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.StartSegment(); err != nil {
		t.Fatal(err)
	}
	root := &squashfs.Inode{Type: squashfs.Dir, Mode: 0o755}
	byPath := map[string]*squashfs.Inode{"": root}
	dirOf := func(p string) *squashfs.Inode {
		dir := ""
		for part := range strings.SplitSeq(filepath.Dir(p), "/") {
			next := strings.TrimPrefix(dir+"/"+part, "/")
			if byPath[next] == nil {
				byPath[next] = &squashfs.Inode{Type: squashfs.Dir, Mode: 0o755}
				byPath[dir].Entries = append(byPath[dir].Entries, squashfs.DirEntry{Name: part, Inode: byPath[next]})
			}
			dir = next
		}
		return byPath[dir]
	}
	for i, c := range files {
		in := byPath[c.link]
		if c.link == "" {
			data, err := w.Add(t.Context(), squashfs.Key{Offset: int64(i)}, int64(len(c.data)), func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(c.data)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			in = &squashfs.Inode{Type: squashfs.Regular, Mode: 0o644, ModTime: time.Unix(1, 0), Data: data}
		}
		byPath[c.path] = in
		dir := dirOf(c.path)
		dir.Entries = append(dir.Entries, squashfs.DirEntry{Name: filepath.Base(c.path), Inode: in})
	}
	if _, err := w.EndSegment(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(root); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(name)
	}
	r, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	st, err := r.Stat()
	if err != nil {
		t.Fatal(err)
	}
	fs, err := squashfs.New(r, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func gpu(t testing.TB, files Files) *GPUReport {
	t.Helper()
	r, err := GPU(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lines describes the report.
func lines(r *GPUReport) []string {
	var list []string
	for _, l := range r.Libraries {
		list = append(list, fmt.Sprintf("%s [%s] sass%v ptx%v rocm%v linked=%v damaged=%v own=%d",
			l.Path, l.Group, names(l.SASS), names(l.PTX), l.ROCm, l.Linked, l.Damaged, l.Own))
	}
	return list
}

func names(codes []Code) []string {
	list := []string{}
	for _, c := range codes {
		list = append(list, c.Arch)
	}
	return list
}

var wantLines = []string{
	site + "nvidia/nccl/lib/libnccl.so.2 [nvidia/nccl] sass[75 80 90a 100f] ptx[75 80] rocm[] linked=true damaged=false own=2",
	site + "torch/lib/libbad.so [torch] ", // depends on what fatbin makes of the damage
	"opt/cuda/lib/x.fatbin [/opt/cuda/lib] sass[80 90a 100f] ptx[80] rocm[] linked=true damaged=false own=0",
	site + "torch/lib/libhip.o [torch] sass[] ptx[] rocm[gfx90a:xnack+ gfx942] linked=false damaged=false own=0",
}

func checkReport(t *testing.T, r *GPUReport) {
	t.Helper()
	got, want := lines(r), slices.Clone(wantLines)
	for i, l := range got { // only the damaged one's beginning
		if strings.Contains(l, "libbad") {
			got[i], _, _ = strings.Cut(l, "sass")
			if !strings.Contains(l, "damaged=true") {
				t.Errorf("%s", l)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("libraries (-want +got):\n%s", d)
	}
	if len(r.Warnings) == 0 || !strings.HasPrefix(r.Warnings[0], site+"torch/lib/libbad.so: ") {
		t.Errorf("warnings: %q", r.Warnings)
	}
	for _, w := range r.Warnings {
		if !strings.Contains(w, "libbad") {
			t.Errorf("a warning of a sound file: %s", w)
		}
	}
}

// The same files give the same report, however they are packed.
func TestGPU(t *testing.T) {
	st := storetest.Alone(t)
	all := contents(t)
	plain := slices.DeleteFunc(slices.Clone(all), func(c content) bool { return c.link != "" })
	uncompressed := tarOf(t, all)
	var first *GPUReport
	for _, test := range []struct {
		name  string
		files func(*testing.T) Files
	}{
		{"chunks", func(t *testing.T) Files { return treeFilesOf(t, st, chunked(t, st, plain)) }},
		{"tar", func(t *testing.T) Files {
			return treeFilesOf(t, st, foreign(t, st, uncompressed, "application/vnd.oci.image.layer.v1.tar"))
		}},
		{"gzip", func(t *testing.T) Files {
			return treeFilesOf(t, st, foreign(t, st, gzipped(t, uncompressed), "application/vnd.oci.image.layer.v1.tar+gzip"))
		}},
		{"two layers", func(t *testing.T) Files {
			return treeFilesOf(t, st, chunked(t, st, plain[3:]), foreign(t, st, gzipped(t, tarOf(t, plain[:3])), "application/vnd.oci.image.layer.v1.tar+gzip"))
		}},
		{"squashfs", func(t *testing.T) Files { return &rootFiles{root: squashedRoot(t, all)} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := gpu(t, test.files(t))
			// Which name of a file with two is found first depends on the order.
			for i := range r.Libraries {
				if strings.HasSuffix(r.Libraries[i].Path, "libnccl.so") {
					r.Libraries[i].Path += ".2"
				}
			}
			for i := range r.Capabilities {
				for j, p := range r.Capabilities[i].Without {
					if strings.HasSuffix(p, "libnccl.so") {
						r.Capabilities[i].Without[j] += ".2"
					}
				}
			}
			checkReport(t, r)
			if first == nil {
				first = r
			}
			if d := cmp.Diff(first, r, cmpopts.IgnoreUnexported(Code{}, ArchTotal{})); d != "" {
				t.Errorf("another report than of chunks (-chunks +this):\n%s", d)
			}
		})
	}
	left, err := os.ReadDir(filepath.Join(st.Dir(), "tmp-v1"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %v, %v", left, err)
	}
}

// The sums and the capabilities of one library, of which everything is known.
func TestGPUSums(t *testing.T) {
	data := fixture(t, "host.so")
	st := storetest.Alone(t)
	r := gpu(t, treeFilesOf(t, st, chunked(t, st, nil)))
	if len(r.Libraries) > 0 || r.Size != 0 || len(r.Capabilities) > 0 {
		t.Errorf("an empty image: %+v", r)
	}
	r = gpu(t, &rootFiles{root: squashedRoot(t, []content{{path: "lib/x.so", data: data}})})
	l := r.Libraries[0]
	var code int64
	for _, c := range slices.Concat(l.SASS, l.PTX, l.LTO) {
		code += c.Size
	}
	// host.so has lz4.fatbin and kernel.cubin in plain data, so these bytes at least, and more than its code are headers of 16 bytes.
	least := int64(len(fixture(t, "lz4.fatbin")) + len(fixture(t, "kernel.cubin")))
	if l.Size < least || l.Size > int64(len(data)) || code > l.Size || code < l.Size-16*int64(l.Regions+l.Own+1) {
		t.Errorf("%d bytes of regions, %d of images, in a file of %d", l.Size, code, len(data))
	}
	if r.Size != l.Size || len(r.Groups) != 1 || r.Groups[0] != (Group{"/lib", 1, l.Size}) {
		t.Errorf("sums: %d, %+v", r.Size, r.Groups)
	}
	how := map[string]string{}
	for _, s := range l.Runs {
		how[s.Capability] = s.How
	}
	want := map[string]string{ // sm_75, sm_80, sm_90a, sm_100f; PTX for 7.5 and 8.0
		"7.5": "native", "8.0": "native", "8.6": "native", "8.7": "ptx", "8.8": "native", "8.9": "native", "9.0": "native", "10.0": "native",
		"10.3": "native", "10.7": "native", "11.0": "ptx", "12.0": "ptx", "12.1": "ptx",
	}
	if d := cmp.Diff(want, how); d != "" {
		t.Errorf("capabilities (-want +got):\n%s", d)
	}
	native := 0
	for _, c := range r.Capabilities {
		native += c.Native
		if c.Native+c.PTX != 1 || len(c.Without) > 0 {
			t.Errorf("%+v", c)
		}
	}
	if len(r.Capabilities) != len(want) || native != 9 {
		t.Errorf("%d capabilities, %d of them native", len(r.Capabilities), native)
	}
}

// Images that are compressed as one share its size.
func TestGPUConcatenated(t *testing.T) {
	data := append(fixture(t, "concatenated.fatbin"), make([]byte, 2000)...)
	r := gpu(t, &rootFiles{root: squashedRoot(t, []content{{path: "a/x.fatbin", data: data}})})
	if len(r.Libraries) != 1 {
		t.Fatalf("%+v", r)
	}
	var sum int64
	for _, c := range slices.Concat(r.Libraries[0].SASS, r.Libraries[0].PTX) {
		if c.Size <= 0 {
			t.Errorf("%+v", c)
		}
		sum += c.Size
	}
	if got := names(r.Libraries[0].SASS); !slices.Equal(got, []string{"80", "90a", "100f"}) || sum > 3136 || sum < 3000 {
		t.Errorf("%v, %d bytes of 3136", got, sum)
	}
}

// A block that cannot be read costs its file, not the report.
func TestGPUUnreadable(t *testing.T) {
	files := []content{
		{path: "a/bad.so", data: slices.Concat(fixture(t, "host.so"), bytes.Repeat([]byte("damage here"), 100_000))},
		{path: "a/good.so", data: fixture(t, "host.so")},
	}
	damaged, err := Squashfs(squashed(t, files, func(name string) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(b, []byte{0x28, 0xb5, 0x2f, 0xfd}) // the first block's (RFC 8878, section 3.1.1)
		if at < 0 {
			t.Fatal("no block")
		}
		b[at] = 0
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	r := gpu(t, damaged)
	if len(r.Libraries) != 1 || r.Libraries[0].Path != "a/good.so" || len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], "a/bad.so: ") {
		t.Errorf("%v, %q", lines(r), r.Warnings)
	}
}

// brokenRoot cannot read files named bad.
type brokenRoot struct{ Root }

var errBroken = errors.New("broken")

type brokenHandle struct{ elfx.Handle }

func (brokenHandle) ReadAt([]byte, int64) (int, error) { return 0, errBroken }

func (b brokenRoot) Open(name string) (elfx.Handle, error) {
	h, err := b.Root.Open(name)
	if err == nil && strings.Contains(name, "bad") {
		h = brokenHandle{h}
	}
	return h, err
}

func TestGPUWarningsAreBounded(t *testing.T) {
	var files []content
	for i := range 150 {
		files = append(files, content{path: fmt.Sprintf("lib/bad%d.so", i), data: slices.Concat(fixture(t, "host.so"), []byte{byte(i)})})
	}
	r := gpu(t, &rootFiles{root: brokenRoot{squashedRoot(t, files)}})
	if len(r.Warnings) != maxWarnings+1 || r.Warnings[maxWarnings] != "50 more warnings" {
		t.Errorf("%d warnings, the last %q", len(r.Warnings), r.Warnings[len(r.Warnings)-1])
	}
}

func TestGPUIsCancelled(t *testing.T) {
	st := storetest.Alone(t)
	all := contents(t)
	for name, files := range map[string]Files{
		"tree":     treeFilesOf(t, st, foreign(t, st, gzipped(t, tarOf(t, all)), "application/vnd.oci.image.layer.v1.tar+gzip")),
		"squashfs": &rootFiles{root: squashedRoot(t, all)},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := GPU(ctx, files); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		started := progress.With(ctx, cancelling(cancel))
		if _, err := GPU(started, files); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, in the middle: %v", name, err)
		}
	}
}

// cancelling cancels when the work has begun.
type cancelling func()

func (c cancelling) Emit(progress.Event) { c() }

// Files come in the order in which a layer has to be decompressed.
func TestTreeOrder(t *testing.T) {
	st := storetest.Alone(t)
	x := fixture(t, "host.so")
	lower := tarOf(t, []content{{path: "m/2", data: x}, {path: "a/9", data: x}, {path: "z/1", data: x}})
	upper := tarOf(t, []content{{path: "b", data: x}, {path: "a/0", data: x}, {path: "z/1", data: x}, {path: "m/22", data: x[:4096]}})
	const gz = "application/vnd.oci.image.layer.v1.tar+gzip"
	files := treeFilesOf(t, st, foreign(t, st, gzipped(t, lower), gz), foreign(t, st, gzipped(t, upper), gz))
	var asked, shown []string
	err := files.Walk(t.Context(), func(name string, head []byte) bool {
		asked = append(asked, name)
		return name != "b" && string(head) == "\x7fELF"
	}, func(f File) error {
		shown = append(shown, f.Path)
		got := make([]byte, f.Size)
		if _, err := f.Content.ReadAt(got, 0); err != nil || !bytes.Equal(got, x) {
			t.Errorf("%s: error %v, or wrong bytes", f.Path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"m/2", "a/9", "b", "a/0", "z/1"}, asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"m/2", "a/9", "a/0", "z/1"}, shown); d != "" {
		t.Errorf("shown (-want +got):\n%s", d)
	}
}

func TestGroup(t *testing.T) {
	for name, want := range map[string]string{
		"usr/lib/python3/dist-packages/torch/lib/libtorch_cuda.so":                 "torch",
		"opt/venv/lib/python3.11/site-packages/nvidia/cudnn/lib/x.so":              "nvidia/cudnn",
		"opt/venv/lib/python3.11/site-packages/nvidia/x.so":                        "nvidia",
		"opt/venv/lib/python3.11/site-packages/_C.cpython-311-x86_64-linux-gnu.so": "_C",
		"usr/local/cuda/lib64/libcudart_static.a":                                  "/usr/local/cuda/lib64",
		"x.so":                                   "/",
		"a/site-packages/b/dist-packages/c/d.so": "c",
	} {
		if got := GroupOf(name); got != want {
			t.Errorf("%s is in %q, want %q", name, got, want)
		}
	}
}
