package engine

import (
	"context"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sbom"
)

// SBOM lists what is installed in an image, as a document of a format. What could not be read is warned of, and the document says that
// it is incomplete.
func (s *Session) SBOM(ctx context.Context, from *Subject, format sbom.Format) ([]byte, error) {
	all, err := s.sboms(ctx, from, format)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// sboms reads an image once and writes the list in each format.
func (s *Session) sboms(ctx context.Context, from *Subject, formats ...sbom.Format) ([][]byte, error) {
	f, err := from.listed(ctx)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := sbom.Of(ctx, f)
	if err == nil {
		err = f.Missing()
	}
	if err != nil {
		return nil, fmt.Errorf("list what is in %s: %w", from.Name, err)
	}
	if len(l.Unread) > 0 {
		progress.Warn(ctx, "the list is incomplete: it lacks\n  "+strings.Join(l.Unread, "\n  "), "")
	}
	var all [][]byte
	for _, format := range formats {
		text, err := l.Write(format, s.Version)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

// listed tells of the image what takes no look into its programs, wherever it is. The caller closes it before the subject.
func (s *Subject) listed(ctx context.Context) (*facts.Facts, error) {
	if s.IsClusterFile() {
		c, err := s.ClusterFile()
		if err != nil {
			return nil, err
		}
		return facts.Sketch(ctx, c, s.Name)
	}
	o, err := s.Outline(ctx)
	if err != nil {
		return nil, err
	}
	return facts.SketchOutline(ctx, s.session.Store, o, s.Name)
}
