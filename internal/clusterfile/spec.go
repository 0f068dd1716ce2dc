package clusterfile

import (
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/store"
)

// Spec returns what a SIF of an image says about it, beside the file system.
func Spec(c v1.ConfigFile, digest store.Digest) (sif.Spec, error) {
	metadata, err := runtimefiles.Metadata(runtimefiles.Image{Config: c, Digest: digest})
	if err != nil {
		return sif.Spec{}, err
	}
	config, err := json.Marshal(c.Config)
	if err != nil {
		return sif.Spec{}, fmt.Errorf("image config: %w", err)
	}
	return sif.Spec{
		Arch: c.Architecture, Deffile: []byte(runtimefiles.Deffile(runtimefiles.Image{Config: c, Digest: digest})),
		Metadata: metadata, Config: config,
	}, nil
}
