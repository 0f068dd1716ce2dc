package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/units"
)

// pipelineGCOptions are the options of `sconce pipeline gc`.
type pipelineGCOptions struct {
	remove bool
	all    bool
	asJSON bool
	branch string
}

func newPipelineGCCmd(a *app) *cobra.Command {
	var o pipelineGCOptions
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Say which canonical images nobody needs, and delete them",
		Long: `Look through the staging repositories of the pipeline and print which images nobody needs any more, with
the verdicts, logs and documents beside them. Nothing is written without --delete.

Needed is what a recipe makes today, what any tag of the repositories for users leads to, what is being
promoted, what a tag leads to that sconce has not made, the newest images of each variant (keep.newest in
pipeline.toml), and what one of all these is based on. With --delete all others are marked, and those deleted
whose mark is as old as keep.canonical says. Without keep.canonical nothing is ever deleted.

Blobs go when the registry cleans up itself. Entries of build caches are left alone. From another branch
than the pipeline's, --delete is refused with exit code 3.`,
		Example: examples("sconce pipeline gc            what would be done", "sconce pipeline gc --delete   do it", "sconce pipeline gc --json | jq -r '.[] | select(.state == \"due\") | .repository'"),
		Args:    wants(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.cleanPipeline(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.remove, "delete", false, "mark what nobody needs, and delete what has been marked for long enough")
	f.BoolVar(&o.all, "all", false, "print also what stays")
	addBranchFlag(cmd, &o.branch)
	f.BoolVar(&o.asJSON, "json", false, "print all as JSON")
	return cmd
}

func (a *app) cleanPipeline(ctx context.Context, o pipelineGCOptions) error {
	s, p, images, err := a.pipelineImages(ctx, nil)
	if err != nil {
		return err
	}
	p.At = o.branch
	all, err := p.Clean(ctx, s, images, o.remove)
	if all == nil {
		return err
	}
	if o.asJSON {
		if printed := a.printJSON(all); err == nil {
			err = printed
		}
		return err
	}
	if printed := a.printCleaned(all, o.all); err == nil {
		err = printed
	}
	if err == nil && p.Keep.Canonical == "" {
		a.say(`nothing is ever deleted, as %s does not say how long images stay: keep.canonical = "30d"`, p.Path)
	}
	return err
}

func (a *app) printCleaned(all []promote.Cleaned, kept bool) error {
	counts := map[string]int{}
	rows := [][]string{{"IMAGE", "STATE", "BECAUSE"}}
	for _, c := range all {
		counts[c.State]++
		if c.State != promote.Kept || kept {
			rows = append(rows, []string{cleanedName(c), c.State, c.Because})
		}
	}
	if len(rows) > 1 {
		if err := printTable(a.stdout, rows); err != nil {
			return err
		}
	}
	var parts []string
	for _, state := range []string{promote.Kept, promote.Waiting, promote.Due, promote.Deleted} {
		if n := counts[state]; n > 0 || state == promote.Kept {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	a.say("%s: %s", units.Number(len(all), "image"), strings.Join(parts, ", "))
	return nil
}

func cleanedName(c promote.Cleaned) string {
	switch {
	case len(c.Tags) > 0:
		return c.Repository + ":" + c.Tags[0]
	case len(c.Images) > 0:
		return c.Repository + "@" + string(c.Images[0])
	}
	return c.Repository + ", what is left of one"
}
