package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/joblog"
	"sconce.dev/sconce/internal/slurm"
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

// explained is what `sconce explain --json` prints of each log.
type explained struct {
	Log      string           `json:"log"`
	Findings []joblog.Finding `json:"findings"`
}

func (a *app) runExplain(ctx context.Context, args []string, asJSON bool) error {
	if len(args) == 0 {
		args = []string{""}
	}
	all := []explained{}
	for _, arg := range args {
		logs, err := a.explainNamed(ctx, arg)
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

// explainNamed looks into a file, stdin, or the logs of a job.
func (a *app) explainNamed(ctx context.Context, arg string) ([]explained, error) {
	if arg == "-" {
		found, err := joblog.Explain(a.stdin)
		if err != nil {
			return nil, fmt.Errorf("stdin: %w", err)
		}
		return []explained{{"stdin", found}}, nil
	}
	if _, err := os.Stat(arg); err == nil {
		return explainFiles(arg)
	} else if strings.ContainsRune(arg, '/') || !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Usage(err)
	}
	r, err := slurm.Find(ctx, arg)
	if err != nil {
		if arg != "" {
			err = fault.Usage(fault.Hint(fmt.Errorf("%s: there is no such file, and no such job was submitted from here", arg), "name a log, or a job that `sconce jobs` lists"))
		}
		return nil, err
	}
	state := askState(ctx, r.ID)
	files, err := logsOf(r)
	if _, known := joblog.OfState(state.Name); err != nil && !known {
		return nil, err
	}
	logs, err := explainFiles(files...)
	return withState(logs, r, state), err
}

func explainFiles(files ...string) ([]explained, error) {
	var all []explained
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		found, err := joblog.Explain(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		all = append(all, explained{file, found})
	}
	return all, nil
}

// logsOf returns the log of a job, or the logs of an array.
func logsOf(r slurm.Record) ([]string, error) {
	files, err := filepath.Glob(r.Log)
	if err == nil && len(files) == 0 {
		err = fault.Hint(fmt.Errorf("job %s has no log yet: %s", r.ID, r.Log), "`sconce jobs` shows whether it has begun")
	}
	return files, err
}

// The first word of a finding of each role, and its colour.
var (
	roleWords  = map[joblog.Role]string{joblog.Failure: "cause", joblog.Consequence: "follows", joblog.Slowness: "slow"}
	roleColors = map[joblog.Role]string{joblog.Failure: severityColors[audit.Error], joblog.Consequence: severityColors[audit.Note], joblog.Slowness: severityColors[audit.Warning]}
)

// explanation is what is known of a log, for a person.
func explanation(e explained, width int, paint func(code, text string) string) string {
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

// explainEnd says of a job that has ended why it failed, or what made it slow, as its log and Slurm tell. It does not matter when the log
// cannot be read.
func (a *app) explainEnd(r slurm.Record, state slurm.State) {
	files, err := filepath.Glob(r.Log)
	if err != nil {
		return
	}
	all, _ := explainFiles(files...)
	for _, e := range withState(all, r, state) {
		if !state.Failed() {
			e.Findings = slices.DeleteFunc(e.Findings, func(f joblog.Finding) bool { return f.Role != joblog.Slowness })
		}
		if text := explanation(e, columns(a.stderr), painter(false)); text != "" {
			a.say("%s", strings.TrimSuffix(text, "\n"))
		}
	}
}

// withState puts what Slurm's state of a job says before what its logs do, unless they say it too.
func withState(logs []explained, r slurm.Record, state slurm.State) []explained {
	f, ok := joblog.OfState(state.Name)
	if !ok {
		return logs
	}
	for _, e := range logs {
		if slices.ContainsFunc(e.Findings, func(x joblog.Finding) bool { return x.ID == f.ID }) {
			return logs
		}
	}
	return append([]explained{{"job " + r.ID, []joblog.Finding{f}}}, logs...)
}

// askTime bounds how long Slurm is asked about a job whose log is there already.
const askTime = 5 * time.Second

// askState asks Slurm for a job, if Slurm is here.
func askState(ctx context.Context, id string) slurm.State {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	state, err := slurm.StateOf(ctx, id)
	if err != nil {
		return slurm.State{Name: slurm.Gone}
	}
	return state
}

// explainFailed says why a job failed, if Slurm is here and says that it did.
func (a *app) explainFailed(ctx context.Context, r slurm.Record) {
	if state := askState(ctx, r.ID); state.Failed() {
		a.explainEnd(r, state)
	}
}
