package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
)

// uenvOptions are the options of `sconce export uenv`.
type uenvOptions struct {
	image    string
	platform string
	output   string
	force    bool
	uenv     engine.Uenv
	squashfs squashfsOptions
}

func newExportUenvCmd(a *app) *cobra.Command {
	var o uenvOptions
	cmd := &cobra.Command{
		Use:   "uenv IMAGE -o FILE",
		Short: "Write an environment of an image as a uenv",
		Long: `Write a directory of an image, by default its Python environment, as a squashfs that uenv mounts. Its
description, meta/env.json, has one view: it puts the programs first in PATH, unsets PYTHONPATH and shuts
packages in the home directory out.

Nothing else of the image is there: what runs in a uenv has the nodes' libraries. A conda environment
brings its own Python; make it where it is mounted, with prefix = "/user-environment" under [conda].

` + "`sconce build -o uenv:FILE`" + ` and ` + "`sconce copy IMAGE uenv:FILE`" + ` write the same without the options.`,
		Example: examples(
			"sconce export uenv llm-train -o llm-train.squashfs",
			"sconce export uenv tools.sqsh --root /opt/tools --mount /user-tools -o tools.squashfs",
		),
		Args:              wants("IMAGE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			o.squashfs.given = squashfsFlagsGiven(cmd)
			return a.runExportUenv(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "write to `FILE`")
	f.StringVar(&o.uenv.Root, "root", "", "the `DIR` of the image (default: its VIRTUAL_ENV or CONDA_PREFIX)")
	f.StringVar(&o.uenv.Mount, "mount", "", "the `DIR` of the nodes where it is mounted (default: as in the image)")
	f.StringVar(&o.uenv.Name, "name", "", "the uenv's `NAME` (default: the image's)")
	f.StringVar(&o.uenv.Description, "description", "", "a `TEXT` for people")
	f.StringVar(&o.uenv.View, "view", "default", "the `NAME` of its view")
	f.BoolVar(&o.force, "force", false, "replace a file that holds something else")
	addPlatformFlag(cmd, &o.platform)
	addSquashfsFlags(cmd, &o.squashfs)
	return cmd
}

func (a *app) runExportUenv(ctx context.Context, o uenvOptions) error {
	if o.output == "" {
		return fault.Usage(fault.Hint(errors.New("there is no file to write"), "name it with -o FILE"))
	}
	how, err := o.squashfs.writing(o.force)
	if err != nil {
		return err
	}
	how.Uenv = o.uenv
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	if _, err := s.Copy(ctx, image, "uenv:"+o.output, how); err != nil {
		return err
	}
	a.say("wrote %s", o.output)
	return nil
}
