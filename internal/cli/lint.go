package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lint"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// lintOptions are the options of `sconce lint`.
type lintOptions struct {
	files     []string
	cluster   string
	as        string
	dialect   string
	severity  string
	fix, diff bool
	remote    bool
	json      bool
	sarif     string // a file, or toStdout; "": none is written
	listRules bool
}

func newLintCmd(a *app) *cobra.Command {
	var o lintOptions
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find mistakes in job scripts and environment files",
		Long: `Look into the files by which jobs run, for what makes them fail or run badly on the cluster: environment definition files
(EDF, of the Container Engine and of the Sarus Suite), sbatch scripts, uenvs and their meta/env.json, and profiles of
clusters. What a file is, is told by its content.

A script is judged together with the EDF that it names, and that with its image when it is a file or in the store. Nothing
runs, and nothing is submitted. What is not known is not judged.

--fix mends what can only have been meant in one way, in the files that are named, and shows what it changed; comments
and layout stay. --diff shows it only.

A finding that can be lived with is allowed by a comment anywhere in the file:

  # sconce: allow RULE why it is no problem here

Exit code 3 means that an error was found that is not allowed.`,
		Example: examples(
			"sconce lint train.sbatch ~/.edf/train.toml",
			"sconce lint train.sbatch --cluster clariden",
			"sconce lint train.toml --diff                  what --fix would change",
			"sconce lint *.sbatch *.toml --fix",
			"sconce lint env.toml --dialect sarus           judge an EDF for srun --edf",
			"sconce lint jobs/*.sbatch --sarif=lint.sarif",
			"sconce lint --list-rules",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.listRules {
				return a.listLintRules(o.json)
			}
			o.files = args
			return a.runLint(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "judge for this cluster: a `NAME` that sconce clusters lists, or a profile's file")
	f.StringVar(&o.dialect, "dialect", "", "read EDFs in this `DIALECT` where no script tells: container-engine, sarus")
	f.StringVar(&o.as, "as", "", "take the files for this `KIND`, whatever their content: "+list(lint.Kinds))
	f.BoolVar(&o.fix, "fix", false, "mend what can only have been meant in one way, and show what was changed")
	f.BoolVar(&o.diff, "diff", false, "show what --fix would change, and change nothing")
	f.BoolVar(&o.remote, "remote", false, "ask registries for the configuration of images that are not here")
	f.StringVar(&o.severity, "severity", string(audit.Note), "show findings of at least this `LEVEL`: error, warning, note")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.sarif, "sarif", "", "print SARIF 2.1.0, or write it to `FILE` with --sarif=FILE")
	f.Lookup("sarif").NoOptDefVal = toStdout
	f.BoolVar(&o.listRules, "list-rules", false, "list the rules")
	cmd.MarkFlagsMutuallyExclusive("fix", "diff")
	complete(cmd, "severity", string(audit.Error), string(audit.Warning), string(audit.Note))
	complete(cmd, "dialect", string(edf.ContainerEngine), string(edf.Sarus))
	completeClusters(cmd)
	return cmd
}

// check says which options are of no use.
func (o *lintOptions) check() error {
	switch {
	case len(o.files) == 0:
		return fault.Usage(fault.Hint(fmt.Errorf("sconce lint: FILE is missing"), "name EDFs, job scripts, uenvs or profiles"))
	case !slices.Contains(audit.Severities, audit.Severity(o.severity)):
		return fault.Usage(fmt.Errorf("--severity %q: it is one of %s", o.severity, list(audit.Severities)))
	case o.as != "" && !slices.Contains(lint.Kinds, lint.Kind(o.as)):
		return fault.Usage(fmt.Errorf("--as %q: it is one of %s", o.as, list(lint.Kinds)))
	case o.dialect != "" && o.dialect != string(edf.ContainerEngine) && o.dialect != string(edf.Sarus):
		return fault.Usage(fmt.Errorf("--dialect %q: it is one of %s, %s", o.dialect, edf.ContainerEngine, edf.Sarus))
	case o.json && o.sarif == toStdout:
		return fault.Usage(fmt.Errorf("--json and --sarif cannot be used together; --sarif=FILE can"))
	}
	return nil
}

// linted is what `sconce lint --json` prints.
type linted struct {
	*lint.Result
	Target  cluster.Profile `json:"target"`
	Profile string          `json:"profile,omitempty"` // where the cluster's profile is from
	Fixed   []fixed         `json:"fixed,omitempty"`
	audit.Count
}

// fixed is a file that was mended, or would be.
type fixed struct {
	Path  string   `json:"path"`
	Rules []string `json:"rules"`
	Diff  string   `json:"diff"`
}

func (a *app) runLint(ctx context.Context, o lintOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	t, err := engine.FindTarget(o.cluster, "")
	if err != nil {
		return err
	}
	judge := func() (*lint.Result, error) { return a.judge(ctx, o, t.Profile) }
	result, err := judge()
	if err != nil {
		return err
	}
	out := &linted{Target: t.Profile, Profile: t.From}
	if o.fix || o.diff {
		if out.Fixed, err = mend(result.Fixes(), o.fix); err != nil {
			return err
		}
	}
	if o.fix && len(out.Fixed) > 0 { // what is left
		if result, err = judge(); err != nil {
			return err
		}
	}
	out.Result, out.Count = result, audit.CountOf(result.Audit())
	result.Only(audit.Severity(o.severity))
	if err := a.reportLint(o, out); err != nil {
		return err
	}
	return out.verdict(o)
}

func (a *app) judge(ctx context.Context, o lintOptions, t cluster.Profile) (*lint.Result, error) {
	options := lint.Options{Target: t, Dialect: edf.Dialect(o.dialect), Kind: lint.Kind(o.as), Lookup: os.LookupEnv}
	return engine.Lint(ctx, o.files, engine.LintOptions{Options: options, Remote: o.remote}, a.open)
}

// mend writes what was mended, if that is wanted.
func mend(fixes []lint.Fix, write bool) ([]fixed, error) {
	var all []fixed
	for _, f := range fixes {
		if write {
			if err := f.Write(); err != nil {
				return all, err
			}
		}
		all = append(all, fixed{f.Path, f.Rules, f.Diff()})
	}
	return all, nil
}

// reportLint prints what was found, in each form that was asked for.
func (a *app) reportLint(o lintOptions, c *linted) error {
	if o.sarif != "" {
		log := audit.Log{
			Rules: lint.AuditRules(), Subject: "lint", Version: currentVersion().Version,
			Properties: map[string]any{"files": c.Files, "target": c.Target},
		}
		data, err := log.SARIF(c.Audit())
		if err != nil {
			return err
		}
		if done, err := a.writeSARIF(o.sarif, data); done {
			return err
		}
	}
	if o.json {
		return a.printJSON(c)
	}
	return a.printLint(o, c)
}

// printLint prints findings for a person, each with its line.
func (a *app) printLint(o lintOptions, c *linted) error {
	p := &findingsText{width: columns(a.stdout), paint: painter(a.colorOnStdout()), all: a.flags.verbose}
	for _, f := range c.Fixed {
		p.WriteString(ui.CleanLines(f.Diff) + "\n")
	}
	findings := c.Audit()
	for i := range findings {
		findings[i].Message = findings[i].Placed()
	}
	counted, allowed := split(findings)
	for _, group := range groups(counted) {
		p.group(group)
	}
	for _, group := range groups(allowed) {
		p.allowed(group)
	}
	p.lintSummary(o, c)
	_, err := a.out.Write([]byte(p.String()))
	return err
}

func (p *findingsText) lintSummary(o lintOptions, c *linted) {
	text := countWords(c.Count) + ": " + units.Number(len(c.Files), "file")
	if words := c.Target.Words(); words != "" {
		text += ", for " + ui.Clean(words)
	}
	fixable := 0
	for _, f := range c.Findings {
		if f.Fixable && f.Allowed == "" {
			fixable++
		}
	}
	switch {
	case o.fix && len(c.Fixed) > 0:
		text += "; mended " + units.Number(len(c.Fixed), "file")
	case fixable > 0 && !o.diff:
		text += fmt.Sprintf("; --fix mends %d of them", fixable)
	}
	p.WriteString(wrap(text, p.width, "  ", 0) + "\n")
	for _, why := range c.NotJudged {
		p.WriteString(p.paint(dim, wrap("not judged: "+ui.Clean(why), p.width, "  ", 0)) + "\n")
	}
}

// verdict is nil when no error was found that is not allowed.
func (c *linted) verdict(o lintOptions) error {
	if c.Errors == 0 {
		return nil
	}
	return fault.Problem(fault.Hint(fmt.Errorf("%s: %s found", strings.Join(o.files, ", "), units.Number(c.Errors, "error")),
		"an error that can be lived with is allowed by a comment in the file: # sconce: allow RULE REASON"))
}

func (a *app) listLintRules(asJSON bool) error { return a.printRules(lint.AuditRules(), asJSON) }
