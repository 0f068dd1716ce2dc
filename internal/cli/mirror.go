package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// mirrorOptions are the options of `sconce mirror`.
type mirrorOptions struct {
	list     string
	dir      string
	platform string
	keep     string
	json     bool
	squashfs squashfsOptions
}

func newMirrorCmd(a *app) *cobra.Command {
	var o mirrorOptions
	cmd := &cobra.Command{
		Use:   "mirror LIST DIR",
		Short: "Keep squashfs files of chosen images up to date",
		Long: `Keep squashfs files of the images that LIST names in DIR, for all users of a machine. Each image is a file named after the
digest of its manifest, made once, and NAME.sqsh is a link to the file of the image as it is now. A registry is asked for
the digest; an image that has not moved costs no more than that.

LIST has an image on each line, with a name behind it if it is to have another one; "#" begins a comment; "-" reads it
from stdin:

  docker://nvcr.io/nvidia/pytorch:25.11-py3                 # nvidia+pytorch+25.11-py3.sqsh, as enroot import names it
  docker://registry.example.org/team/llm:stable   llm       # llm.sqsh

An image that cannot be had keeps the file that it has; the others are brought up to date, and the exit code is 1. With
--keep, files of older images go once they have been nobody's for that time, and so do links of images that LIST no
longer names. What jobs run from is not taken away from them. It may be called by a timer, killed at any time, and called
from several machines at once: they take turns.`,
		Example: examples(
			"sconce mirror /etc/sconce/mirror.list /capstor/images --keep 30d",
			"echo docker://debian:bookworm-slim debian | sconce mirror - images",
			"srun --container-image=/capstor/images/llm.sqsh python train.py",
		),
		Args: wants("LIST", "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.list, o.dir = args[0], args[1]
			return a.runMirror(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().StringVar(&o.keep, "keep", "", "remove files and links that belong to no image of the list since this `TIME`: 12h, 30d, 2w (default: keep all)")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	addSquashfsFlags(cmd, &o.squashfs)
	return cmd
}

func (a *app) runMirror(ctx context.Context, o mirrorOptions) error {
	m, err := o.mirror(a.stdin)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	done, err := s.Mirror(ctx, m)
	if done == nil {
		return err
	}
	var printed error
	if o.json {
		printed = a.printJSON(done)
	} else {
		printed = a.printMirror(done)
	}
	return errors.Join(err, printed)
}

// mirror reads the list and the flags.
func (o mirrorOptions) mirror(stdin io.Reader) (engine.Mirror, error) {
	var m engine.Mirror
	var err error
	if m.Dir, err = filepath.Abs(o.dir); err != nil {
		return m, err
	}
	if m.Wanted.Platform, err = parsePlatform(o.platform); err != nil {
		return m, err
	}
	if m.Writing, err = o.squashfs.writing(false); err != nil {
		return m, err
	}
	if o.keep != "" {
		keep, err := units.ParseAge(o.keep)
		if err != nil {
			return m, fault.Usage(fmt.Errorf("--keep: %w", err))
		}
		m.Keep = &keep
	}
	if o.list != "-" {
		f, err := os.Open(o.list)
		if err != nil {
			return m, fault.Usage(err)
		}
		defer f.Close()
		stdin = f
	}
	m.Images, err = engine.ParseMirrorList(o.list, stdin)
	return m, fault.Usage(err)
}

func (a *app) printMirror(images []engine.Mirrored) error {
	rows := [][]string{{"NAME", "STATE", "FILE"}}
	for _, im := range images {
		rows = append(rows, []string{im.Name, string(im.State), ui.Clean(im.File)})
	}
	return printTable(a.out, rows)
}
