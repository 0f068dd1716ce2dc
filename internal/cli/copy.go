package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// copyOptions are the options of `sconce copy`.
type copyOptions struct {
	from, to string
	platform string
	force    bool
	json     bool
	squashfs squashfsOptions
	on       onOptions
}

func newCopyCmd(a *app) *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "copy IMAGE DESTINATION",
		Short: "Copy an image from any place to any other",
		Long: `Copy an image from any place to any other. Its layers pass through the store and stay there until they are pruned; the
store gives it no name (` + "`sconce pull`" + ` does).

DESTINATION is one of

  docker://HOST/NAME[:TAG]     a registry
  oci:DIR[:TAG]                a directory in the OCI image layout; other images in it stay
  oci-archive:FILE[:TAG]       the same as a tar
  docker-archive:FILE[:TAG]    what ` + "`docker load`" + ` reads
  tar:FILE                     the root file system as a tar
  dir:DIR                      the root file system as a directory
  sqsh:FILE                    the root file system as a squashfs, for enroot, pyxis and the Container Engine
  sif:FILE                     the same for Apptainer and Singularity
  plain:FILE                   a squashfs of the root file system and nothing else, to be mounted
  uenv:FILE                    the image's Python environment for uenv, see sconce export uenv

or a path: an OCI archive when it ends in .tar, a squashfs when it ends in .sqsh, a SIF when it ends in .sif, else an OCI
layout, which a word without a slash only is when it exists. What is written appears under its name when it is whole, in
place of an earlier export; anything else that is there is replaced only with --force, and so is a .sqsh or .sif of an image
of another name, which jobs may run from. The name is that in the store or the registry, without the tag; what comes from a
file has the name that this carries, or none.

--on copies on a node of a cluster, see sconce build.

A .sqsh or .sif runs under all of these: it carries what each runtime looks for. It is compressed straight from the layers;
what was compressed for an earlier image is copied. From .sqsh to .sif and back is a mere copy. plain:FILE has none of that:
it is for data, environments and whatever else is mounted as it is, and takes a tar or directory without any program too.

` + anyImage,
		Example: examples(
			"sconce copy docker://debian:bookworm-slim oci-archive:debian.tar",
			"sconce copy llm-train:25.11 docker-archive:llm-train.tar",
			"sconce copy docker://nvcr.io/nvidia/pytorch:25.11-py3 pytorch.sqsh",
			"sconce copy pytorch:25.11 pytorch.sqsh --start 'python warmup.py'",
			"sconce copy pytorch.sqsh pytorch.sif",
			"sconce copy pytorch:25.11 pytorch.sqsh --on clariden",
			"sconce copy dir:dataset plain:dataset.sqsh",
			"sconce copy docker-archive:saved.tar docker://registry.example.org/team/saved:1",
		),
		Args:              wants("IMAGE", "DESTINATION"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.from, o.to = args[0], args[1]
			o.squashfs.given = squashfsFlagsGiven(cmd)
			if o.on.given() {
				return a.copyOn(cmd, args, o)
			}
			return a.runCopy(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().BoolVar(&o.force, "force", false, "replace a destination that holds something else")
	cmd.Flags().BoolVar(&o.json, "json", false, "print what was written or pushed")
	addSquashfsFlags(cmd, &o.squashfs)
	addStartFlag(cmd, &o.squashfs)
	o.on.addFlags(cmd)
	return cmd
}

func (a *app) runCopy(ctx context.Context, o copyOptions) error {
	how, err := o.squashfs.writing(o.force)
	if err != nil {
		return err
	}
	s, image, err := a.openImage(ctx, o.from, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	pushed, err := s.Copy(ctx, image, o.to, how)
	if err != nil {
		return err
	}
	if pushed != "" {
		return a.tellSent(sent{Pushed: []string{pushed}}, o.json)
	}
	return a.tellSent(sent{Outputs: []string{o.to}}, o.json)
}
