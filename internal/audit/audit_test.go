package audit

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/store/storetest"
)

var errGone = errors.New("gone")

// fading is a layer that cannot be read when it is gone.
type fading struct {
	v1.Layer
	gone *bool
}

func (l fading) Compressed() (io.ReadCloser, error) {
	if *l.gone {
		return nil, errGone
	}
	return l.Layer.Compressed()
}

// A check that needs what is not there is an error, and has no findings.
func TestCheckOfWhatIsGone(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "opt/x.bin", Mode: 0o644, Size: 10_000, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	gone := false
	img, err := mutate.AppendLayers(empty.Image, fading{l, &gone})
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.New(t)
	gather := func() *facts.Facts {
		o, err := image.ReadOutline(t.Context(), st, img)
		if err != nil {
			t.Fatal(err)
		}
		f, err := facts.OfOutline(t.Context(), st, o, "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		for _, d := range o.Image.Layers {
			if name, err := st.BlobPath(d.Digest); err == nil {
				os.Remove(name)
			}
		}
		return f
	}
	gather()
	gone = true
	f := gather()
	if _, err := Check(t.Context(), f, cluster.Profile{}); err != nil {
		t.Errorf("all that a check needs is known: %v", err)
	}
	h, err := f.Root.Open("/opt/x.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := h.ReadAt(make([]byte, 10), 100); !errors.Is(err, errGone) {
		t.Errorf("a read of what is gone: %v", err)
	}
	if found, err := Check(t.Context(), f, cluster.Profile{}); !errors.Is(err, errGone) || found != nil {
		t.Errorf("a check of what is gone: %v, %v", found, err)
	}
}
