package layer

import (
	"context"
	"encoding/json"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Listed is a layer and its manifest: a blob that lists, as JSON, what the layer was made of.
type Listed struct {
	Layer    Descriptor   `json:"layer"`
	Manifest store.Digest `json:"manifest"`
}

// Refs are the blobs that both are.
func (l Listed) Refs() []store.Digest { return []store.Digest{l.Layer.Digest, l.Manifest} }

// maxManifest bounds a manifest in the store, in bytes.
const maxManifest = 512 << 20

// ReadManifest reads the manifest.
func (l Listed) ReadManifest(st *store.Store, manifest any) error {
	data, err := st.ReadBlob(l.Manifest, maxManifest)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, manifest)
}

// Making says how a layer with a manifest M is made, and when that is the same layer.
type Making[M any] struct {
	Kind store.Kind
	Key  string // of everything that the layer's bytes depend on
	Name string // for people

	// Bring brings what the layer is made of and the store may lack, before it is made and only then. What it returns is called when the
	// layer is done. Nil: all is there.
	Bring func(context.Context) (done func(), err error)

	Make func(context.Context, *progress.Task) (Descriptor, M, error)
	Then func(Listed) error // is told of a layer that was made; nil: nobody is
}

// Once makes the layer, or finds the one that was made before.
func (w Making[M]) Once(ctx context.Context, st *store.Store) (Descriptor, M, error) {
	var manifest M
	once := store.Once[Listed]{
		Kind: w.Kind, Key: w.Key, Refs: Listed.Refs, Does: "makes the layer of " + w.Name,
		Valid: func(l Listed) bool {
			var read M
			err := l.ReadManifest(st, &read)
			manifest = read
			return err == nil
		},
	}
	l, _, err := once.Do(ctx, st, func(ctx context.Context) (l Listed, err error) {
		if w.Bring != nil {
			done, err := w.Bring(ctx)
			if err != nil {
				return l, err
			}
			defer done()
		}
		task := progress.Begin(ctx, "layer", w.Name, 0)
		if l.Layer, manifest, err = w.Make(ctx, task); err == nil {
			l.Manifest, err = saveManifest(st, manifest)
		}
		if err == nil && w.Then != nil {
			err = w.Then(l)
		}
		return l, task.End(err)
	})
	return l.Layer, manifest, err
}

func saveManifest(st *store.Store, manifest any) (store.Digest, error) {
	data, err := json.Marshal(manifest)
	if err != nil {
		return "", err
	}
	return st.PutBlob(data)
}
