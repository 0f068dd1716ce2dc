package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/quote"
)

// withdrawOptions are the options of `sconce withdraw`.
type withdrawOptions struct {
	image string
	how   pipeline.Withdrawing
	json  bool
}

func newWithdrawCmd(a *app) *cobra.Command {
	var o withdrawOptions
	cmd := &cobra.Command{
		Use:   "withdraw IMAGE --because TEXT",
		Short: "Say that an image is bad, and take its tags from users",
		Long: `Say beside an image, in its registry, that it is withdrawn and why, and take away the tags by which users
pull it. From then on sconce promote refuses it, whoever runs it, and what is based on it as well; sconce
pipeline plan and table, verify, pull and check say why.

IMAGE is an image of the pipeline (see pipeline.toml), DIR[:VARIANT] or its name: the one that its stable
tags lead to, else the one that its recipe makes today. It is withdrawn in staging and in all repositories
for users. Or it is one in a registry, HOST/NAME:TAG or HOST/NAME@DIGEST: within a pipeline that has the
repository, likewise; elsewhere it is withdrawn there, and in the repositories that --in names.

The note is signed with the pipeline's key, or that of --sign. Tags are deleted one by one where the
registry deletes tags. docker-registry and some others delete whole images only: there the tags stay, so
that users who have named the image by its digest keep it; with --delete the image is deleted there, unless
an index lists it. Staging keeps the image in any case.

--undo says that it is withdrawn no longer; sconce promote gives it its tags again. A command that was
killed is run again, and does the rest.`,
		Example: examples(
			`sconce withdraw images/pytorch:26.02-py3 --because "NCCL hangs on 8 nodes"`,
			`sconce withdraw registry.example.org/team/train:25.11 --because CVE-2026-1234 --sign env:SCONCE_KEY --keep-tags`,
			`sconce withdraw registry.example.org/team/ci/train@sha256:4be2... --undo --because "it was the driver"`,
		),
		Args: wants("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			return a.runWithdraw(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.how.Because, "because", "", "the reason, as a `TEXT` of one line that all users are shown")
	f.BoolVar(&o.how.KeepTags, "keep-tags", false, "leave the tags by which users pull it")
	f.BoolVar(&o.how.Delete, "delete", false, "where a registry deletes no tags, delete the image itself")
	f.BoolVar(&o.how.Lift, "undo", false, "say that it is withdrawn no longer")
	f.StringArrayVar(&o.how.Users, "in", nil, "withdraw it from this `REPOSITORY` as well, HOST/NAME (repeatable)")
	f.StringVar(&o.how.Sign, "sign", "", "sign with this private key: a `FILE` in PEM, or env:NAME")
	f.BoolVar(&o.how.DryRun, "dry-run", false, "only tell what would be done")
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("undo", "delete")
	cmd.MarkFlagsMutuallyExclusive("keep-tags", "delete")
	return cmd
}

func (a *app) runWithdraw(ctx context.Context, o withdrawOptions) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	done, from, err := a.withdrawImage(ctx, s, o)
	if done == nil {
		return err
	}
	if o.json {
		if printed := a.printJSON(done); err == nil {
			err = printed
		}
		return err
	}
	if printed := a.printWithdrawn(done); err == nil {
		err = printed
	}
	if err != nil || done.DryRun {
		return err
	}
	if o.how.Lift {
		a.say("%s is withdrawn no longer; `sconce promote` gives it its tags again", done.Image.Short())
		return nil
	}
	a.say("withdrawn; `sconce withdraw %s@%s --undo --because TEXT` takes that back", quote.Word(from), done.Image)
	return nil
}

func (a *app) withdrawImage(ctx context.Context, s *engine.Session, o withdrawOptions) (done *promote.Withdrawn, from string, err error) {
	p, err := pipelineOf(o.image)
	if !engine.IsRemote(o.image) {
		if err != nil {
			return nil, "", fault.Hint(err, "an image in a registry is named HOST/NAME:TAG")
		}
		return p.Withdraw(ctx, s, o.image, o.how)
	}
	im, err := s.Find(ctx, o.image)
	if err != nil {
		return nil, "", err
	}
	if p != nil && p.Has(im.Repository) {
		done, err = p.WithdrawFrom(ctx, s, im, o.how)
		return done, im.Repository, err
	}
	if o.how.Sign == "" {
		return nil, "", fault.Usage(fault.Hint(fmt.Errorf("%s is in no repository of a pipeline: nothing says with which key the note is signed", im.Repository), "add --sign FILE or --sign env:NAME"))
	}
	key, err := a.settings().SigningKey(o.how.Sign)
	if err != nil {
		return nil, "", err
	}
	w := engine.Withdrawing{Withdrawing: o.how.Withdrawing, Key: key, DryRun: o.how.DryRun}
	w.From, w.Image, w.Users = im.Repository, im.Digest, append([]string{im.Repository}, w.Users...)
	done, err = s.Withdraw(ctx, w)
	return done, im.Repository, err
}

func (a *app) printWithdrawn(w *promote.Withdrawn) error {
	rows := [][]string{{"WHERE", "STATE"}}
	for _, n := range w.Notes {
		rows = append(rows, []string{n.Target, "note: " + n.State})
	}
	for _, t := range w.Tags {
		rows = append(rows, []string{t.Target, "tag: " + t.State})
	}
	return printTable(a.out, rows)
}
