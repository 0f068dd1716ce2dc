package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/units"
)

// pyxisOptions are the options of `sconce pyxis-importer`. Slurm starts the importer without arguments of the site's choice,
// so each has a variable too.
type pyxisOptions struct {
	dir      string
	keep     string
	squashfs squashfsOptions
}

// The variables that stand for the flags.
const (
	pyxisDirEnv  = "SCONCE_PYXIS_DIR"
	pyxisKeepEnv = "SCONCE_PYXIS_KEEP"
)

func newPyxisCmd(a *app) *cobra.Command {
	var o pyxisOptions
	cmd := &cobra.Command{
		Use:   "pyxis-importer get URI | pyxis-importer release",
		Short: "Import images for Slurm's pyxis plugin",
		Long: `Import images for pyxis, the Slurm plugin behind srun --container-image. In plugstack.conf:

  required /usr/lib64/slurm/spank_pyxis.so importer=/usr/local/bin/sconce-pyxis-importer

where that file is a script (pyxis adds "get URI" or "release" to the name it is given):

  #!/bin/sh
  SCONCE_PYXIS_DIR=/scratch/$SLURM_JOB_UID/sconce exec sconce pyxis-importer "$@"

get prints the path of a squashfs file of the image. The file is named after the digest of the image's manifest and made
once: all nodes that share the directory wait for the first of them, so a job of a thousand nodes converts an image once,
and the next job not at all. The directory is that of --dir, else $` + pyxisDirEnv + `, else $SCRATCH/.sconce-pyxis, else
one beside the store (--store, $SCONCE_STORE, store in config.toml). What the site's mirror has (images in
config.toml, see sconce mirror) is taken from there.

release is what pyxis calls when a job step ends, perhaps twice. It leaves the images for the next job, but for those that no
job has asked for in the time that --keep or $` + pyxisKeepEnv + ` gives.`,
		Example: examples(
			"sconce pyxis-importer get docker://nvcr.io#nvidia/pytorch:25.11-py3",
			"SCONCE_PYXIS_KEEP=30d sconce pyxis-importer release",
		),
		Args:      wants("get|release", "[URI]"),
		ValidArgs: []string{"get", "release"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case args[0] == "get" && len(args) == 2:
				return a.runPyxisGet(cmd.Context(), args[1], o)
			case args[0] == "release" && len(args) == 1:
				return a.runPyxisRelease(o)
			}
			return fault.Usage(fault.Hint(errors.New("pyxis calls this with \"get URI\" or \"release\""), "see `sconce pyxis-importer --help`"))
		},
	}
	cmd.Flags().StringVar(&o.dir, "dir", os.Getenv(pyxisDirEnv), "keep the images in this `DIR`, which all nodes share")
	cmd.Flags().StringVar(&o.keep, "keep", os.Getenv(pyxisKeepEnv), "on release remove images that were not used for this `TIME`: 12h, 30d, 2w (default: keep all)")
	addSquashfsFlags(cmd, &o.squashfs)
	return cmd
}

// imageDir returns the directory of the images. Without one of their own they lie beside the store, wherever the site or the user has it.
func (a *app) imageDir(o pyxisOptions) (string, error) {
	if o.dir != "" {
		return filepath.Abs(o.dir)
	}
	if scratch := os.Getenv("SCRATCH"); filepath.IsAbs(scratch) {
		return filepath.Join(scratch, ".sconce-pyxis"), nil
	}
	dir, err := a.settings().Dir()
	if err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Clean(dir) + "-pyxis")
}

func (a *app) runPyxisGet(ctx context.Context, uri string, o pyxisOptions) error {
	how, err := o.squashfs.writing(false)
	if err != nil {
		return err
	}
	dir, err := a.imageDir(o)
	if err != nil {
		return err
	}
	s, image, err := a.openImage(ctx, uri, "")
	if err != nil {
		return err
	}
	defer image.Close()
	var ready []string
	if a.config.Images != "" {
		ready = append(ready, a.config.Images)
	}
	path, err := s.Share(ctx, image, dir, how, ready...)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, path)
	return err
}

func (a *app) runPyxisRelease(o pyxisOptions) error {
	if o.keep == "" {
		return nil
	}
	age, err := units.ParseAge(o.keep)
	if err != nil {
		return fault.Usage(fmt.Errorf("--keep: %w", err))
	}
	dir, err := a.imageDir(o)
	if err != nil {
		return err
	}
	return engine.Unshare(dir, age)
}
