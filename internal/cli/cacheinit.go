package cli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/ui"
)

func newCacheInitCmd(a *app) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a store that others read, or a group writes to",
		Long: `Make the store, for others to read, whatever the umask is and will be. Its one writer is you.

With --group all members of a group of users write to it, and you are its keeper. They share downloads and layers, each under
its hash. A member's images, records and unpacked trees are their own; yours are there for all. Such a store begins in an
empty directory; in one that is there, modes are set right again.`,
		Example: examples(
			"sconce --store /capstor/shared/sconce cache init",
			"sconce --store /capstor/proj/ml/sconce cache init --group ml",
		),
		Args: wants(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runCacheInit(cmd.Context(), group) },
	}
	cmd.Flags().StringVar(&group, "group", "", "have all members of this `GROUP`, a name or a number, write to it")
	return cmd
}

func (a *app) runCacheInit(ctx context.Context, group string) error {
	dir, err := a.settings().Dir()
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	s, err := engine.MakeStore(ctx, dir, group, a.open)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s is a store that all may read who may go there", dir)
	if s.Store.Group() {
		text = fmt.Sprintf("%s is a store of the group %s, kept by you", dir, group)
	}
	_, err = fmt.Fprintln(a.out, ui.Clean(text))
	return err
}
