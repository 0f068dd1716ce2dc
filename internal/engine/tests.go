package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// PlaceOf is where an image of the store is to be for the nodes of a cluster: in a directory that they see, under its digest, as a uenv if
// that is what mounts it there. [Session.Place] copies it there. With dir = "" it is to be nowhere.
func (s *Session) PlaceOf(ctx context.Context, name, dir string, uenv bool) (Placed, error) {
	found, err := s.Store.FindImage(name)
	if err != nil {
		return Placed{}, fault.Hint(fmt.Errorf("%s is not in the store", name), "a recipe is built there by `sconce build`, and an image brought by `sconce pull`")
	}
	subject, err := s.Open(string(source.Store)+":"+found.Name+":"+found.Tag, Wanted{})
	if err != nil {
		return Placed{}, err
	}
	defer subject.Close()
	p := Placed{Digest: string(found.Digest), uenv: uenv}
	if p.Image, err = subject.JobImage(ctx); err != nil {
		return p, err
	}
	p.Name = found.Name + ":" + found.Tag
	if dir == "" {
		return p, nil
	}
	p.File = filepath.Join(dir, sharedName(found.Digest, squashfs.DefaultOptions()))
	if uenv {
		p.File = strings.TrimSuffix(p.File, sharedExt) + uenvExt
	}
	return p, nil
}

// Place copies an image to where it is to be: once, however many ask for it at the same time, and whole or not at all.
func (s *Session) Place(ctx context.Context, p Placed) error {
	if p.File == "" {
		return nil
	}
	subject, err := s.Open(string(source.Store)+":"+p.Digest, Wanted{})
	if err != nil {
		return err
	}
	defer subject.Close()
	if p.uenv {
		return s.shareOnce(ctx, subject.Ref, subject.how, export.Uenv, p.File, s.writing(Writing{Uenv: Uenv{Name: p.Name}}))
	}
	_, err = s.Share(ctx, subject, filepath.Dir(p.File), Writing{Squashfs: squashfs.DefaultOptions()})
	return err
}
