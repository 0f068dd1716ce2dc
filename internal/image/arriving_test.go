package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// sending is an image of one layer, with the files one and two, whose bytes come as a test says.
type sending struct {
	st   *store.Store
	tar  []byte
	send func(ctx context.Context, s *sending, read func(io.ReadCloser)) error
}

// sentLayer is the layer.
type sentLayer struct {
	v1.Layer
	s *sending
}

func (l sentLayer) Follow(ctx context.Context, read func(io.ReadCloser)) error {
	return l.s.send(ctx, l.s, read)
}

func (s *sending) arrive(t *testing.T) *Arrival {
	t.Helper()
	s.st = storetest.Alone(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, name := range []string{"one", "two"} {
		content := make([]byte, 8<<20)
		rand.NewChaCha8([32]byte{byte(i)}).Read(content)
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.tar = b.Bytes()
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(s.tar, types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	view := watched{img, func(l v1.Layer) v1.Layer { return sentLayer{l, s} }}
	a, err := Arrive(t.Context(), s.st, view, 1, "import image", func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// write sends bytes of the layer as those of a blob. The caller goes on with it.
func (s *sending) write(read func(io.ReadCloser), data []byte) (*store.BlobWriter, error) {
	w, err := s.st.NewBlob()
	if err != nil {
		return nil, err
	}
	r, err := w.Follow()
	if err == nil {
		read(r)
		_, err = w.Write(data)
	}
	if err != nil {
		w.Close()
	}
	return w, err
}

// readAll reads all contents, and tells seen the names.
func readAll(ctx context.Context, l layer.Source, seen func(name string) error) error {
	return l.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		r, err := open()
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
		return seen(e.Path)
	})
}

// A layer is read while it arrives, once; others wait until it is there.
func TestWalkWhatArrives(t *testing.T) {
	seenOne := make(chan struct{})
	s := sending{send: func(ctx context.Context, s *sending, read func(io.ReadCloser)) error {
		half := len(s.tar) * 3 / 4
		w, err := s.write(read, s.tar[:half])
		if err != nil {
			return err
		}
		defer w.Close()
		select {
		case <-seenOne:
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := w.Write(s.tar[half:]); err != nil {
			return err
		}
		_, err = w.Commit("")
		return err
	}}
	a := s.arrive(t)
	ctx := limited(t)
	l, second := a.Layer(0), a.Layer(0)
	var names []string
	other := make(chan error, 1)
	err := readAll(ctx, l, func(name string) error {
		names = append(names, name)
		if name == "one" {
			if s.st.HasBlob(a.Image.Layers[0].Digest) {
				t.Error("the layer was there before anything of it was read")
			}
			go func() { other <- readAll(ctx, second, func(string) error { return nil }) }()
			close(seenOne)
		}
		return nil
	})
	if err != nil || len(names) != 2 {
		t.Fatalf("saw %v, %v", names, err)
	}
	if err := <-other; err != nil {
		t.Error(err)
	}
	ix, err := l.Index(ctx)
	if err != nil || len(ix.Entries) != 2 || ix.DiffID != a.Image.Layers[0].Digest {
		t.Errorf("index %+v, %v", ix, err)
	}
	if _, err := layer.OpenIndex(ctx, s.st, a.Image.Layers[0]); err != nil {
		t.Error(err)
	}
}

// Bytes that turn out wrong are shown, and the layer is to be walked again when it has come after all.
func TestWalkWhatArrivesWrong(t *testing.T) {
	gone := errors.New("it is gone")
	for name, tc := range map[string]struct {
		then func(s *sending) error
		want error // of the first walk
	}{
		"right at last": {func(s *sending) error { _, err := s.st.PutBlob(s.tar); return err }, layer.ErrAgain},
		"never right":   {func(*sending) error { return gone }, gone},
	} {
		t.Run(name, func(t *testing.T) {
			s := sending{send: func(_ context.Context, s *sending, read func(io.ReadCloser)) error {
				w, err := s.write(read, append(bytes.Clone(s.tar[:9<<20]), "something else"...))
				if err != nil {
					return err
				}
				w.Close()
				return tc.then(s)
			}}
			a := s.arrive(t)
			ctx := limited(t)
			l := a.Layer(0)
			if err := readAll(ctx, l, func(string) error { return nil }); !errors.Is(err, tc.want) {
				t.Fatalf("first: %v", err)
			}
			if err := readAll(ctx, l, func(string) error { return nil }); (err == nil) != errors.Is(tc.want, layer.ErrAgain) {
				t.Errorf("second: %v", err)
			}
		})
	}
}

// Whoever ends the walk for a reason of its own does not wait for the rest.
func TestWalkIsEnded(t *testing.T) {
	s := sending{send: func(ctx context.Context, s *sending, read func(io.ReadCloser)) error {
		w, err := s.write(read, s.tar[:12<<20])
		if err != nil {
			return err
		}
		defer w.Close()
		<-ctx.Done()
		return ctx.Err()
	}}
	enough := errors.New("enough")
	if err := readAll(limited(t), s.arrive(t).Layer(0), func(string) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
}
