package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/joblog"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

func newExplainCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain [LOG | JOB]...",
		Short: "Say why a job failed, from its log",
		Long: `Look into the logs of jobs for what is known to make jobs fail, and say what it means and what to do: a
GPU that the image has no code for, a driver that is too old, too little memory, a library that is
missing, the end of the job's time, a node that failed, and more. Each finding has the line that shows
it, and the rule of sconce check or sconce lint that finds the same before a job runs.

LOG is a file, or - for stdin: any job's, whoever submitted it. Otherwise it is a JOB that was submitted
from here, by number or name, of which Slurm's state counts too: the end of its time, a node that
failed, preemption. Without arguments it is the job that was submitted last.

The exit code is 0 also when nothing is found.`,
		Example: examples(
			"sconce explain slurm-12345.out",
			"sconce explain logs/*.log --json | jq '.[].findings[].id'",
			"sconce explain train                 the newest job of that name",
			"ssh cluster cat run/slurm-12345.out | sconce explain -",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runExplain(cmd.Context(), args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) runExplain(ctx context.Context, args []string, asJSON bool) error {
	if len(args) == 0 {
		args = []string{""}
	}
	all := []engine.LogFindings{}
	for _, arg := range args {
		logs, err := engine.ExplainLog(ctx, arg, a.stdin)
		if err != nil {
			return err
		}
		all = append(all, logs...)
	}
	if asJSON {
		return a.printJSON(all)
	}
	for _, e := range all {
		text := explanation(e, columns(a.stdout), painter(a.colorOnStdout()))
		if text == "" {
			text = ui.Clean(e.Log) + ": nothing that is known\n"
		}
		if _, err := fmt.Fprint(a.out, text); err != nil {
			return err
		}
	}
	return nil
}

// The first word of a finding of each role, and its colour.
var (
	roleWords  = map[joblog.Role]string{joblog.Failure: "cause", joblog.Consequence: "follows", joblog.Slowness: "slow"}
	roleColors = map[joblog.Role]string{joblog.Failure: severityColors[audit.Error], joblog.Consequence: severityColors[audit.Note], joblog.Slowness: severityColors[audit.Warning]}
)

// explanation is what is known of a log, for a person.
func explanation(e engine.LogFindings, width int, paint func(code, text string) string) string {
	var b strings.Builder
	for _, f := range e.Findings {
		where := ui.Clean(e.Log)
		if f.Line > 0 {
			where += fmt.Sprintf(":%d", f.Line)
		}
		head := fmt.Sprintf("%s: %s: %s", roleWords[f.Role], where, ui.Clean(f.Title))
		b.WriteString(paint(roleColors[f.Role], wrap(head, width, "  ", 0)) + "\n")
		shown := ui.Clean(f.Text)
		if f.Lines > 1 {
			shown += fmt.Sprintf(" (and %s like it)", units.Number(f.Lines-1, "line"))
		}
		from := "log"
		if f.Line == 0 {
			from = "job"
		}
		parts := [][2]string{{from, shown}, {"fix", ui.Clean(f.Remedy)}}
		if f.Rule != "" {
			parts = append(parts, [2]string{"rule", fmt.Sprintf("`sconce %s` finds this before a job runs, as %s", f.Tool, f.Rule)})
		}
		for _, part := range parts {
			fmt.Fprintf(&b, "  %-5s%s\n", part[0], wrap(part[1], width, "       ", 7))
		}
	}
	return b.String()
}

// sayWhy tells what is known of a job that has ended.
func (a *app) sayWhy(all []engine.LogFindings) {
	for _, e := range all {
		if text := explanation(e, columns(a.stderr), painter(false)); text != "" {
			a.tell(strings.TrimSuffix(text, "\n"))
		}
	}
}
