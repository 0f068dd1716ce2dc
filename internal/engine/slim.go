package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// SlimOptions say what an image loses, and where what is left of it goes.
type SlimOptions struct {
	slim.Options
	Output string // a destination; "" is none
	Name   string // NAME[:TAG] in the store; "" is made of the image's own unless there is an Output
	Write  Writing
}

// Slimmed is what slimming gives.
type Slimmed struct {
	*slim.Report
	Image  *image.Image
	Same   bool           // there was nothing to remove
	Named  store.ImageRef // zero: in the store it has no name
	Pushed string         // what it is called in a registry
	Output string         // the destination that was written; "": none was
	Left   bool           // nothing was written to the destination that was asked for, which would be a copy
}

// Slim makes an image without what the options say, and brings it where they say. What was made is returned beside an error about
// where it was to go.
func (s *Session) Slim(ctx context.Context, from *Subject, o SlimOptions) (*Slimmed, error) {
	name, tag, err := from.slimName(o)
	if err != nil {
		return nil, err
	}
	if o.Output != "" && !strings.HasPrefix(o.Output, dockerPrefix) {
		if err := CheckOutput(o.Output, o.Write.Force); err != nil {
			return nil, err
		}
	}
	im, err := from.Import(ctx)
	if err != nil {
		return nil, err
	}
	r := &Slimmed{}
	if r.Image, r.Report, err = slim.Image(ctx, s.Store, im, o.Options); err != nil {
		return nil, err
	}
	r.Same = r.Image == im
	switch {
	case o.Output == "":
	case r.Same && from.wouldCopy(o):
		r.Left = true
	case strings.HasPrefix(o.Output, dockerPrefix):
		r.Pushed, err = s.Push(ctx, r.Image, withTag(o.Output, tag))
	default:
		how := s.writing(o.Write)
		if known, _ := store.SplitImageName(cmp.Or(o.Name, from.knownName())); known != "" {
			how.Name = known + ":" + tag
		}
		if err = writeTo(ctx, r.Image, o.Output, how); err == nil {
			r.Output = o.Output
		}
	}
	if err != nil || name == "" {
		return r, err
	}
	named, err := s.Name(r.Image, name+":"+tag)
	if err == nil {
		r.Named = named
	}
	return r, err
}

// wouldCopy reports whether a destination would become one more of what the image is in already: a .sqsh beside a .sqsh. An image of the
// store or of a registry is in no such thing, so that whoever asks for one wants it, and so does who says how it is to be written. Where
// something is at the destination, leaving that would pass it off as what was asked for.
func (s *Subject) wouldCopy(o SlimOptions) bool {
	to, err := export.ParseTarget(o.Output)
	if err != nil || to.Transport != s.Ref.Transport || o.Write.Force || o.Write.Exactly {
		return false
	}
	_, err = os.Lstat(to.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// slimName is the name that the image gets in the store, if any, and the tag that it has elsewhere.
func (s *Subject) slimName(o SlimOptions) (name, tag string, err error) {
	if o.Name != "" {
		return store.ParseImageName(o.Name)
	}
	name, tag = s.ownName()
	tag += gpuSuffix(o.GPUs)
	switch {
	case o.Output != "":
		return "", tag, nil
	case s.Ref.Transport != source.Store:
		err := fmt.Errorf("%s is no image of the store, so the new image has no name", s.Name)
		return "", "", fault.Usage(fault.Hint(err, "`sconce images` lists those; or say where it goes: -o FILE.sqsh, or --name NAME:TAG for the store"))
	}
	return name, tag, nil
}

// gpuSuffix is what tells a slimmed image's tag from the original's: "-sm90", or "-slim" where no GPUs are named.
func gpuSuffix(gpus []int) string {
	if len(gpus) == 0 {
		return "-slim"
	}
	names := make([]string, 0, len(gpus))
	for _, sm := range gpus {
		names = append(names, strconv.Itoa(sm))
	}
	return "-sm" + strings.Join(names, "-")
}

// ExplainSlim tells what slimming would do, and writes nothing.
func (s *Session) ExplainSlim(ctx context.Context, from *Subject, o slim.Options) (*slim.Report, error) {
	r := &slim.Report{}
	if len(o.GPUs) > 0 {
		files, err := from.Files(ctx)
		if err != nil {
			return nil, err
		}
		if r, err = slim.Explain(ctx, files, o); err != nil {
			return nil, err
		}
	}
	if !o.Strip && !o.PackageCaches && len(o.Remove) == 0 {
		return r, nil
	}
	outline, err := from.Outline(ctx)
	if err != nil {
		return nil, err
	}
	trimmed, err := slim.ExplainTrim(ctx, s.Store, outline, o)
	if err != nil {
		return nil, err
	}
	r.Removed, r.Kept, r.Stripped, r.Unstripped = trimmed.Removed, trimmed.Kept, trimmed.Stripped, trimmed.Unstripped
	return r, nil
}
