package engine

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/imagefs"
	"sconce.dev/sconce/internal/sandbox"
)

// Root is the root file system of an image, as a sandbox takes it, and how the image is configured.
type Root struct {
	Config *v1.ConfigFile
	sandbox.Options

	packed *image.Image // whose layers it is read from; nil: there is nothing to unpack
}

// ImportToRun brings the image into the store for running commands in it. An error of accept, which is asked when no more than the
// configuration is there, ends it.
func (s *Subject) ImportToRun(ctx context.Context, accept func(v1.Platform) error) (*image.Image, error) {
	wanted := *s
	wanted.how.Accept = accept
	return wanted.Import(ctx)
}

// Root makes the files of an image of the store ready for running a command: those of its layers, unpacked. The options lack what to
// run.
func (s *Session) Root(ctx context.Context, im *image.Image) (*Root, error) {
	s.unpackElsewhere(ctx)
	layers, err := sandbox.Layers(ctx, s.Store, im.Layers)
	if err != nil {
		return nil, err
	}
	return &Root{Config: &im.Config, Options: sandbox.Options{Layers: layers}}, nil
}

// RootFromLayers is Root for an image with layers that are not unpacked yet: their files are read from them, but for the layers that
// cannot be read so, which are unpacked. It is nil when that leaves none: then Root is how to do it.
func (s *Session) RootFromLayers(ctx context.Context, im *image.Image) (*Root, error) {
	s.unpackElsewhere(ctx)
	layers, served, err := imagefs.Stack(ctx, s.Store, im.Layers)
	if err != nil || len(served) == 0 {
		return nil, err
	}
	return &Root{Config: &im.Config, Options: sandbox.Options{Layers: layers, Served: served}, packed: im}, nil
}

// unpackElsewhere has what a store that can only be read lacks unpacked on this machine, for the time of this process. A build has no use for
// that: its layers could not be kept.
func (s *Session) unpackElsewhere(ctx context.Context) {
	s.unpacking.Do(func() {
		if s.Store.ReadOnly() && !s.scratch {
			s.Store.ChooseScratch(func(tmp string) (string, func(), error) { return chooseScratch(ctx, tmp) })
		}
	})
}

// RootInPlace is Root for a squashfs or SIF file, which is not unpacked: its files are read from where they are, until Close.
func (s *Subject) RootInPlace() (*Root, error) {
	c, err := s.ClusterFile()
	if err != nil {
		return nil, err
	}
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	tree, err := sandbox.Squashfs(c.FS)
	if err != nil {
		return nil, err
	}
	return &Root{Config: &config, Options: sandbox.Options{Tree: tree}}, nil
}
