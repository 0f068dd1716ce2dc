package engine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lint"
	"sconce.dev/sconce/internal/source"
)

// LintOptions say what files are judged by.
type LintOptions struct {
	lint.Options

	Remote bool // ask registries for the configuration of images that are not here
}

// Lint judges the files by which jobs run. open gives the session in which images are looked at; it is called when there is one to look
// at. An image that cannot be had is not judged, and is no error.
func Lint(ctx context.Context, paths []string, o LintOptions, open Opener) (result *lint.Result, err error) {
	var opened []io.Closer
	defer func() {
		for _, c := range opened {
			err = errors.Join(err, c.Close())
		}
	}()
	o.Image = func(ctx context.Context, name string) (*facts.Facts, string, error) {
		path, isPath := o.imagePath(name)
		switch from, coming := o.Coming[name]; {
		case coming && from == "":
			return nil, "it is not built yet", nil
		case coming:
			name, isPath = from, false
		case isPath:
			if _, err := os.Stat(path); err != nil {
				return nil, "the file is not here", nil //nolint:nilerr // the answer says so
			}
			name = path
		}
		s, err := open(ctx)
		if err != nil {
			return nil, "", err
		}
		subject, err := s.openEnrootName(name, isPath)
		if err != nil {
			return nil, err.Error(), ctx.Err()
		}
		opened = append(opened, subject)
		f, why, err := subject.sketch(ctx, o.Remote)
		if err != nil {
			return nil, err.Error(), ctx.Err()
		}
		if f != nil {
			opened = append([]io.Closer{f}, opened...)
		}
		return f, why, nil
	}
	return lint.Check(ctx, paths, o.Options)
}

// imagePath is the file that an environment or srun means, if it means one.
func (o LintOptions) imagePath(name string) (string, bool) {
	switch {
	case filepath.IsAbs(name):
		return name, true
	case strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../"):
		return filepath.Join(o.Dir, name), true
	}
	return "", false
}

// openEnrootName opens an image by a name as enroot takes it: [USER@][REGISTRY#]IMAGE[:TAG].
func (s *Session) openEnrootName(name string, isPath bool) (*Subject, error) {
	wanted := Wanted{OrOther: true}
	if !isPath && strings.Contains(name, "#") && !strings.Contains(name, "://") {
		name = "docker://" + name
	}
	return s.Open(name, wanted)
}

// sketch tells what takes no look into programs. Of an image in a registry that is its configuration, when that may be asked for; else
// it says why nothing is known.
func (s *Subject) sketch(ctx context.Context, remote bool) (f *facts.Facts, why string, err error) {
	if s.IsClusterFile() {
		c, err := s.ClusterFile()
		if err != nil {
			return nil, "", err
		}
		f, err := facts.Sketch(ctx, c, s.Name)
		return f, "", err
	}
	inRegistry := s.Ref.Transport == source.Docker
	if inRegistry && !remote {
		return nil, "it is in a registry; --remote asks for its configuration", nil
	}
	outline, err := s.Outline(ctx)
	switch {
	case err != nil:
		return nil, "", err
	case inRegistry:
		return facts.SketchConfig(outline, s.Name), "", nil
	}
	f, err = facts.SketchOutline(ctx, s.session.Store, outline, s.Name)
	return f, "", err
}
