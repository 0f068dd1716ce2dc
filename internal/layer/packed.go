package layer

import (
	"errors"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/store"
)

// IndexFormat names the stored form of an index.
var IndexFormat = strings.TrimSpace(indexMagic)

// ReadIndex returns the index of a layer in its stored form, from a store that has it.
func ReadIndex(st *store.Store, d Descriptor) ([]byte, error) {
	var r indexRecord
	ok, err := st.GetRecord(store.KindLayerIndex, d.Digest.Hex(), &r)
	if err == nil && !ok {
		err = errors.New("the store does not know what is in it")
	}
	if err != nil {
		return nil, fmt.Errorf("read layer %s: %w", d.Digest.Short(), err)
	}
	return st.ReadBlob(r.Index, maxIndexBytes)
}

// PutIndex makes the index of a layer, in its stored form, known to a store that does not have the layer. Whoever calls it believes
// where the index is from. d says all of the layer.
func PutIndex(st *store.Store, d Descriptor, data []byte) error {
	if _, err := decodeIndex(data); err != nil {
		return fmt.Errorf("the index of layer %s: %w", d.Digest.Short(), err)
	}
	blob, err := st.PutBlob(data)
	if err != nil {
		return err
	}
	r := indexRecord{Index: blob, DiffID: d.DiffID, RawSize: d.RawSize}
	return st.PutRecord(store.KindLayerIndex, d.Digest.Hex(), r.refs(), r)
}
