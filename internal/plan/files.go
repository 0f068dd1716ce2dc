package plan

import (
	"context"
	"path"
	"strings"

	"sconce.dev/sconce/internal/fileop"
)

// opener opens a directory of this machine by the name that a [Source] has for it.
type opener = func(dir string) (*fileop.Context, error)

// maxListed is how many files of a directory are remembered by name, to say later which of them has changed.
const maxListed = 5000

// hash takes the digest of what is copied from this machine. Files of a stage are known by the stage's key.
func (c *Copy) hash(ctx context.Context, open opener) error {
	if c.From.Stage != nil {
		return nil
	}
	var files fileop.Files // nil for what comes from nowhere: heredocs and addresses
	if c.From.Dir != "" {
		from, err := open(c.From.Dir)
		if err != nil {
			return err
		}
		files = from
	}
	var err error
	if c.Digest, err = c.Copy.Digest(ctx, files); err != nil || files == nil {
		return err
	}
	c.Listed, err = c.Copy.List(ctx, files, maxListed)
	return err
}

// hash says of each mount what it shows.
func (x *Exec) hash(ctx context.Context, open opener) error {
	for i := range x.Mounts {
		if err := x.Mounts[i].hash(ctx, open); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mount) hash(ctx context.Context, open opener) error {
	switch {
	case m.Files.Stage != nil:
		m.From = sourceKey(m.Files, "")
	case m.Files.Dir != "":
		from, err := open(m.Files.Dir)
		if err != nil {
			return err
		}
		digest, err := m.Part().Digest(ctx, from)
		if err != nil {
			return err
		}
		m.From = string(digest)
		m.Listed, err = m.Part().List(ctx, from, maxListed)
		return err
	}
	return nil
}

// Part is what a mount shows of a build context: all of it, or one file or directory in its place.
func (m *Mount) Part() fileop.Copy {
	source := strings.Trim(path.Clean("/"+m.Source), "/")
	if source == "" {
		return fileop.Copy{Sources: []string{"."}, Dest: "/"}
	}
	return fileop.Copy{Sources: []string{escapeGlob(source)}, Dest: "/", Parents: true}
}

// escapeGlob returns the pattern that matches p alone.
func escapeGlob(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}
