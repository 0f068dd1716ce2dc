package engine_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/store"
)

// layoutOf makes an OCI layout with an image of three layers.
func layoutOf(t *testing.T) (dir string, manifest *v1.Manifest) {
	t.Helper()
	img, err := random.Image(100_000, 3)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "layout")
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	if manifest, err = img.Manifest(); err != nil {
		t.Fatal(err)
	}
	return dir, manifest
}

func openLayout(t *testing.T, s *engine.Session, dir string) *engine.Subject {
	t.Helper()
	subject, err := s.Open("oci:"+dir, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { subject.Close() })
	return subject
}

// A cluster file is made while the layers come into the store. It is the same as one of an image that is there, the layers are in the
// store afterwards, and for a file that is there already none comes.
func TestCopyWhileLayersCome(t *testing.T) {
	dir, manifest := layoutOf(t)
	for _, kind := range []string{"sqsh", "sif", "plain"} {
		var files [2][]byte
		for i, before := range []bool{true, false} {
			s := newSession(t)
			if before {
				if _, err := s.Pull(t.Context(), openLayout(t, s, dir), "image:1"); err != nil {
					t.Fatal(err)
				}
			}
			name := filepath.Join(t.TempDir(), "image")
			if _, err := s.Copy(t.Context(), openLayout(t, s, dir), kind+":"+name, engine.Writing{}); err != nil {
				t.Fatal(err)
			}
			var err error
			if files[i], err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
			for _, l := range manifest.Layers {
				if !s.Store.HasBlob(store.Digest(l.Digest.String())) {
					t.Errorf("%s: layer %s is not in the store", kind, l.Digest)
				}
			}
			other := newSession(t)
			if _, err := other.Copy(t.Context(), openLayout(t, other, dir), kind+":"+name, engine.Writing{}); err != nil {
				t.Fatal(err)
			}
			if other.Store.HasBlob(store.Digest(manifest.Layers[0].Digest.String())) {
				t.Errorf("%s: a layer came for a file that was there", kind)
			}
		}
		if !bytes.Equal(files[0], files[1]) {
			t.Errorf("%s: the files differ", kind)
		}
	}
}

// A layer that is damaged is told of as when it is pulled, and nothing is written.
func TestCopyDamagedLayer(t *testing.T) {
	dir, manifest := layoutOf(t)
	for number, l := range manifest.Layers {
		blob := filepath.Join(dir, "blobs", l.Digest.Algorithm, l.Digest.Hex)
		whole, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(whole)
		damaged[len(damaged)/2] ^= 1
		if err := os.WriteFile(blob, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		s := newSession(t)
		_, want := s.Pull(t.Context(), openLayout(t, s, dir), "image:1")
		name := filepath.Join(t.TempDir(), "image.sqsh")
		_, err = s.Copy(t.Context(), openLayout(t, s, dir), name, engine.Writing{})
		if want == nil || err == nil || err.Error() != want.Error() {
			t.Errorf("layer %d: %v; when it is pulled: %v", number, err, want)
		}
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("layer %d: a file is there: %v", number, err)
		}
		if err := os.WriteFile(blob, whole, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
