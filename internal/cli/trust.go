package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/units"
)

func newTrustCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "List the keys whose signatures count, and who says so",
		Long: `List the keys whose signatures count here: those of the configuration (keys in config.toml), which sconce verify and
promote believe without --key, and, within a pipeline, the one that it signs with and those under [[trust]] in
pipeline.toml. The fingerprint is the SHA-256 of the public key; of a file,
openssl pkey -pubin -in team.pub -outform DER | openssl dgst -sha256 -binary | base64 prints the same.

Exit code 2 means that a key cannot be read.`,
		Example: examples(
			"sconce trust                                        which keys count, and until when",
			"sconce trust --json | jq -r '.[] | select(.signs) | .fingerprint'",
		),
		Args: wants(),
		RunE: func(*cobra.Command, []string) error { return a.listTrust(asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) listTrust(asJSON bool) error {
	all := a.settings().KnownKeys()
	p, err := pipeline.Open(".")
	switch {
	case err == nil:
		all = append(p.Keys(), all...)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if asJSON {
		if err := a.printJSON(all); err != nil {
			return err
		}
	} else if err := a.printTrust(all); err != nil {
		return err
	}
	for _, k := range all {
		if k.Err != nil {
			return fmt.Errorf("%s: %w", k.From, k.Err)
		}
	}
	return nil
}

func (a *app) printTrust(all []engine.KnownKey) error {
	if len(all) == 0 {
		a.say("no keys are listed: add keys = [\"/path/to/team.pub\"] to config.toml, or sign to a pipeline.toml")
		return nil
	}
	rows := [][]string{{"FINGERPRINT", "COUNTS", "KEY", "FROM", "COMMENT"}}
	for _, k := range all {
		rows = append(rows, []string{cmp.Or(k.Fingerprint, "-"), counts(k), k.Key, k.From, cmp.Or(k.Comment, "-")})
	}
	return printTable(a.out, rows)
}

// counts is in words when what a key signs counts.
func counts(k engine.KnownKey) string {
	switch {
	case k.Problem != "":
		return "it cannot be read"
	case k.Revoked:
		return "never: revoked"
	case k.Signs:
		return "always, and signs"
	}
	var parts []string
	if k.Since != "" {
		parts = append(parts, "since "+k.Since)
	}
	if k.Until != "" {
		parts = append(parts, "until "+k.Until)
	}
	return cmp.Or(strings.Join(parts, " "), "always")
}

func newPipelineResignCmd(a *app) *cobra.Command {
	var dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "resign",
		Short: "Sign again, with the present key, what earlier keys have signed",
		Long: `Sign with the key that sign names in pipeline.toml what the keys under [[trust]] have signed: verdicts of tests,
provenance, lists of packages, facts and withdrawals, in all staging repositories of the pipeline, whatever image
they are about, and in the repositories for users where registries list what is about an image. What they say stays
the same, so that no test runs again. Afterwards the old key need not be trusted any more, and cosign believes with
the new one.

What a key has signed that is revoked, not trusted, or did not count at the time stays as it is, and is listed. What was
killed on the way is run again, and does the rest. From another branch than the pipeline's nothing is written.`,
		Example: examples(
			"sconce pipeline resign --dry-run     what would be signed again, and which key has signed it",
			"sconce pipeline resign",
		),
		Args: wants(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.resign(cmd.Context(), dryRun, asJSON) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be done")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) resign(ctx context.Context, dryRun, asJSON bool) error {
	s, p, images, err := a.pipelineImages(ctx, nil)
	if err != nil {
		return err
	}
	done, err := p.Resign(ctx, s, images, dryRun)
	if asJSON {
		return errors.Join(a.printJSON(done), err)
	}
	rows := [][]string{{"DOCUMENT", "SIGNED WITH", "STATE"}}
	again := 0
	for _, d := range done.Documents {
		state := "signed again"
		switch {
		case d.Left != "":
			state = "left: " + d.Left
		case done.DryRun:
			state = "would be signed again"
		}
		if d.Left == "" {
			again++
		}
		rows = append(rows, []string{d.Document, d.Key, state})
	}
	if len(rows) > 1 {
		if printed := printTable(a.stdout, rows); err == nil {
			err = printed
		}
	}
	verb := "signed again"
	if done.DryRun {
		verb = "to be signed again"
	}
	a.say("%s %s, %d left as they are", units.Number(again, "document"), verb, len(done.Documents)-again)
	return err
}
