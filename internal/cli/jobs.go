package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/slurm"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

func newJobsCmd(a *app) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List the jobs that were submitted from here",
		Long: `List the jobs that sconce submit has submitted for this user, the newest first, with what Slurm says of
each. The next jobs of a chain are submitted by the jobs themselves, and squeue lists them.`,
		Example: examples("sconce jobs", "sconce jobs --all --json | jq '.[].digest'"),
		Args:    wants(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runJobs(cmd.Context(), all, asJSON) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "list all, and not only the last 20")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// shownJobs is how many jobs are listed unless all are wanted: Slurm is asked for each.
const shownJobs = 20

// listedJob is what `sconce jobs --json` prints of each.
type listedJob struct {
	slurm.Record
	slurm.State
}

func (a *app) runJobs(ctx context.Context, all, asJSON bool) error {
	records, err := slurm.Records(ctx)
	if err != nil {
		return err
	}
	if !all {
		records = records[:min(len(records), shownJobs)]
	}
	list := make([]listedJob, 0, len(records))
	for _, r := range records {
		state, err := slurm.StateOf(ctx, r.ID)
		if err != nil {
			return err
		}
		list = append(list, listedJob{r, state})
	}
	if asJSON {
		return a.printJSON(list)
	}
	if len(list) == 0 {
		a.say("nothing was submitted from here")
		return nil
	}
	rows := [][]string{{"JOB", "NAME", "STATE", "CLUSTER", "IMAGE", "DIGEST", "SUBMITTED", "LOG"}}
	for _, j := range list {
		digest := "-" // of an image that somebody else has put where the nodes read it
		if j.Digest != "" {
			digest = store.Digest(j.Digest).Short()
		}
		rows = append(rows, []string{j.ID, ui.Clean(j.Record.Name), j.State.Name, ui.Clean(cmp.Or(j.Cluster, "-")), ui.Clean(j.Image), ui.Clean(digest), units.Ago(j.Submitted, time.Now()), ui.Clean(j.Log)})
	}
	return printTable(a.out, rows)
}

func newLogsCmd(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [JOB]",
		Short: "Print the log of a job that was submitted from here",
		Long: `Print the log of JOB: a job's number, or a name, of which the newest one counts; without it, the job that
was submitted last. If Slurm says that the job failed, what the log tells of the reason is said behind
it, as sconce explain does. A terminal gets the log without control characters, a pipe as it is.`,
		Example: examples("sconce logs", "sconce logs train --follow", "sconce logs 12345"),
		Args:    wants("[JOB]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := ""
			if len(args) > 0 {
				what = args[0]
			}
			r, err := slurm.Find(cmd.Context(), what)
			if err != nil {
				return err
			}
			if follow {
				return a.followJob(cmd.Context(), r, true)
			}
			out, end := a.foreign()
			if err := cmp.Or(engine.CopyLogs(out, r), end()); err != nil {
				return err
			}
			a.sayWhy(engine.ExplainFailed(cmd.Context(), r))
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as it grows, to the job's end")
	return cmd
}

// followJob tells what a job does until it has ended, and prints its log, if that is wanted.
func (a *app) followJob(ctx context.Context, r slurm.Record, log bool) error {
	out, end := a.foreign()
	if !log {
		out = nil
	}
	why, err := engine.FollowJob(ctx, r, out, a.say)
	err = cmp.Or(err, end())
	a.sayWhy(why)
	if err == nil {
		a.say("job %s (%s) has ended", r.ID, r.Name)
	}
	return err
}

func newCancelCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel JOB",
		Short:   "Cancel a job that was submitted from here",
		Long:    "Cancel JOB: a job's number, or a name, of which the newest one counts.",
		Example: examples("sconce cancel train", "sconce cancel 12345"),
		Args:    wants("JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := slurm.Find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := slurm.Cancel(cmd.Context(), r.ID); err != nil {
				return err
			}
			a.say("cancelled job %s (%s)", r.ID, r.Name)
			return nil
		},
	}
}
