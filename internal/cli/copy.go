package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/export"
)

// copyOptions are the options of `sconce copy`.
type copyOptions struct {
	from, to string
	platform string
	force    bool
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

or a path: an OCI archive when it ends in .tar, else an OCI layout. What is written appears
under its name when it is whole, in place of an earlier export; anything else that is there is replaced only with --force.

` + anyImage,
		Example: examples(
			"sconce copy docker://debian:bookworm-slim oci-archive:debian.tar",
			"sconce copy llm-train:25.11 docker-archive:llm-train.tar",
			"sconce copy docker-archive:saved.tar docker://registry.example.org/team/saved:1",
		),
		Args:              wants("IMAGE", "DESTINATION"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.from, o.to = args[0], args[1]
			return a.runCopy(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().BoolVar(&o.force, "force", false, "replace a destination that holds something else")
	return cmd
}

func (a *app) runCopy(ctx context.Context, o copyOptions) error {
	im, ref, err := a.importImage(ctx, o.from, o.platform)
	if err != nil {
		return err
	}
	if strings.HasPrefix(o.to, dockerPrefix) {
		_, tag := nameFor(a.opened, o.from, ref)
		return a.push(ctx, im, withTag(o.to, tag))
	}
	return export.Write(ctx, im, o.to, export.Options{Store: a.opened, Force: o.force})
}
