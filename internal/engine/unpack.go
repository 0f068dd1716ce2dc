package engine

import (
	"context"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// ToUnpack is the image whose layers are worth unpacking while a command runs on them as they are, so that later commands have plain
// files. ok is false when there is nothing to unpack, or no place for it.
func (s *Session) ToUnpack(r *Root) (digest store.Digest, ok bool) {
	if r.packed == nil || s.Store.ReadOnly() || s.Store.Forgets() {
		return "", false
	}
	return r.packed.Digest, roomFor(s.Store, sandbox.Missing(s.Store, r.packed.Layers))
}

// spare is what must be left free on the store's disk: unpacking ahead is no reason for a build or a job to fail.
const spare = 2 << 30

// roomFor reports whether the store's disk has room for unpacked layers. Small files take more than their bytes.
func roomFor(st *store.Store, layers []layer.Descriptor) bool {
	var need int64
	for _, d := range layers {
		d, _ = layer.Known(st, d)
		need += d.RawSize + d.RawSize/8
	}
	return need+spare <= host.FileSystemOf(st.Dir()).Free
}

// UnpackUntil is Unpack until input ends: what a command that runs on layers starts, and what is to end with it.
func (s *Session) UnpackUntil(ctx context.Context, digest store.Digest, input io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, input)
		cancel()
	}()
	return s.Unpack(ctx, digest)
}

// Unpack unpacks the layers of an image of the store one after the other, until ctx ends or the disk has no more room to spare.
func (s *Session) Unpack(ctx context.Context, digest store.Digest) error {
	im, err := image.Load(ctx, s.Store, digest)
	if err != nil {
		return err
	}
	for _, d := range sandbox.Missing(s.Store, im.Layers) {
		if !roomFor(s.Store, []layer.Descriptor{d}) {
			return fmt.Errorf("unpack layer %s: the disk of %s has no room to spare", d.Digest.Short(), s.Store.Dir())
		}
		if _, err := sandbox.Layers(ctx, s.Store, []layer.Descriptor{d}); err != nil {
			return err
		}
	}
	return nil
}
