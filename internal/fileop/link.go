package fileop

import (
	"context"
	"errors"
	"fmt"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Link is a symlink that is to be there, as `ln -sfn` makes it.
type Link struct {
	Target string // what it says, whether there is such a file or not
	Path   string // its name, absolute; followed inside the image but for the last part
	Owner  string // USER[:GROUP]; "" is root
}

// Layer makes the link in onto, and directories that are missing above it, as those of [Dir]. What had its name is gone, unless it is a
// directory: that is an error. There is no layer when the image has the link.
func (l Link) Layer(ctx context.Context, st *store.Store, onto *image.Tree, o layer.Options) (layer.Descriptor, error) {
	s := newStage(onto)
	if err := l.put(s, onto); err != nil {
		return layer.Descriptor{}, fmt.Errorf("make the link %s: %w", quote(l.Path), err)
	}
	return s.changes(ctx, st, o)
}

func (l Link) put(s *stage, onto *image.Tree) error {
	who, err := findOwner(l.Owner, onto)
	if err != nil {
		return err
	}
	mk := newMaker(who)
	dir, name, err := s.reach(l.Path, false, mk)
	if err != nil {
		return err
	}
	if dir == nil {
		return errors.New("it is the root of the image")
	}
	e := layer.Entry{Type: layer.Symlink, Mode: 0o777, UID: mk.uid, GID: mk.gid, Link: l.Target}
	switch old := s.below(dir, name); {
	case old == nil:
	case old.Type == layer.Dir:
		return fault.Hint(errors.New("the image has a directory there"), "remove it in a step before, or end the name with a slash to have the link inside")
	case old.Type == layer.Symlink && old.Link == e.Link && old.UID == e.UID && old.GID == e.GID:
		return nil
	}
	_, err = s.put(dir, name, e, nil, nil)
	return err
}
