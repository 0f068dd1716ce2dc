package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// submitOptions are the options of `sconce submit`.
type submitOptions struct {
	engine.SubmitOptions
	wait   bool
	follow bool
}

func newSubmitCmd(a *app) *cobra.Command {
	var o submitOptions
	cmd := &cobra.Command{
		Use:   "submit [RECIPE] [JOB] [-- ARGUMENTS...]",
		Short: "Submit a job of a recipe to Slurm",
		Long: `Submit JOB of RECIPE (a sconce.toml or its directory, by default the current one) to Slurm, from the
current directory, which the job runs in. ARGUMENTS go to the job's command.

The built image is copied to the profile's paths.images under its digest, unless it is there: one copy
for all jobs, also when several people submit at once. One that was built before recipe or lock changed is
refused, unless --any-image is given. The script and the environment definition file,
as sconce export writes them, go to .sconce in the current directory, under the hash of what they say,
so that a job that waits keeps its own. Before all that they are judged as by sconce lint, together with the
image: what cannot work is not submitted (exit code 3), unless --no-lint is given. Then sbatch is called, and
the job's number and log are told.

--wait and --follow wait for the job's end, and tell its state until then. Of one that failed they say why,
if its log tells, as sconce explain does.

--dry-run judges and prints the files, and does nothing. --test-only asks Slurm whether it would take the job.`,
		Example: examples(
			"sconce submit                                the one job of ./sconce.toml",
			"sconce submit train -- --epochs 3            job train, with arguments for its command",
			"sconce submit llm train --nodes 4 --follow   another recipe's, on 4 nodes; show the log as it grows",
			"sconce submit train --test-only",
		),
		Args: submitArguments(&o),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runSubmit(cmd.Context(), o) },
	}
	addJobFlags(cmd, &o.JobOptions)
	f := cmd.Flags()
	f.BoolVar(&o.DryRun, "dry-run", false, "print what would be submitted, and do nothing")
	f.BoolVar(&o.TestOnly, "test-only", false, "ask Slurm whether it would take the job, and when it would start")
	f.BoolVar(&o.AnyImage, "any-image", false, "submit the image in the store although recipe or lock have changed since it was built")
	f.BoolVar(&o.NoLint, "no-lint", false, "do not judge the job before it is submitted, as sconce lint does")
	f.BoolVar(&o.wait, "wait", false, "wait for the job's end, and fail when it does")
	f.BoolVar(&o.follow, "follow", false, "show the log as it grows, to the job's end")
	return cmd
}

// submitArguments takes a recipe and a job, either of which may be left out, and behind -- arguments for the command.
func submitArguments(o *submitOptions) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, o.Args = args[:at], args[at:]
		}
		o.Subject = "."
		if len(args) > 0 && engine.IsRecipe(args[0]) {
			o.Subject, args = args[0], args[1:]
		}
		if len(args) > 0 && o.Job == "" {
			o.Job, args = args[0], args[1:]
		}
		if len(args) > 0 {
			return fault.Usage(fault.Hint(fmt.Errorf("%s: one argument too many: %q", cmd.CommandPath(), args[0]), "usage: "+cmd.UseLine()))
		}
		return nil
	}
}

func (a *app) runSubmit(ctx context.Context, o submitOptions) error {
	open := a.open
	if o.DryRun {
		open = a.openThere // it makes no store
	}
	done, err := engine.Submit(ctx, o.SubmitOptions, open)
	switch {
	case o.DryRun:
		return cmp.Or(a.printJobFiles(done.Files), err)
	case err != nil:
		return err
	case o.TestOnly:
		_, err = fmt.Fprintln(a.out, quote.CleanLines(done.Said))
		return err
	}
	if _, err := fmt.Fprintln(a.out, done.ID); err != nil {
		return err
	}
	a.say("submitted job %s (%s); its log is %s", done.ID, done.Name, done.Log)
	switch {
	case o.follow:
		return a.followJob(ctx, done.Record, true)
	case o.wait:
		return a.followJob(ctx, done.Record, false)
	}
	return nil
}

// printJobFiles prints them as they would be written.
func (a *app) printJobFiles(files []engine.JobFile) error {
	for i, f := range files {
		if i > 0 {
			f.Text = "\n" + f.Text
		}
		if _, err := io.WriteString(a.out, f.Text); err != nil {
			return err
		}
	}
	return nil
}
