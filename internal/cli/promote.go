package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/promote"
)

// promoteOptions are the options of `sconce promote`.
type promoteOptions struct {
	image string
	how   engine.Promoting
	keys  []string
	json  bool

	branch string
}

func newPromoteCmd(a *app) *cobra.Command {
	var o promoteOptions
	cmd := &cobra.Command{
		Use:   "promote IMAGE [--to REFERENCE...]",
		Short: "Give a tested image the tags that users pull",
		Long: `Give an image in a registry further tags, in the same registry and in others, when signed evidence lies beside it that it
works. The image stays the same, byte for byte; a registry gets only the layers that it lacks, and takes them from its other
repository where it can.

IMAGE is an image of the pipeline (see pipeline.toml), DIR[:VARIANT] or its name, or one in a registry, HOST/NAME:TAG or
HOST/NAME@DIGEST.

Of an image of the pipeline, every test of its recipe must have passed in the form that it has today, with this very image,
on every cluster that it is for; and so must those of the images of the pipeline that it is based on. It gets the pipeline's
stable tags, from the pipeline's branch alone: elsewhere it is refused, exit code 3, unless --dry-run. The pipeline's own
key is believed, and only an image that it has signed is promoted. One without tests, or with one that is skipped, is
promoted only where untested = "allow" in pipeline.toml or the recipe says so.

The same rules apply to an image that is named HOST/NAME when it lies in a repository of the pipeline, or
is promoted to one. For any other image, one of the keys must have signed all evidence beside it, there
must be some, and the newest verdict of no test may be a failure, as sconce verify judges it. A REFERENCE
without a tag uses the image's tag.

A tag is written once: one that leads to another image is refused, exit code 3, unless --mutable says that it may be moved.
Layers go to all registries first and tags come last. What was killed on the way is run again, and does the rest. Of several
who promote different images to a tag at the same time one wins, and the others are told; for that all of them promote from
the same repository.`,
		Example: examples(
			"sconce promote images/pytorch:26.02-py3",
			"sconce promote registry.example.org/team/ci/train:25.11-4be2 --to registry.example.org/team/train:25.11 --key team.pub",
			"sconce promote registry.example.org/team/ci/train:25.11 --to mirror.example.org/train --key team.pub --dry-run",
			"sconce promote registry.example.org/team/ci/train:nightly --to registry.example.org/team/train:dev --mutable --key team.pub",
		),
		Args: wants("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			return a.runPromote(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.how.To, "to", nil, "the `REFERENCE` that users pull, HOST/NAME[:TAG] (repeatable)")
	addKeyFlag(cmd, &o.keys)
	f.BoolVar(&o.how.Mutable, "mutable", false, "move tags that lead to another image")
	f.BoolVar(&o.how.Untested, "untested", false, "of an image of no pipeline: promote it without any evidence; what there is must be good all the same")
	f.BoolVar(&o.how.DryRun, "dry-run", false, "only tell what would be done")
	addBranchFlag(cmd, &o.branch)
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// addBranchFlag adds the option by which a person says what no CI system and no repository does.
func addBranchFlag(cmd *cobra.Command, branch *string) {
	cmd.Flags().StringVar(branch, "branch", "", "say that the sources are those of `BRANCH`, instead of finding it out")
}

func addKeyFlag(cmd *cobra.Command, keys *[]string) {
	cmd.Flags().StringArrayVar(keys, "key", nil, "believe what this public key has signed: a `FILE` in PEM, or env:NAME (repeatable)")
}

func (a *app) runPromote(ctx context.Context, o promoteOptions) error {
	var err error
	if o.how.Trust, err = engine.TrustedKeys(a.settings().Believed(o.keys)); err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	report, err := promoteImage(ctx, s, o)
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(report)
	}
	return a.printPromotion(report)
}

func promoteImage(ctx context.Context, s *engine.Session, o promoteOptions) (*promote.Report, error) {
	p, err := pipelineOf(o.image)
	if p != nil {
		p.At = o.branch
	}
	if engine.IsRemote(o.image) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // whose rules may hold
			return nil, err
		}
		if len(o.how.To) == 0 {
			return nil, fault.Hint(fault.Usage(fmt.Errorf("nothing says where %s is to be promoted to", o.image)), "add --to HOST/NAME:TAG")
		}
		im, err := s.Find(ctx, o.image)
		if err != nil {
			return nil, err
		}
		if p == nil {
			return s.Promote(ctx, im, o.how)
		}
		return p.PromoteFrom(ctx, s, im, o.how)
	}
	if err != nil {
		return nil, fault.Hint(err, "an image in a registry is named HOST/NAME:TAG")
	}
	im, err := p.Image(ctx, s, o.image)
	if err != nil {
		return nil, err
	}
	return p.Promote(ctx, s, im, o.how)
}

func (a *app) printPromotion(r *promote.Report) error {
	for _, v := range r.Evidence {
		a.say("%s on %s: %s", v.Test, v.Cluster, v.Result)
	}
	rows := [][]string{{"REFERENCE", "STATE", "WAS"}}
	for _, t := range r.Targets {
		rows = append(rows, []string{t.Target, t.State, t.Was.Short()})
	}
	return printTable(a.out, rows)
}
