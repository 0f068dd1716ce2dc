package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// newUnpackCmd is what sconce run starts.
func newUnpackCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "unpack DIGEST",
		Hidden: true,
		Short:  "Unpack the layers of an image of the store",
		Args:   wants("DIGEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runUnpack(cmd.Context(), args[0])
		},
	}
}

// runUnpack unpacks until standard input ends.
func (a *app) runUnpack(ctx context.Context, digest string) error {
	d, err := store.ParseDigest(digest)
	if err != nil {
		return fault.Usage(err)
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	return s.UnpackUntil(ctx, d, os.Stdin)
}
