package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/quote"
)

// testOptions are the options of `sconce test`.
type testOptions struct {
	engine.TestOptions
	subject   string // a recipe or an image of the store
	wait      string
	json      bool
	canonical bool // of an image of a pipeline: what is under its canonical reference
}

func newTestCmd(a *app) *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test [RECIPE|IMAGE]",
		Short: "Test an image on a cluster, or here",
		Long: `Run the tests that RECIPE (a sconce.toml or its directory, by default the current one) names in
[[test]], in the image that was built of it. An IMAGE of the store has no tests of its own, and is
given those of the kit that --only names, else env and import.

Where there is Slurm, all tests are one job, on the cluster of the recipe or of --on. The job is
known by its name: whoever was interrupted says the same again, and collects what it did. In an
allocation the tests run there, by srun. --here runs them on this machine, each rank as a process.

A test that fails runs once more on other nodes. If it fails again, the image is at fault (FAILED);
if it passes, the nodes of the first run are named (WARNED). What did not run to its end, since the
job was cancelled, or a node failed, or the time of --wait was up, is NOT_JUDGED.

--record keeps what came of each test as evidence beside the image in a repository, for sconce promote:
signed with the private key of --sign. What was not judged, or left out, is no evidence.

With --canonical RECIPE is an image of a pipeline (see sconce pipeline): what is under its canonical
reference is tested, and evidence is kept there, signed with the pipeline's key. A test of which there is
good evidence, in the form that it has today, does not run again unless --only names it.

Exit codes: 0 all have passed, 3 one has failed, 4 one could not be judged, or none has run.`,
		Example: examples(
			"sconce test                                     all tests of ./sconce.toml, on its cluster",
			"sconce test llm --on clariden --only all-reduce  one test, on another cluster",
			"sconce test --here                              on this machine, without Slurm",
			"sconce test --detach; sconce test --wait 20m    submit; collect, or end with 4 if it waits still",
			"sconce test llm:25.11 --here --only import      a test of the kit, for an image",
			"sconce test --record registry.example.org/team/ci/llm --sign env:SCONCE_KEY",
			"sconce test apps/train:small --canonical --on clariden",
			"sconce test --json | jq '.[] | select(.verdict != \"PASSED\")'",
		),
		Args: wants("[RECIPE|IMAGE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.subject = recipeArgument(args)
			return a.runTest(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Only, "only", nil, "run this `TEST` alone (repeatable)")
	f.BoolVar(&o.Here, "here", false, "run the tests on this machine, without Slurm")
	f.StringVar(&o.Cluster, "on", "", "run them on this `CLUSTER` (a name, or a profile's file) instead of the recipe's")
	f.StringVar(&o.Runtime, "runtime", "", "start the image by this `RUNTIME`: "+strings.Join(cluster.Starters, ", "))
	f.BoolVar(&o.Detach, "detach", false, "submit the job, and let a later call collect what it does")
	f.StringVar(&o.wait, "wait", "", "wait at most this `TIME` for the job, such as 20m, and end with 4 then")
	f.StringVar(&o.Record, "record", "", "keep the results as evidence in this `REPOSITORY`, where the image is")
	f.StringVar(&o.Sign, "sign", "", "sign evidence with this private key: a `FILE` in PEM, or env:NAME")
	f.BoolVar(&o.canonical, "canonical", false, "test an image of a pipeline where it belongs, and keep evidence there")
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("canonical", "record")
	cmd.MarkFlagsMutuallyExclusive("here", "record")
	cmd.MarkFlagsMutuallyExclusive("here", "on")
	cmd.MarkFlagsMutuallyExclusive("here", "detach")
	cmd.MarkFlagsMutuallyExclusive("here", "runtime")
	cmd.MarkFlagsMutuallyExclusive("detach", "wait")
	complete(cmd, "runtime", cluster.Starters...)
	return cmd
}

func (a *app) runTest(ctx context.Context, o testOptions) error {
	var err error
	if o.Wait, err = job.ParseTime(o.wait); err != nil {
		return fault.Usage(fmt.Errorf("--wait: %w", err))
	}
	o.Say = a.say
	t, err := a.test(ctx, o)
	if err != nil || t == nil {
		return err
	}
	code, err := a.reportTests(ctx, t, o.json)
	if err == nil && code != 0 {
		err = exitStatus(code)
	}
	return err
}

// test finds out what is tested, and runs its tests. It returns nil when nobody waits for them.
func (a *app) test(ctx context.Context, o testOptions) (*engine.Tested, error) {
	s, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	how := o.TestOptions
	if how.After, err = engine.TrustedKeys(a.settings().Believed(nil)); err != nil {
		return nil, err
	}
	switch {
	case o.canonical:
		p, err := pipelineOf(o.subject)
		if err != nil {
			return nil, err
		}
		if how, err = p.ToTest(ctx, s, o.subject, how); err != nil {
			return nil, err
		}
	case engine.IsRecipe(o.subject):
		if how.Recipe, err = loadRecipe(o.subject, "", ""); err != nil {
			return nil, err
		}
		how.Image = how.Recipe.FullName()
	default:
		how.Image = o.subject
	}
	return s.Test(ctx, how)
}

// reportTests prints what came of tests, and keeps it. It returns the exit code of `sconce test`.
func (a *app) reportTests(ctx context.Context, t *engine.Tested, asJSON bool) (code int, err error) {
	if err := a.printResults(t.Results, asJSON); err != nil {
		return 0, err
	}
	err = t.Keep(ctx, func(test string) { a.say("%s is recorded in %s", test, t.Repository()) })
	return imagetest.Code(t.Results), err
}

func (a *app) printResults(results []imagetest.Result, asJSON bool) error {
	if asJSON {
		return a.printJSON(results)
	}
	rows := [][]string{{"TEST", "VERDICT", "MEASURED", "NODES"}}
	for _, r := range results {
		rows = append(rows, []string{r.Test, string(r.Verdict), measured(r), cmp.Or(strings.Join(r.Nodes, ","), "-")})
	}
	if err := printTable(a.out, rows); err != nil {
		return err
	}
	for _, r := range results {
		if r.Reason != "" {
			if _, err := fmt.Fprintln(a.out, quote.Sprintf("%s: %s", r.Test, r.Reason)); err != nil {
				return err
			}
		}
		if r.Verdict == imagetest.Failed && r.Log.File != "" {
			a.say("the log of %s is %s", r.Test, r.Log.File)
		}
	}
	return nil
}

// measured is what a result measured, in a line: what something was expected of goes before all else.
func measured(r imagetest.Result) string {
	var parts []string
	for _, expected := range []bool{true, false} {
		for _, m := range r.Measurements {
			if (m.Expected != "") == expected && len(parts) < 3 {
				parts = append(parts, m.Name+" "+m.Number.String())
			}
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
