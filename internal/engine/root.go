package engine

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/sandbox"
)

// Root is the root file system of an image, as a sandbox takes it, and how the image is configured.
type Root struct {
	Config *v1.ConfigFile
	sandbox.Options
}

// Root makes the files of the image ready for running a command: those of its layers, unpacked. The options lack what to run. An
// error of accept, which is asked when no more than the configuration is there, ends it.
func (s *Subject) Root(ctx context.Context, accept func(v1.Platform) error) (*Root, error) {
	wanted := *s
	wanted.how.Accept = accept
	im, err := wanted.Import(ctx)
	if err != nil {
		return nil, err
	}
	layers, err := sandbox.Layers(ctx, s.session.Store, im.Layers)
	if err != nil {
		return nil, err
	}
	return &Root{Config: &im.Config, Options: sandbox.Options{Layers: layers}}, nil
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
