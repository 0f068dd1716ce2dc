package build_test

import (
	"context"
	"encoding/json"
	"testing"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// liar is a cache that has one answer to everything.
type liar struct{ value string }

func (l liar) Get(_ context.Context, _ *store.Store, _, _ string, v any) (bool, error) {
	return true, json.Unmarshal([]byte(l.value), v)
}

func (liar) Put(context.Context, *store.Store, string, string, any, []store.Digest) error { return nil }

// A cache belongs to others. What it says of a layer is looked at before a record says it too: else every later build of this
// machine would fail.
func TestLyingCache(t *testing.T) {
	locktest.Isolate(t)
	dir := locktest.Dir(t, locktest.Base{}, map[string]string{
		recipe.FileName: locktest.Head + "[[step]]\ncopy = [\"file:/file\"]\n", "file": "content",
	})
	truth := storetest.New(t)
	im := mustRun(t.Context(), t, truth, dir).Image
	good := im.Layers[len(im.Layers)-1]
	lies := map[string]func(d *layer.Descriptor){
		"a layer that was never sent": func(d *layer.Descriptor) { d.Digest = store.DigestOf([]byte("absent")) },
		"no digest at all":            func(d *layer.Descriptor) { d.Digest = "" },
		"a path":                      func(d *layer.Descriptor) { d.Digest = "sha256:../../../x" },
		"another content":             func(d *layer.Descriptor) { d.DiffID = im.Layers[0].DiffID },
		"no content":                  func(d *layer.Descriptor) { d.DiffID = "" },
		"another size":                func(d *layer.Descriptor) { d.Size++ },
		"another raw size":            func(d *layer.Descriptor) { d.RawSize++ },
		"no layer":                    func(d *layer.Descriptor) { d.MediaType = "text/plain" },
		"another compression":         func(d *layer.Descriptor) { d.MediaType = layer.Zstd.MediaType() },
		"the manifest of an image":    func(d *layer.Descriptor) { d.Digest, d.Size = im.Digest, im.Size },
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			st := storetest.New(t)
			for _, d := range append(im.Refs(), im.Digest) {
				data, err := truth.ReadBlob(d, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := st.PutBlob(data); err != nil {
					t.Fatal(err)
				}
			}
			d := good
			lie(&d)
			value, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				result, err := runWith(t.Context(), st, dir, build.Options{Shared: &store.Shared{Remote: liar{string(value)}}})
				if err != nil {
					t.Fatal(err)
				}
				if result.Image.Digest != im.Digest {
					t.Errorf("another image: %v", result.Image.Layers)
				}
			}
			verify(t, st)
		})
	}
}
