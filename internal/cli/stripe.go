package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// stripeOptions are the options of `sconce stripe`.
type stripeOptions struct {
	cluster string
	dirs    []string
	apply   bool
}

func newStripeCmd(a *app) *cobra.Command {
	var o stripeOptions
	cmd := &cobra.Command{
		Use:   "stripe [DIR...]",
		Short: "Spread new files of a directory over Lustre's servers",
		Long: `Print the commands by which new files in DIRs are spread over the servers of a Lustre file system, so that all nodes
of a job can read a large one at once: images, packed environments, data. The layout is paths.stripe of the profile
of --cluster, and without DIR the directory is its paths.images. --apply runs them.

Files that are there already stay as they are; lfs migrate with the same options moves them. sconce submit does this
for a directory of images that it makes.`,
		Example: examples(
			"sconce stripe --cluster clariden",
			"sconce stripe --cluster clariden --apply",
			"sconce stripe --cluster clariden $SCRATCH/datasets --apply",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dirs = args
			return a.runStripe(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "the `CLUSTER` whose profile has the layout (see sconce clusters)")
	cmd.Flags().BoolVar(&o.apply, "apply", false, "run the commands")
	return cmd
}

func (a *app) runStripe(ctx context.Context, o stripeOptions) error {
	if o.cluster == "" {
		return fault.Usage(fault.Hint(errors.New("sconce stripe: no cluster is named"), "name it with --cluster; `sconce clusters` lists them"))
	}
	t, err := engine.FindOwnTarget(o.cluster)
	if err != nil {
		return err
	}
	if t.Paths.Stripe == "" {
		return fault.Usage(fault.Hint(fmt.Errorf("the profile of %s says no layout", t.Name), "write stripe = \"-c -1 -S 4M\" or another one under [paths], as options of lfs setstripe"))
	}
	if len(o.dirs) == 0 {
		if t.Paths.Images == "" {
			return fault.Usage(fault.Hint(fmt.Errorf("the profile of %s names no directory of images", t.Name), "name a DIR"))
		}
		dir, err := engine.ExpandHere(t.Paths.Images)
		if err != nil {
			return fmt.Errorf("paths.images of %s: %w", t.Name, err)
		}
		o.dirs = []string{dir}
	}
	for _, dir := range o.dirs {
		dir = quote.Operand(dir)
		if !o.apply {
			line := engine.StripeCommand(t.Paths.Stripe, quote.Word(dir))
			if _, err := fmt.Fprintf(a.out, "mkdir -p %s && %s\n", quote.Word(dir), strings.Join(line, " ")); err != nil {
				return err
			}
			continue
		}
		if err := engine.Stripe(ctx, t.Paths.Stripe, dir); err != nil {
			return err
		}
		a.say("new files in %s are spread by %s", dir, t.Paths.Stripe)
	}
	return nil
}
