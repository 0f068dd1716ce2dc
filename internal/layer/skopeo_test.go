package layer_test

import (
	"archive/tar"
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestSkopeoReadsDeflated lets skopeo, whose code is podman's, decompress a layer with a stream that was taken over.
func TestSkopeoReadsDeflated(t *testing.T) {
	skopeo := tooltest.Path(t, "skopeo")
	st := storetest.Alone(t)
	d := layerWithStream(t, st)
	im, err := image.Assemble(t.Context(), st, image.Spec{
		Platform:  v1.Platform{OS: "linux", Architecture: "amd64"},
		Additions: []image.Addition{{Layer: d, CreatedBy: "test"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := export.Write(t.Context(), im, export.Target{Transport: source.OCI, Path: dir + "/layout", Tag: "x"}, export.Options{Store: st}); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "archive.tar") // docker-archive holds layers uncompressed
	out, err := exec.Command(skopeo, "--insecure-policy", "copy", "oci:"+dir+"/layout:x", "docker-archive:"+archive).CombinedOutput()
	if err != nil {
		t.Fatalf("skopeo: %v\n%s", err, out)
	}
	if got := layersOf(t, archive); len(got) != 1 || got[0] != d.DiffID {
		t.Errorf("skopeo unpacks %s, want %s", got, d.DiffID)
	}
}

func layerWithStream(t *testing.T, st *store.Store) layer.Descriptor {
	t.Helper()
	content := []byte(strings.Repeat("some text that repeats, ", 1<<18))
	for i := range content {
		content[i] ^= byte(i*i>>9) & 7
	}
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, 6)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := layer.NewWriter(t.Context(), st, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	stream := layer.Deflated{Size: int64(packed.Len()), Open: func() (io.Reader, error) { return bytes.NewReader(packed.Bytes()), nil }}
	for _, err := range []error{
		w.Add(layer.Entry{Path: "a", Size: int64(len(content))}, open),
		w.AddDeflated(layer.Entry{Path: "b", Size: int64(len(content))}, open, stream),
		w.Add(layer.Entry{Path: "c", Type: layer.Dir, Mode: 0o755}, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if blob, err := os.ReadFile(p); err != nil || !bytes.Contains(blob, packed.Bytes()) {
		t.Fatalf("the stream is not in the layer (%v)", err)
	}
	return d
}

// layersOf returns the digests of the layers in a docker-archive.
func layersOf(t *testing.T, archive string) []store.Digest {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digests := map[string]store.Digest{}
	var manifest []struct{ Layers []string }
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		digests[h.Name] = store.DigestOf(data)
		if h.Name == "manifest.json" {
			if err := json.Unmarshal(data, &manifest); err != nil || len(manifest) != 1 {
				t.Fatalf("manifest.json: %v", err)
			}
		}
	}
	var layers []store.Digest
	for _, name := range manifest[0].Layers {
		layers = append(layers, digests[name])
	}
	return layers
}
