package engine

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// PlaceNamed copies an image of the store to a directory that the nodes of a cluster see, as [Session.PlaceImage] does. With dir = ""
// nothing is copied.
func (s *Session) PlaceNamed(ctx context.Context, name, dir string) (Placed, error) {
	found, err := s.Store.FindImage(name)
	if err != nil {
		return Placed{}, fault.Hint(fmt.Errorf("%s is not in the store", name), "a recipe is built there by `sconce build`, and an image brought by `sconce pull`")
	}
	subject, err := s.Open(string(source.Store)+":"+found.Name+":"+found.Tag, Wanted{})
	if err != nil {
		return Placed{}, err
	}
	defer subject.Close()
	p := Placed{Digest: string(found.Digest)}
	if p.Image, err = subject.JobImage(ctx); err != nil {
		return p, err
	}
	p.Name = found.Name + ":" + found.Tag
	if dir != "" {
		p.File, err = s.Share(ctx, subject, dir, Writing{Squashfs: squashfs.DefaultOptions()})
	}
	return p, err
}
