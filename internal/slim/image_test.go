package slim

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// thing is an object of a test's layer.
type thing struct {
	layer.Entry
	data []byte
}

func fileOf(p string, data []byte) thing {
	return thing{layer.Entry{Path: p, Mode: 0o644, Size: int64(len(data))}, data}
}

func linkTo(p, target string) thing {
	return thing{layer.Entry{Path: p, Type: layer.HardLink, Mode: 0o644, Link: target}, nil}
}

// chunked makes a layer as sconce does.
func chunked(t testing.TB, st *store.Store, c layer.Compression, things ...thing) layer.Descriptor {
	t.Helper()
	w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: c})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	slices.SortFunc(things, func(a, b thing) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	for _, x := range things {
		if err := w.Add(x.Entry, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.data)), nil }); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// foreign makes a layer as others do, in the order given.
func foreign(t testing.TB, st *store.Store, things ...thing) layer.Descriptor {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, x := range things {
		h := &tar.Header{Name: "./" + x.Path, Mode: int64(x.Mode), Size: x.Size, Typeflag: tar.TypeReg, Uname: "somebody", Uid: 1000}
		if x.Type == layer.HardLink {
			h.Typeflag, h.Linkname = tar.TypeLink, "./"+x.Link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(x.data)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return foreignBlob(t, st, b.Bytes())
}

func foreignBlob(t testing.TB, st *store.Store, blob []byte) layer.Descriptor {
	t.Helper()
	digest, err := st.PutBlob(blob)
	if err != nil {
		t.Fatal(err)
	}
	d := layer.Descriptor{Digest: digest, Size: int64(len(blob)), MediaType: layer.Gzip.MediaType()}
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	d.DiffID = ix.DiffID
	return d
}

func imageOf(t testing.TB, st *store.Store, layers ...layer.Descriptor) *image.Image {
	t.Helper()
	s := image.Spec{
		Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
		Edit: func(c *v1.Config) {
			c.Env = []string{"PATH=/usr/bin", "A=<&>"}
			c.Labels = map[string]string{"kept": "yes"}
		},
	}
	for i, d := range layers {
		s.Additions = append(s.Additions, image.Addition{Layer: d, CreatedBy: fmt.Sprintf("step %d", i), Comment: []string{"", "said before"}[i%2]})
	}
	im, err := image.Assemble(t.Context(), st, s)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// cudaLibrary has code for several GPUs, of which each takes size bytes.
func cudaLibrary(size int) []byte {
	return library{executable: [][]byte{
		regionOf(sass(80).sized(size), sass(90).sized(size), sass(100).sized(size), ptx(90).sized(size)),
		regionOf(sass(75).sized(size), sass(80).sized(size)),
	}}.bytes()
}

const site = "usr/lib/python3.12/site-packages/"

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// recordOf lists files, whose paths count from the site directory.
func recordOf(files map[string][]byte) []byte {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", p, sumOf(files[p]), len(files[p]))
	}
	b.WriteString("torch-2.7.0.dist-info/RECORD,,\n")
	return []byte(b.String())
}

// contentsOf reads all regular files of an image, by path.
func contentsOf(t testing.TB, st *store.Store, im *image.Image) map[string][]byte {
	t.Helper()
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	err = tree.Walk(func(n *image.Node) error {
		if n.Type != layer.Regular {
			return nil
		}
		r, err := tree.Open(n)
		if err != nil {
			return err
		}
		defer r.Close()
		files[n.Path], err = io.ReadAll(r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// checkRecords wants each line of the RECORDs to be right about its file.
func checkRecords(t testing.TB, files map[string][]byte) (lines int) {
	t.Helper()
	for p, data := range files {
		if !isRecord(p) {
			continue
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Split(strings.TrimSpace(line), ",")
			if f[1] == "" {
				continue
			}
			lines++
			content, ok := files[recordRoot(p)+"/"+f[0]]
			if !ok || f[1] != "sha256="+sumOf(content) || f[2] != fmt.Sprint(len(content)) {
				t.Errorf("%s: %s is wrong about the file (%t)", p, f[0], ok)
			}
		}
	}
	return lines
}

// torchImage has a base from elsewhere, a wheel in a layer of ours, and a layer above that links to it and hides something.
func torchImage(t testing.TB, st *store.Store, c layer.Compression) *image.Image {
	t.Helper()
	lib, text := cudaLibrary(20_000), []byte(strings.Repeat("text ", 2000))
	record := recordOf(map[string][]byte{"torch/lib/libtorch_cuda.so": lib, "torch/lib/alias.so": lib, "torch/__init__.py": text})
	big := fileOf(site+"torch/lib/libtorch_cuda.so", lib)
	big.Xattrs = map[string]string{"user.kept": "yes"}
	return imageOf(
		t, st,
		foreign(t, st, fileOf("opt/gone", text), fileOf("opt/gone2", text), fileOf("etc/os-release", []byte("ID=debian\n"))),
		chunked(t, st, c, big, linkTo(site+"torch/lib/libtorch_cuda.so.1", site+"torch/lib/libtorch_cuda.so"),
			fileOf(site+"torch/lib/alias.so", lib), fileOf(site+"torch/__init__.py", text),
			fileOf(site+"torch-2.7.0.dist-info/RECORD", record), fileOf("opt/.wh.gone", nil)),
		foreign(t, st, linkTo("opt/link.so", site+"torch/lib/libtorch_cuda.so"), fileOf("z", text), fileOf("opt/.wh.gone2", nil)),
	)
}

func mustSlim(t testing.TB, st *store.Store, im *image.Image, o Options) (*image.Image, *Report) {
	t.Helper()
	made, report, err := Image(t.Context(), st, im, o)
	if err != nil {
		t.Fatal(err)
	}
	return made, report
}

// losesCode reports whether any file loses code or is trimmed.
func losesCode(r *Report) bool {
	return len(r.Removed)+len(r.Stripped) > 0 || slices.ContainsFunc(r.Files, func(f FileReport) bool { return len(f.Dropped) > 0 })
}

var hopper = Options{GPUs: []int{90}}

func TestImage(t *testing.T) {
	for _, c := range []layer.Compression{layer.Gzip, layer.Zstd, layer.None} {
		st := storetest.Alone(t)
		im := torchImage(t, st, c)
		before := contentsOf(t, st, im)
		made, report := mustSlim(t, st, im, hopper)
		after := contentsOf(t, st, made)
		if got := checkRecords(t, after); got != 3 {
			t.Errorf("%s: %d lines of RECORD were checked, want 3", c, got)
		}
		plan := mustLook(t, before["opt/link.so"], hopper)
		want := maps.Clone(before)
		for _, p := range []string{"opt/link.so", site + "torch/lib/libtorch_cuda.so", site + "torch/lib/libtorch_cuda.so.1", site + "torch/lib/alias.so"} {
			var err error
			if want[p], err = io.ReadAll(plan.Reader(bytes.NewReader(before[p]))); err != nil {
				t.Fatal(err)
			}
		}
		want[site+"torch-2.7.0.dist-info/RECORD"] = after[site+"torch-2.7.0.dist-info/RECORD"] // checked above
		if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(after))); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", c, diff)
		}
		for p := range want {
			if !bytes.Equal(want[p], after[p]) {
				t.Errorf("%s: %s has the wrong content", c, p)
			}
		}
		checkLayers(t, st, im, made)
		checkReport(t, report, im, made)
		for _, d := range made.Layers {
			if err := layer.Verify(t.Context(), st, d); err != nil {
				t.Error(err)
			}
		}
	}
}

// checkLayers wants that only the second layer changed, and in it no entry.
func checkLayers(t *testing.T, st *store.Store, im, made *image.Image) {
	t.Helper()
	if im.Layers[0] != made.Layers[0] || im.Layers[2] != made.Layers[2] {
		t.Error("layers without device code changed")
	}
	if made.Layers[1].MediaType != im.Layers[1].MediaType || made.Layers[1].RawSize != im.Layers[1].RawSize {
		t.Errorf("layer %+v became %+v", im.Layers[1], made.Layers[1])
	}
	var entries [2][]layer.IndexEntry
	for i, d := range []layer.Descriptor{im.Layers[1], made.Layers[1]} {
		ix, err := layer.OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		entries[i] = ix.Entries
	}
	if diff := cmp.Diff(entries[0], entries[1]); diff != "" {
		t.Errorf("entries (-before +after):\n%s", diff)
	}
}

func checkReport(t *testing.T, r *Report, im, made *image.Image) {
	t.Helper()
	if len(r.Files) != 2 || !slices.Equal(r.GPUs, []string{"9.0"}) || len(r.Layers) != 3 {
		t.Fatalf("report %+v", r)
	}
	f := r.Files[0]
	if f.Path != site+"torch/lib/alias.so" || f.Refused != "" || codeOf(f.Kept) != "sass 75 1, sass 90 1, ptx 90 1" { // with the smallest of a region that nothing of fits
		t.Errorf("%s keeps %s: %s", f.Path, codeOf(f.Kept), f.Refused)
	}
	if r.Before != 2*f.Before() || r.After != 2*f.After() || r.After >= r.Before || !losesCode(r) {
		t.Errorf("sizes: %d to %d", r.Before, r.After)
	}
	if l := r.Layers[1]; l.Digest != im.Layers[1].Digest || l.Slimmed != made.Layers[1].Digest || l.SlimmedSize != made.Layers[1].Size {
		t.Errorf("layer %+v", l)
	}
	if l := r.Layers[0]; l.Digest != l.Slimmed || l.Size != l.SlimmedSize {
		t.Errorf("layer %+v", l)
	}
}

func codeOf(list []Code) string {
	var names []string
	for _, c := range list {
		names = append(names, fmt.Sprintf("%s %s %d", c.Kind, c.Arch, c.Entries))
	}
	return strings.Join(names, ", ")
}

func rawConfig(t testing.TB, st *store.Store, im *image.Image) map[string]any {
	t.Helper()
	raw, err := st.ReadBlob(store.Digest(im.Manifest.Config.Digest.String()), maxConfig)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// Nothing of the configuration changes but what has to, not even what sconce does not know; and Docker's stays Docker's.
func TestConfig(t *testing.T) {
	st := storetest.Alone(t)
	oci := torchImage(t, st, layer.Gzip)
	config := rawConfig(t, st, oci)
	config["com.example.unknown"] = map[string]any{"n": 12345678901234567, "s": "<>"}
	config["config"].(map[string]any)["Healthcheck"] = map[string]any{"Test": []any{"NONE"}}
	config["history"].([]any)[0].(map[string]any)["extra"] = true
	config["history"] = append([]any{map[string]any{"created_by": "ENV", "empty_layer": true}}, config["history"].([]any)...)
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	m := oci.Manifest.DeepCopy()
	m.MediaType, m.Config.MediaType = types.DockerManifestSchema2, types.DockerConfigJSON
	m.Config.Digest, m.Config.Size, m.Config.Data = hashOf(digest), int64(len(data)), data
	m.Annotations = map[string]string{"org.example": "stays"}
	for i := range m.Layers {
		m.Layers[i].MediaType = types.DockerLayer
		m.Layers[i].Annotations = map[string]string{"toc": "of these bytes"}
	}
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if digest, err = st.PutBlob(data); err != nil {
		t.Fatal(err)
	}
	im, err := image.Load(t.Context(), st, digest)
	if err != nil {
		t.Fatal(err)
	}
	made, _ := mustSlim(t, st, im, hopper)

	want, got := rawConfig(t, st, im), rawConfig(t, st, made)
	ids := want["rootfs"].(map[string]any)["diff_ids"].([]any)
	ids[1] = string(made.Layers[1].DiffID)
	want["config"].(map[string]any)["Labels"].(map[string]any)[image.LabelSlim] = "9.0"
	want["history"].([]any)[2].(map[string]any)["comment"] = "said before; device code slimmed to 9.0"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	wantManifest := im.Manifest.DeepCopy()
	wantManifest.Config.Digest, wantManifest.Config.Size, wantManifest.Config.Data = made.Manifest.Config.Digest, made.Manifest.Config.Size, nil
	wantManifest.Layers[1] = v1.Descriptor{MediaType: types.DockerLayer, Digest: hashOf(made.Layers[1].Digest), Size: made.Layers[1].Size}
	if diff := cmp.Diff(*wantManifest, made.Manifest); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
}

// sink counts what was begun, by verb.
type sink struct {
	mu      sync.Mutex
	begun   map[string]int
	cached  int
	warned  []string
	onBegin func(verb string)
}

func (s *sink) Emit(e progress.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case progress.Start:
		if s.begun == nil {
			s.begun = map[string]int{}
		}
		s.begun[e.Verb]++
		if s.onBegin != nil {
			s.onBegin(e.Verb)
		}
	case progress.Cached:
		s.cached++
	case progress.Warning:
		s.warned = append(s.warned, e.Text)
	}
}

func TestDeterministic(t *testing.T) {
	var digests []store.Digest
	for _, procs := range []int{1, 4} {
		old := runtime.GOMAXPROCS(procs)
		st := storetest.Alone(t)
		made, _ := mustSlim(t, st, torchImage(t, st, layer.Gzip), hopper)
		digests = append(digests, made.Digest)
		runtime.GOMAXPROCS(old)
	}
	if digests[0] != digests[1] {
		t.Errorf("with 1 core %s, with 4 %s", digests[0], digests[1])
	}
}

// What was done for a layer is not done again for another image that has it, nor by two at the same time.
func TestCache(t *testing.T) {
	st := storetest.Alone(t)
	im := torchImage(t, st, layer.Gzip)
	var seen sink
	ctx := progress.With(t.Context(), &seen)
	var group sync.WaitGroup
	made := make([]*image.Image, 3)
	reports := make([]*Report, 3)
	for i := range made {
		group.Go(func() {
			var err error
			if made[i], reports[i], err = Image(ctx, st, im, hopper); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if seen.begun["rewrite"] != 1 || seen.cached != 6 {
		t.Errorf("three at a time: %v, %d cached", seen.begun, seen.cached)
	}
	seen = sink{}
	again, report, err := Image(ctx, st, imageOf(t, st, im.Layers[1]), hopper)
	if err != nil {
		t.Fatal(err)
	}
	if seen.begun["rewrite"] != 0 || seen.cached != 1 || again.Layers[0].Digest != made[0].Layers[1].Digest {
		t.Errorf("another image: %v, %d cached, layer %s", seen.begun, seen.cached, again.Layers[0].Digest)
	}
	if diff := cmp.Diff(reports[0].Files, report.Files); diff != "" {
		t.Errorf("what the store tells (-first +cached):\n%s", diff)
	}
	seen = sink{}
	if _, _, err := Image(ctx, st, im, Options{GPUs: []int{80}}); err != nil {
		t.Fatal(err)
	}
	if seen.begun["rewrite"] != 1 {
		t.Errorf("for other GPUs: %v", seen.begun)
	}
}

// Whoever is stopped leaves nothing that a later one would believe.
func TestStopped(t *testing.T) {
	calm := storetest.Alone(t)
	want, _ := mustSlim(t, calm, torchImage(t, calm, layer.Gzip), hopper)
	for _, verb := range []string{"slim", "rewrite"} {
		st := storetest.Alone(t)
		im := torchImage(t, st, layer.Gzip)
		ctx, cancel := context.WithCancel(t.Context())
		seen := &sink{onBegin: func(v string) {
			if v == verb {
				cancel()
			}
		}}
		if _, _, err := Image(progress.With(ctx, seen), st, im, hopper); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped at %s: %v", verb, err)
		}
		if left, err := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "*")); err != nil || len(left) > 0 {
			t.Errorf("stopped at %s: left %v, %v", verb, left, err)
		}
		if made, _ := mustSlim(t, st, im, hopper); made.Digest != want.Digest {
			t.Errorf("after a stop at %s: %s, want %s", verb, made.Digest, want.Digest)
		}
	}
}

func TestSlimTwice(t *testing.T) {
	st := storetest.Alone(t)
	im := torchImage(t, st, layer.Gzip)
	both, _ := mustSlim(t, st, im, Options{GPUs: []int{90, 80}})
	if label := both.Config.Config.Labels[image.LabelSlim]; label != "8.0 9.0" {
		t.Errorf("label %q", label)
	}
	one, _ := mustSlim(t, st, both, hopper)
	if label := one.Config.Config.Labels[image.LabelSlim]; label != "9.0" {
		t.Errorf("label %q", label)
	}
	same, report := mustSlim(t, st, one, hopper)
	if same != one || losesCode(report) {
		t.Errorf("a second time it is %s, %+v", same.Digest, report)
	}
	checkRecords(t, contentsOf(t, st, one))
	_, _, err := Image(t.Context(), st, one, Options{GPUs: []int{80, 90}})
	if err == nil || !strings.Contains(err.Error(), "slimmed for compute capability 9.0 before, and what 8.0 may need is gone") || fault.HintOf(err) == "" {
		t.Errorf("wider: %v (%s)", err, fault.HintOf(err))
	}
}

// An image without device code is left as it is.
func TestNothingToSlim(t *testing.T) {
	st := storetest.Alone(t)
	im := imageOf(t, st, foreign(t, st, fileOf("bin/sh", bytes.Repeat([]byte("\x7fELF no"), 1000)), fileOf("x", nil)))
	made, report := mustSlim(t, st, im, hopper)
	if made != im || len(report.Files) != 0 || losesCode(report) || report.Before != 0 {
		t.Errorf("it became %s: %+v", made.Digest, report)
	}
	if _, _, err := Image(t.Context(), st, im, Options{}); err == nil {
		t.Error("slimmed for no GPU")
	}
}

// A RECORD that came into another layer than the files it lists is put right, too.
func TestRecordElsewhere(t *testing.T) {
	st := storetest.Alone(t)
	lib, other := cudaLibrary(20_000), cudaLibrary(30_000)
	files := map[string][]byte{"torch/libtorch_cuda.so": lib, "torch/libother.so": other}
	im := imageOf(
		t, st,
		foreign(t, st, fileOf(site+"torch/libtorch_cuda.so", lib), fileOf("opt/cuda/lib.so", lib)),
		chunked(t, st, layer.Zstd, fileOf(site+"torch-2.7.0.dist-info/RECORD", recordOf(files)), fileOf(site+"torch/libother.so", other)),
		foreign(t, st, fileOf(site+"x-1.dist-info/RECORD", []byte("x/__init__.py,sha256=abc,3\n"))),
	)
	made, _ := mustSlim(t, st, im, hopper)
	if got := checkRecordsOf(t, st, made, "torch-2.7.0"); got != 2 {
		t.Errorf("%d lines were checked, want 2", got)
	}
	if made.Layers[2] != im.Layers[2] {
		t.Error("a layer that has nothing to do with it changed")
	}
	var seen sink
	again, _, err := Image(progress.With(t.Context(), &seen), st, im, hopper)
	if err != nil || again.Digest != made.Digest || seen.begun["rewrite"] != 0 {
		t.Errorf("again: %v, %v", seen.begun, err)
	}
}

// A RECORD may be in two layers: in that of the wheel, and above it with the marks of a package that was asked for. The upper one is
// what the image has.
func TestRecordAbove(t *testing.T) {
	st := storetest.Alone(t)
	lib := cudaLibrary(20_000)
	listed := recordOf(map[string][]byte{"torch/libtorch_cuda.so": lib})
	above := append(bytes.Clone(listed), "torch-2.7.0.dist-info/REQUESTED,,0\n"...)
	im := imageOf(
		t, st,
		chunked(t, st, layer.Gzip, fileOf(site+"torch-2.7.0.dist-info/RECORD", listed), fileOf(site+"torch/libtorch_cuda.so", lib)),
		foreign(t, st, fileOf(site+"x-1.dist-info/RECORD", []byte("x/__init__.py,sha256=abc,3\n"))),
		chunked(t, st, layer.Gzip, fileOf(site+"torch-2.7.0.dist-info/RECORD", above)),
	)
	made, _ := mustSlim(t, st, im, hopper)
	if got := checkRecordsOf(t, st, made, "torch-2.7.0"); got != 1 {
		t.Errorf("%d lines were checked, want 1", got)
	}
	if made.Layers[1] != im.Layers[1] || made.Layers[2] == im.Layers[2] {
		t.Error("the wrong layers changed")
	}
}

func checkRecordsOf(t *testing.T, st *store.Store, im *image.Image, dist string) int {
	t.Helper()
	files := contentsOf(t, st, im)
	maps.DeleteFunc(files, func(p string, _ []byte) bool { return isRecord(p) && !strings.Contains(p, dist) })
	return checkRecords(t, files)
}

// A file with holes is not changed in its place; it is left alone.
func TestHoles(t *testing.T) {
	st := storetest.Alone(t)
	lib := cudaLibrary(20_000)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	// GNU tar manual, "PAX Format, Version 1.0": the map of one piece, then the piece.
	pieces := fmt.Sprintf("1\n0\n%d\n", len(lib))
	body := append([]byte(pieces), make([]byte, 512-len(pieces))...)
	body = append(body, lib...)
	if err := w.WriteHeader(&tar.Header{
		Name: "GNUSparseFile.0/lib.so", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatPAX,
		PAXRecords: map[string]string{
			"GNU-sparse.major": "1", "GNU-sparse.minor": "0", "GNU-sparse.name": "lib.so", "GNU-sparse.realsize": fmt.Sprint(len(lib)),
		},
	}); err != nil {
		t.Fatal(err)
	}
	w.Write(body)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The writer knows these names, and writes none of them.
	im := imageOf(t, st, foreignBlob(t, st, bytes.ReplaceAll(b.Bytes(), []byte("GNU-sparse."), []byte("GNU.sparse."))))
	made, report := mustSlim(t, st, im, hopper)
	if made != im || len(report.Files) != 1 || report.Files[0].Refused == "" {
		t.Errorf("it became %s: %+v", made.Digest, report)
	}
}

func TestExplain(t *testing.T) {
	st := storetest.Alone(t)
	im := torchImage(t, st, layer.Gzip)
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Explain(t.Context(), facts.Tree(tree, st), hopper)
	if err != nil {
		t.Fatal(err)
	}
	_, want := mustSlim(t, st, im, hopper)
	want.Layers = nil
	// A file of several names is shown under its first, and here that is one of the layer above.
	got.Files[0].Path, got.Files[1].Path = "", ""
	want.Files[0].Path, want.Files[1].Path = "", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("explained (-done +explained):\n%s", diff)
	}
	if _, err := Explain(t.Context(), facts.Tree(tree, st), Options{}); err == nil {
		t.Error("explained for no GPU")
	}
}

// Memory does not grow with the layer.
func TestImageMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a large layer")
	}
	st := storetest.Alone(t)
	lib := cudaLibrary(16 << 20)
	im := imageOf(t, st, chunked(t, st, layer.Zstd, fileOf("a.so", lib)))
	size := int64(len(lib))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mustSlim(t, st, im, hopper)
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapSys) - int64(before.HeapSys); held > size/2 {
		t.Errorf("slimming %d bytes took %d more of memory", size, held)
	}
	if left, err := os.ReadDir(filepath.Join(st.Dir(), "tmp-v1")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
