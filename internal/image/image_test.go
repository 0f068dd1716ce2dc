package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// object is an entry with its content.
type object struct {
	layer.Entry
	data string
}

func file(p, data string) object {
	return object{layer.Entry{Path: p, Mode: 0o644, Size: int64(len(data))}, data}
}

func dir(p string) object {
	return object{Entry: layer.Entry{Path: p, Type: layer.Dir, Mode: 0o755}}
}

func symlink(p, to string) object {
	return object{Entry: layer.Entry{Path: p, Type: layer.Symlink, Mode: 0o777, Link: to}}
}

func hardLink(p, to string) object {
	return object{Entry: layer.Entry{Path: p, Type: layer.HardLink, Mode: 0o644, Link: to}}
}

func makeLayer(tb testing.TB, st *store.Store, c layer.Compression, objects ...object) layer.Descriptor {
	tb.Helper()
	w, err := layer.NewWriter(context.Background(), st, layer.Options{Compression: c})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	for _, o := range objects {
		err := w.Add(o.Entry, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(o.data)), nil })
		if err != nil {
			tb.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

func TestAssemble(t *testing.T) {
	st := storetest.Alone(t)
	one := makeLayer(t, st, layer.Zstd, file("a", "one"))
	two := makeLayer(t, st, layer.Gzip, file("b", "two"))
	spec := Spec{
		Platform:    amd64,
		Additions:   []Addition{{Layer: one, CreatedBy: "first", Comment: "sconce"}},
		Edit:        func(c *v1.Config) { c.Env = append(c.Env, "A=1"); c.Labels = map[string]string{"k": "v", "a": "b"} },
		Annotations: map[string]string{"org.example": "x"},
	}
	base, err := Assemble(t.Context(), st, spec)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Assemble(t.Context(), testStoreWith(t, st, one), spec)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest != base.Digest {
		t.Error("the same spec gives two images")
	}
	top, err := Assemble(t.Context(), st, Spec{Base: base, Additions: []Addition{{Layer: two, CreatedBy: "second"}}, Edit: func(c *v1.Config) {
		c.Env = append(c.Env, "B=2")
		c.Labels["k"] = "changed"
	}})
	if err != nil {
		t.Fatal(err)
	}
	if base.Config.Config.Labels["k"] != "v" {
		t.Error("editing an image changed its base")
	}
	if diff := cmp.Diff([]string{"A=1", "B=2"}, top.Config.Config.Env); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]layer.Descriptor{one, two}, top.Layers); diff != "" {
		t.Error(diff)
	}
	var history []string
	for _, h := range top.Config.History {
		history = append(history, h.CreatedBy+"|"+h.Comment+"|"+h.Created.UTC().Format("2006-01-02"))
	}
	if diff := cmp.Diff([]string{"first|sconce|1980-01-02", "second||1980-01-02"}, history); diff != "" {
		t.Error(diff)
	}
	if got := top.Platform(); got.String() != "linux/amd64" {
		t.Errorf("platform %s", got)
	}
	img, err := top.V1(st)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img, validate.Fast); err != nil {
		t.Error(err)
	}
	if _, err := Assemble(t.Context(), st, Spec{}); err == nil || !strings.Contains(err.Error(), "platform") {
		t.Errorf("an image without a platform: %v", err)
	}
}

// testStoreWith returns another store that holds some of the layers of st.
func testStoreWith(t *testing.T, st *store.Store, layers ...layer.Descriptor) *store.Store {
	t.Helper()
	to := storetest.Alone(t)
	for _, d := range layers {
		p, err := st.BlobPath(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.PutBlob(data); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestSkopeoReads has skopeo copy an assembled image out of an OCI layout, decompressing each layer.
func TestSkopeoReads(t *testing.T) {
	skopeo := tooltest.Path(t, "skopeo")
	st := storetest.Alone(t)
	big := strings.Repeat("more than one chunk ", 1<<19)
	im, err := Assemble(t.Context(), st, Spec{Platform: amd64, Additions: []Addition{
		{Layer: makeLayer(t, st, layer.Zstd, file("a", big), file("b", "x")), CreatedBy: "one"},
		{Layer: makeLayer(t, st, layer.Gzip, file("c", big)), CreatedBy: "two"},
		{Layer: makeLayer(t, st, layer.None, file("d", "x")), CreatedBy: "three"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	layout, out := t.TempDir(), t.TempDir()
	writeLayout(t, st, im, layout)
	cmd := exec.Command(skopeo, "copy", "--insecure-policy", "--dest-decompress", "oci:"+layout+":test", "dir:"+out)
	if log, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("skopeo copy: %v\n%s", err, log)
	}
	for _, d := range im.Layers {
		data, err := os.ReadFile(filepath.Join(out, d.DiffID.Hex()))
		if err != nil {
			t.Fatal(err)
		}
		if store.DigestOf(data) != d.DiffID || int64(len(data)) != d.RawSize {
			t.Errorf("skopeo decompresses %s to something else", d.Digest)
		}
	}
	if log, err := exec.Command(skopeo, "inspect", "--config", "oci:"+layout+":test").CombinedOutput(); err != nil {
		t.Errorf("skopeo inspect: %v\n%s", err, log)
	}
}

func writeLayout(t *testing.T, st *store.Store, im *Image, to string) {
	t.Helper()
	blobs := filepath.Join(to, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range im.Refs() {
		p, err := st.BlobPath(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p, filepath.Join(blobs, d.Hex())); err != nil {
			t.Fatal(err)
		}
	}
	index := v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{{
		MediaType: types.MediaType(im.MediaType), Digest: hash(im.Digest), Size: im.Size,
		Annotations: map[string]string{"org.opencontainers.image.ref.name": "test"},
	}}}
	data, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"index.json": data, "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)} {
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImport(t *testing.T) {
	st := storetest.Alone(t)
	img, err := random.Image(10_000, 5) // Docker media types
	if err != nil {
		t.Fatal(err)
	}
	im, err := Import(t.Context(), st, img, 3)
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if hash(im.Digest) != want || im.MediaType != string(types.DockerManifestSchema2) || len(im.Layers) != 5 {
		t.Errorf("imported %s %s with %d layers", im.Digest, im.MediaType, len(im.Layers))
	}
	back, err := im.V1(st)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(back); err != nil {
		t.Error(err)
	}
	top, err := Assemble(t.Context(), st, Spec{Base: im, Platform: amd64, Additions: []Addition{{Layer: makeLayer(t, st, layer.Zstd, file("x", "")), CreatedBy: "top"}}})
	if err != nil {
		t.Fatal(err)
	}
	if top.MediaType != string(types.OCIManifestSchema1) {
		t.Errorf("manifest type %s", top.MediaType)
	}
	for i, d := range top.Layers {
		if !strings.HasPrefix(d.MediaType, "application/vnd.oci.") {
			t.Errorf("layer %d has type %s", i, d.MediaType)
		}
	}
	if n := len(top.Config.History); n != 6 || top.Config.History[5].CreatedBy != "top" {
		t.Errorf("history %+v", top.Config.History)
	}
}

// watched counts how often layers are read.
type watched struct {
	v1.Image
	wrap func(v1.Layer) v1.Layer
}

func (w watched) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	l, err := w.Image.LayerByDigest(h)
	if err != nil {
		return nil, err
	}
	return w.wrap(l), nil
}

type readLayer struct {
	v1.Layer
	open func(v1.Layer) (io.ReadCloser, error)
}

func (l readLayer) Compressed() (io.ReadCloser, error) { return l.open(l.Layer) }

type ensuredLayer struct {
	v1.Layer
	ensure func(context.Context, v1.Layer) error
}

func (l ensuredLayer) Follow(ctx context.Context, _ func(io.ReadCloser)) error {
	return l.ensure(ctx, l.Layer)
}

func (l ensuredLayer) Compressed() (io.ReadCloser, error) {
	return nil, errors.New("Compressed must not be asked")
}

func TestImportReadsOnlyWhatIsMissing(t *testing.T) {
	st := storetest.Alone(t)
	img, err := random.Image(1000, 3)
	if err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int32
	counting := watched{img, func(l v1.Layer) v1.Layer {
		return readLayer{l, func(l v1.Layer) (io.ReadCloser, error) { reads.Add(1); return l.Compressed() }}
	}}
	for range 2 {
		if _, err := Import(t.Context(), st, counting, 2); err != nil {
			t.Fatal(err)
		}
	}
	if reads.Load() != 3 {
		t.Errorf("%d layers were read, not 3", reads.Load())
	}
}

func TestImportEnsures(t *testing.T) {
	st := storetest.Alone(t)
	img, err := random.Image(1000, 3)
	if err != nil {
		t.Fatal(err)
	}
	put := func(_ context.Context, l v1.Layer) error {
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		_, err = st.PutBlob(data)
		return err
	}
	idle := func(context.Context, v1.Layer) error { return nil }
	if _, err := Import(t.Context(), st, watched{img, func(l v1.Layer) v1.Layer { return ensuredLayer{l, idle} }}, 2); err == nil {
		t.Error("a layer that did not arrive was not missed")
	}
	if _, err := Import(t.Context(), st, watched{img, func(l v1.Layer) v1.Layer { return ensuredLayer{l, put} }}, 2); err != nil {
		t.Error(err)
	}
}

func TestImportRefuses(t *testing.T) {
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func([]byte) []byte) v1.Image {
		return watched{img, func(l v1.Layer) v1.Layer {
			return readLayer{l, func(l v1.Layer) (io.ReadCloser, error) {
				r, err := l.Compressed()
				if err != nil {
					return nil, err
				}
				data, err := io.ReadAll(r)
				return io.NopCloser(bytes.NewReader(f(data))), err
			}}
		}}
	}
	foreign, err := mutate.AppendLayers(img, static.NewLayer([]byte("x"), types.DockerForeignLayer))
	if err != nil {
		t.Fatal(err)
	}
	artifact := mutate.ConfigMediaType(img, "application/vnd.example.chart")
	for want, img := range map[string]v1.Image{
		"wrong hash":               change(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
		"unexpected EOF":           change(func(b []byte) []byte { return b[:len(b)-1] }),
		"is longer than":           change(func(b []byte) []byte { return append(b, 0) }),
		"vendor's address":         foreign,
		"not a container image":    artifact,
		"manifest: unexpected end": rawImage{img, []byte(`{"schemaVersion":`)},
		"schema version 1":         rawImage{img, []byte(`{"schemaVersion":1}`)},
		"index of several images":  rawImage{img, []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json"}`)},
		"not a digest":             rawImage{img, []byte(`{"schemaVersion":2,"config":{}}`)},
	} {
		st := storetest.Alone(t)
		if _, err := Import(t.Context(), st, img, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if left, _ := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

type rawImage struct {
	v1.Image
	manifest []byte
}

func (r rawImage) RawManifest() ([]byte, error) { return r.manifest, nil }

func TestLoadNeedsEverything(t *testing.T) {
	st := storetest.Alone(t)
	im, err := Assemble(t.Context(), st, Spec{Platform: amd64, Additions: []Addition{{Layer: makeLayer(t, st, layer.Zstd, file("a", "x"))}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range im.Refs() {
		p, err := st.BlobPath(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(p, p+"-away"); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(t.Context(), st, im.Digest); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("blob %d away: %v", i, err)
		}
		if err := os.Rename(p+"-away", p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(t.Context(), st, im.Digest); err != nil {
		t.Error(err)
	}
}

func TestCompleteHistory(t *testing.T) {
	e, f := v1.History{EmptyLayer: true}, v1.History{}
	for i, h := range [][]v1.History{nil, {f}, {f, e, f}, {e, e}, {f, f, f, f}, {f, e, f, e, f, e}} {
		filled := 0
		for _, x := range completeHistory(h, 2) {
			if !x.EmptyLayer {
				filled++
			}
		}
		if filled != 2 {
			t.Errorf("case %d: %d entries with a layer, want 2", i, filled)
		}
	}
}

func ExampleTree_ReadFile() {
	st, err := store.Open(context.Background(), os.TempDir()+"/sconce-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(st.Dir())
	w, err := layer.NewWriter(context.Background(), st, layer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	add := func(e layer.Entry, data string) {
		e.Size = int64(len(data))
		if err := w.Add(e, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(data)), nil }); err != nil {
			fmt.Println(err)
		}
	}
	add(layer.Entry{Path: "etc", Type: layer.Dir, Mode: 0o755}, "")
	add(layer.Entry{Path: "etc/os-release", Type: layer.Symlink, Mode: 0o777, Link: "/usr/lib/os-release"}, "")
	add(layer.Entry{Path: "usr/lib/os-release", Mode: 0o644}, "ID=debian\n")
	d, err := w.Close()
	if err != nil {
		fmt.Println(err)
		return
	}
	tree, err := NewTree(context.Background(), st, []layer.Descriptor{d})
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := tree.ReadFile("etc/os-release", 1<<20)
	fmt.Print(string(data), err)
	// Output:
	// ID=debian
	// <nil>
}
