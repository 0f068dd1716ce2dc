package ospackages

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"sconce.dev/sconce/internal/layer"
)

// LayerKey is the key for [Layer]: what p pins, installed on the base of the given key, as a layer made with o.
func LayerKey(base string, p *Pinned, o layer.Options) string {
	o.Workers = 0 // they do not change a byte
	data, err := json.Marshal([]any{base, p.Key(), o})
	if err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
