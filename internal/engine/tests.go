package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
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
	return p, checkLiteral(p.File)
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
	kind, how := source.Squashfs, Writing{Squashfs: squashfs.DefaultOptions()}
	if p.uenv {
		kind, how = export.Uenv, Writing{Uenv: Uenv{Name: p.Name}}
	}
	file := sharedFile{there: used}
	if belowHere(p.File) {
		file = sharedFile{there: s.placedHere, note: s.notePlaced}
	}
	return s.shareOnce(ctx, subject.Ref, subject.how, kind, p.File, s.writing(how), file)
}

// belowHere reports whether a file is in this directory or below, where a repository could have brought it along.
func belowHere(file string) bool {
	dir, err := os.Getwd()
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(resolved(dir), filepath.Join(resolved(filepath.Dir(file)), filepath.Base(file)))
	return err == nil && filepath.IsLocal(rel)
}

// placedHere reports whether a file is the one that was copied there from this store: its name alone says nothing.
func (s *Session) placedHere(file string) bool {
	var known store.Stamp
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	found, err := s.Store.GetRecord(store.KindPlaced, placedKey(file), &known)
	return err == nil && found && known == store.StampOf(info)
}

func (s *Session) notePlaced(file string) error {
	info, err := os.Lstat(file)
	if err != nil || s.Store.ReadOnly() {
		return err
	}
	return s.Store.PutRecord(store.KindPlaced, placedKey(file), nil, store.StampOf(info))
}

func placedKey(file string) string { return store.DigestOf([]byte(file)).Hex() }
