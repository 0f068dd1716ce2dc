package engine

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Layer says of a layer what the manifest and the configuration of its image do.
type Layer struct {
	Digest    string `json:"digest"`
	DiffID    string `json:"diffID"`
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"` // as it is stored, in bytes
	CreatedBy string `json:"createdBy"`
	Comment   string `json:"comment,omitempty"`
}

// LayersOf puts each layer, the lowest first, together with the step of the history that made it: the history's steps that are
// not empty are the layers, in order (OCI image-spec, config.md).
func LayersOf(m *v1.Manifest, c *v1.ConfigFile) []Layer {
	var made []v1.History
	for _, h := range c.History {
		if !h.EmptyLayer {
			made = append(made, h)
		}
	}
	layers := make([]Layer, len(m.Layers))
	for i, d := range m.Layers {
		layers[i] = Layer{Digest: d.Digest.String(), MediaType: string(d.MediaType), Size: d.Size}
		if i < len(c.RootFS.DiffIDs) {
			layers[i].DiffID = c.RootFS.DiffIDs[i].String()
		}
		if i < len(made) {
			layers[i].CreatedBy, layers[i].Comment = made[i].CreatedBy, made[i].Comment
		}
	}
	return layers
}
