package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// paused is a layer whose walks stop at a file until wait returns.
type paused struct {
	layer.Source
	at   int // files before it
	wait func(ctx context.Context) error
}

func (p paused) Walk(ctx context.Context, visit layer.Visitor) error {
	n := 0
	return p.Source.Walk(ctx, func(e layer.IndexEntry, open opener) error {
		if n++; n == p.at {
			if err := p.wait(ctx); err != nil {
				return err
			}
		}
		return visit(e, open)
	})
}

// twoLayers are a large layer of many pieces, with contents that are there twice, below a small one, which hides some of it.
func twoLayers(t *testing.T, st *store.Store, hides ...string) []layer.Descriptor {
	t.Helper()
	top := []object{file("top", noise(900, 30_000))}
	for _, name := range hides {
		top = append(top, whiteout(name))
	}
	return []layer.Descriptor{foreignLayer(t, st, tarOf(t, largeLayer(60)...)), foreignLayer(t, st, tarOf(t, top...))}
}

// hidden is the first of two files with the same content.
const hidden = "f0000-large"

// inSmallPieces returns options for a machine on which layers are compressed beside each other, in small pieces, and what has to come out.
func inSmallPieces(t *testing.T, hides ...string) (o Options, want []byte) {
	t.Helper()
	old := besideLeast
	besideLeast = 1
	t.Cleanup(func() { besideLeast = old })
	smallPieces(t, 100_000)
	o = Options{Squashfs: settings()["tails"], NoReuse: true}
	st := newStore(t)
	want = writeTo(t, st, o, twoLayers(t, st, hides...)...).data
	o.Squashfs.Workers = besideCores
	return o, want
}

// What is done of a layer beside others is in the file before the rest of the layer is read.
func TestPiecesAreTakenAsTheyAreDone(t *testing.T) {
	o, want := inSmallPieces(t)
	st := newStore(t)
	ds := twoLayers(t, st)
	f, err := os.Create(filepath.Join(t.TempDir(), "image.sqsh"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := inputOf(st, new([]string), ds...)
	for i, d := range ds {
		in.Layers[i].Source, in.Layers[i].Packed = layer.Stored(st, d), d.Size
	}
	in.Layers[0].Source = paused{in.Layers[0].Source, 50, func(ctx context.Context) error { return grownTo(ctx, f, 500_000) }}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("nothing came into the file before the layer was read to its end"))
	defer cancel()
	o.Store = st
	if err := WriteSquashfs(ctx, f, in, o); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes, %v", err)
	}
}

// grownTo waits until a file has so many bytes.
func grownTo(ctx context.Context, f *os.File, size int64) error {
	for {
		st, err := f.Stat()
		if err != nil || st.Size() >= size {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A layer that ends beside others after some pieces are in the file, for whatever reason, is read in its turn when it can be: the file is the same.
func TestPressedInPart(t *testing.T) {
	o, want := inSmallPieces(t, hidden)
	for name, reason := range map[string]error{"no room": io.ErrShortWrite, "wrong bytes at first": layer.ErrAgain} {
		t.Run(name, func(t *testing.T) {
			st := newStore(t)
			walks := 0
			got, err := writeSources(t, st, o, func(number int, s layer.Source) layer.Source {
				if number > 0 {
					return s
				}
				return paused{s, 40, func(context.Context) error {
					if walks++; walks == 1 {
						return reason
					}
					return nil
				}}
			}, twoLayers(t, st, hidden)...)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("other bytes, %v", err)
			}
			if walks != 2 {
				t.Errorf("the layer was read %d times", walks)
			}
		})
	}
}

// One that cannot be read is told as such, and not begun again.
func TestPressedAndDamaged(t *testing.T) {
	o, _ := inSmallPieces(t)
	st := newStore(t)
	ds := twoLayers(t, st)
	data, err := st.ReadBlob(ds[0].Digest, 100<<20)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Clone(data)
	data[len(data)*9/10] ^= 4
	if ds[0].Digest, err = st.PutBlob(data); err != nil {
		t.Fatal(err)
	}
	walks := 0
	_, err = writeSources(t, st, o, func(number int, s layer.Source) layer.Source {
		return paused{s, 1, func(context.Context) error {
			if number == 0 {
				walks++
			}
			return nil
		}}
	}, ds...)
	if err == nil || !strings.Contains(err.Error(), ds[0].Digest.Short()) || errors.Is(err, errPressed) {
		t.Errorf("error %v", err)
	}
	if walks != 1 {
		t.Errorf("the layer was read %d times", walks)
	}
}
