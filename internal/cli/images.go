package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// imagesOptions are the options of `sconce images`.
type imagesOptions struct {
	json  bool
	names bool
}

func newImagesCmd(a *app) *cobra.Command {
	var o imagesOptions
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images in the store, or remove their names",
		Long: `List the images in the store: what was built (under the recipe's name and version) and what was pulled. Names that
shared stores give are listed too.`,
		Example: examples(
			"sconce images",
			"sconce images --json | jq -r '.[].digest'",
			"sconce images --names | xargs -n 1 sconce inspect",
			"sconce images rm llm-train:25.11",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] != "ls" && args[0] != "list" {
				return helpOrUnknown(cmd, args)
			}
			return a.runImages(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.names, "names", false, "print names only")
	cmd.MarkFlagsMutuallyExclusive("json", "names")
	cmd.AddCommand(newImagesRmCmd(a))
	return cmd
}

func (a *app) runImages(ctx context.Context, o imagesOptions) error {
	s, err := a.openThere(ctx)
	if err != nil {
		return err
	}
	images, err := s.Store.Images()
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(append([]store.ImageRef{}, images...)) // [] rather than null
	}
	if o.names {
		for _, im := range images {
			if _, err := fmt.Fprintln(a.out, im.FullName()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(images) == 0 {
		a.say("no images yet; `sconce build` and `sconce pull` make some")
		return nil
	}
	rows := [][]string{{"NAME", "TAG", "DIGEST", "PLATFORM", "CREATED", "SIZE"}}
	for _, im := range images {
		rows = append(rows, []string{im.Name, im.Tag, im.Digest.Short(), im.Platform, units.Ago(im.Created, time.Now()), units.Size(im.Size)})
	}
	return printTable(a.out, rows)
}

func newImagesRmCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rm NAME[:TAG]...",
		Short: "Remove images' names from the store",
		Long: `Remove the names of images. What only they stood on stays in the store, so that it can be used again, until
` + "`sconce cache prune`" + ` removes it: at once with --all, else when it has not been used for a while.`,
		Example: examples("sconce images rm llm-train:25.11", "sconce images rm old:1 old:2 && sconce cache prune --all"),
		Args: func(cmd *cobra.Command, args []string) error {
			return wants("NAME")(cmd, args[:min(1, len(args))])
		},
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runImagesRm(cmd.Context(), args, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was removed as sconce images --json does")
	return cmd
}

func (a *app) runImagesRm(ctx context.Context, names []string, asJSON bool) error {
	s, err := a.openThere(ctx)
	if err != nil {
		return err
	}
	var found []store.ImageRef
	for _, name := range names { // all or none
		im, err := s.Store.FindImage(name)
		if err != nil {
			return err
		}
		found = append(found, im)
	}
	for _, im := range found {
		if err := s.Store.DeleteImage(im); err != nil {
			return fmt.Errorf("remove image %s: %w", im.FullName(), err)
		}
		if !asJSON {
			a.say("removed %s", im.FullName())
		}
	}
	if asJSON {
		return a.printJSON(found)
	}
	return nil
}
