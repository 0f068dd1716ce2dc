package cli

import (
	"context"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
)

// anyImage is what commands say about an IMAGE that they take.
const anyImage = `IMAGE is the name of an image in the store (see ` + "`sconce images`" + `), or comes from elsewhere:

  docker://HOST/NAME[:TAG]     a registry; so is a bare NAME that is not in the store, unless it is to run
  oci:DIR[:TAG]                a directory in the OCI image layout
  oci-archive:FILE[:TAG]       the same as a tar
  docker-archive:FILE[:TAG]    what ` + "`docker save`" + ` writes
  tar:FILE                     a root file system as a tar, compressed or not
  dir:DIR                      a root file system as a directory
  sqsh:FILE, sif:FILE          what enroot, pyxis and Apptainer run

A path without a prefix is recognised by its content.`

// openImage opens a session and finds in it what an IMAGE means. The caller closes the subject.
func (a *app) openImage(ctx context.Context, name, platform string) (*engine.Session, *engine.Subject, error) {
	var w engine.Wanted
	var err error
	if w.Platform, err = parsePlatform(platform); err != nil {
		return nil, nil, err
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	subject, err := s.Open(name, w)
	return s, subject, err
}

// parsePlatform reads --platform; "" is no choice.
func parsePlatform(text string) (v1.Platform, error) {
	if text == "" {
		return v1.Platform{}, nil
	}
	p, err := v1.ParsePlatform(text)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return v1.Platform{}, fault.Usage(fmt.Errorf("--platform %q is not of the form linux/arm64", text))
	}
	return *p, nil
}
