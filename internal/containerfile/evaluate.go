package containerfile

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Options say what to build of a file.
type Options struct {
	BuildArgs     map[string]string // --build-arg
	Target        string            // name or number of a stage; "" is the last
	Platform      v1.Platform       // of the image
	BuildPlatform v1.Platform       // what $BUILDPLATFORM says; when empty, that of this machine
}

// ConfigFunc looks up the configuration of an image.
type ConfigFunc = func(ctx context.Context, reference string, platform v1.Platform) (*v1.ConfigFile, error)

// Evaluate says what the file means. config is asked for each base image of a stage that the target needs.
func (f *File) Evaluate(ctx context.Context, o Options, config ConfigFunc) (*Build, error) {
	return &Build{}, nil
}
