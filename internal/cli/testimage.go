package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// testOptions are the options of `sconce test`.
type testOptions struct {
	subject string // a recipe or an image of the store
	only    []string
	here    bool
	cluster string
	runtime string
	detach  bool
	wait    string
	json    bool
	record  string // a repository
	sign    string // a private key

	canonical bool // of an image of a pipeline: what is under its canonical reference

	say func(format string, args ...any) // while tests run; nil: [app.say]
}

// tested is an image that is tested, and the recipe that names its tests; nil for an image without one.
type tested struct {
	recipe *engine.Recipe
	name   string // in the store
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
	f.StringArrayVar(&o.only, "only", nil, "run this `TEST` alone (repeatable)")
	f.BoolVar(&o.here, "here", false, "run the tests on this machine, without Slurm")
	f.StringVar(&o.cluster, "on", "", "run them on this `CLUSTER` (a name, or a profile's file) instead of the recipe's")
	f.StringVar(&o.runtime, "runtime", "", "what starts the image: "+strings.Join(cluster.Starters, ", "))
	f.BoolVar(&o.detach, "detach", false, "submit the job, and let a later call collect what it does")
	f.StringVar(&o.wait, "wait", "", "wait at most this `TIME` for the job, such as 20m, and end with 4 then")
	f.StringVar(&o.record, "record", "", "keep the results as evidence in this `REPOSITORY`, where the image is")
	f.StringVar(&o.sign, "sign", "", "sign evidence with this private key: a `FILE` in PEM, or env:NAME")
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

// testRun is what came of the tests of an image.
type testRun struct {
	opts    testOptions // with what the image's pipeline says
	key     *attest.PrivateKey
	results []imagetest.Result
	fresh   []imagetest.Result // those of them that nobody has recorded yet
	kept    func() error       // notes that they are where they belong; nil: there are none
}

func (a *app) runTest(ctx context.Context, o testOptions) error {
	r, err := a.runTests(ctx, o)
	if err != nil || r == nil {
		return err
	}
	return a.reportTests(ctx, r)
}

// runTests runs tests. It returns nil when nobody waits for them.
func (a *app) runTests(ctx context.Context, o testOptions) (*testRun, error) {
	if o.say == nil {
		o.say = a.say
	}
	wait, err := job.ParseTime(o.wait)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("--wait: %w", err))
	}
	what, err := a.testedImage(ctx, &o)
	if err != nil {
		return nil, err
	}
	if (o.record == "") != (o.sign == "") {
		return nil, fault.Usage(errors.New("--record REPOSITORY and --sign KEY go together"))
	}
	r := &testRun{opts: o}
	if r.key, err = engine.SigningKey(o.sign); err != nil { // before anything runs
		return nil, err
	}
	p, skipped, err := a.testPlan(ctx, o, what)
	if err != nil {
		return nil, err
	}
	if o.record != "" && p.Cluster.Name == "" {
		return nil, fault.Usage(fault.Hint(errors.New("evidence names the cluster, and none is named"), "--on CLUSTER, or cluster under [target] of the recipe"))
	}
	for _, t := range skipped {
		left, err := p.Left(t)
		if err != nil {
			return nil, err
		}
		r.results = append(r.results, left)
	}
	if o.canonical && o.record != "" && len(o.only) == 0 {
		known, err := a.knownResults(ctx, &p, r)
		if err != nil {
			return nil, err
		}
		r.results = append(r.results, known...)
	}
	if len(p.Tests) == 0 {
		return r, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	collected, err := p.Run(ctx, imagetest.Options{Root: filepath.Join(dir, ".sconce", "tests"), Detach: o.detach, Wait: wait, Say: o.say})
	if err != nil || o.detach {
		return nil, err
	}
	r.fresh, r.kept = collected.Results, collected.Kept
	r.results = append(slices.Clone(r.fresh), r.results...)
	return r, nil
}

// reportTests prints what came of tests, and keeps it as evidence. The error is the exit code.
func (a *app) reportTests(ctx context.Context, r *testRun) error {
	if err := a.printResults(r.opts, r.results); err != nil {
		return err
	}
	for _, one := range r.fresh {
		if _, noEvidence := one.Predicate(); r.opts.record == "" || noEvidence != nil {
			continue
		}
		if err := a.session.RecordTest(ctx, r.opts.record, one, r.key); err != nil {
			return fmt.Errorf("record test %s: %w", one.Test, err)
		}
		a.say("%s is recorded in %s", one.Test, r.opts.record)
	}
	if r.kept != nil {
		if err := r.kept(); err != nil {
			return err
		}
	}
	if code := imagetest.Code(r.results); code != 0 {
		return exitStatus(code)
	}
	return nil
}

// testedImage finds what is tested. What stands under a canonical reference is brought into the store, and --record and --sign become
// what the pipeline says.
func (a *app) testedImage(ctx context.Context, o *testOptions) (tested, error) {
	switch {
	case o.canonical:
		return a.canonicalImage(ctx, o)
	case !engine.IsRecipe(o.subject):
		return tested{name: o.subject}, nil
	}
	from, err := loadRecipe(o.subject, "", "")
	if err != nil {
		return tested{}, err
	}
	return tested{recipe: from, name: from.FullName()}, nil
}

func (a *app) canonicalImage(ctx context.Context, o *testOptions) (tested, error) {
	p, err := pipelineOf(o.subject)
	if err != nil {
		return tested{}, err
	}
	s, err := a.open(ctx)
	if err != nil {
		return tested{}, err
	}
	i, err := p.Image(ctx, s, o.subject)
	if err != nil {
		return tested{}, err
	}
	if i.Problem != nil {
		return tested{}, i.Problem
	}
	if len(i.Parts) > 0 {
		return tested{}, fault.Usage(fault.Hint(fmt.Errorf("%s is an index: each of its images has tests of its own", i.Ref), "name one, such as "+i.Parts[0].Ref))
	}
	found, err := s.Find(ctx, i.Canonical)
	if err != nil {
		return tested{}, fault.Hint(fmt.Errorf("%s is not built as it is today: %w", i.Ref, err), "run `sconce build "+i.Ref+" --canonical` first")
	}
	subject, err := s.Open("docker://"+found.Repository+"@"+string(found.Digest), engine.Wanted{})
	if err != nil {
		return tested{}, err
	}
	defer subject.Close()
	named, err := s.Pull(ctx, subject, found.Repository+":"+found.Tag)
	if err != nil {
		return tested{}, err
	}
	if o.sign = cmp.Or(o.sign, p.Sign); !o.here && o.sign != "" {
		o.record = found.Repository
	} else if !o.here {
		progress.Warn(ctx, "no evidence is kept: the pipeline names no key to sign it", `add sign = "env:NAME" or a file to `+p.Path+", or give --sign")
	}
	if o.here {
		o.sign = ""
	}
	return tested{recipe: i.Recipe, name: named.FullName()}, nil
}

// testPlan puts together what is tested, where, and by which tests; skipped are those that the recipe leaves out.
func (a *app) testPlan(ctx context.Context, o testOptions, what tested) (p imagetest.Plan, skipped []imagetest.Test, err error) {
	if p.Place, err = testPlace(o); err != nil {
		return p, nil, err
	}
	p.Runtime = o.runtime
	tests, reference := []imagetest.Test(nil), ""
	if from := what.recipe; from != nil {
		if o.cluster != "" {
			if from.Target, err = engine.TargetOf(from.Recipe, o.cluster); err != nil {
				return p, nil, err
			}
		}
		tests, reference = from.Tests, from.JobImage().Reference
		p.Cluster, p.Recipe = from.Target.Profile, from.Dir
		if len(tests) == 0 {
			return p, nil, fault.Usage(fault.Hint(fmt.Errorf("%s has no tests", from.Path), "add [[test]] with use = \"import\", or another"))
		}
	} else {
		target, err := engine.FindTarget(o.cluster, ".")
		if err != nil {
			return p, nil, err
		}
		p.Cluster, p.Recipe = target.Profile, "/"
		tests = kitTests(o)
	}
	if p.Place == imagetest.Here {
		p.Cluster = job.HereProfile(gpusHere())
	}
	if p.Tests, skipped, err = chooseTests(tests, o.only, p.Cluster.Name); err != nil {
		return p, nil, err
	}
	return p, skipped, a.placeForTest(ctx, &p, what.name, reference)
}

// knownResults takes out of a plan the tests of which there is good evidence, in the form that they have today, and returns what came of
// them.
func (a *app) knownResults(ctx context.Context, p *imagetest.Plan, run *testRun) ([]imagetest.Result, error) {
	book, err := a.session.Evidence(run.opts.record, run.key, []*attest.PublicKey{run.key.Public()})
	if err != nil {
		return nil, err
	}
	image, err := store.ParseDigest(p.ImageDigest)
	if err != nil {
		return nil, err
	}
	var known []imagetest.Result
	var left []imagetest.Test
	for _, t := range p.Tests {
		hash, err := imagetest.Hash(p.Recipe, t, p.Cluster)
		if err != nil {
			return nil, err
		}
		e, err := book.Get(ctx, evidence.Key{Image: image, Test: hash, Cluster: p.Cluster.Name})
		if err != nil {
			return nil, fmt.Errorf("evidence of test %s: %w", t.Title(), err)
		}
		var r imagetest.Result
		if e == nil || !e.Result.Good() || json.Unmarshal(e.Details, &r) != nil {
			left = append(left, t)
			continue
		}
		run.opts.say("%s was tested before: %s", t.Title(), e.Result)
		known = append(known, r)
	}
	p.Tests = left
	return known, nil
}

// testPlace decides where tests run.
func testPlace(o testOptions) (imagetest.Place, error) {
	has := func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	}
	switch {
	case o.here:
		return imagetest.Here, nil
	case os.Getenv("SLURM_JOB_ID") != "" && has("srun") && !o.detach:
		return imagetest.Allocation, nil
	case has("sbatch"):
		return imagetest.Submitted, nil
	}
	return "", fault.Usage(fault.Hint(errors.New("there is no Slurm here: no program sbatch is on PATH"), "--here runs the tests on this machine"))
}

// gpusHere counts the GPUs of this machine, by their devices.
func gpusHere() int {
	found, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return 0
	}
	return len(found)
}

// kitTests are the tests of an image without a recipe.
func kitTests(o testOptions) []imagetest.Test {
	var tests []imagetest.Test
	for _, use := range imagetest.Kit {
		t := imagetest.Test{Use: use}
		if use != imagetest.Env && use != imagetest.Import && use != imagetest.GPU && gpusHere() < 2 && o.here {
			t.TasksPerNode = 2
		} else if use != imagetest.Env && use != imagetest.Import && use != imagetest.GPU && !o.here {
			t.Nodes = 2
		}
		if len(o.only) > 0 || use == imagetest.Env || use == imagetest.Import {
			tests = append(tests, t)
		}
	}
	return tests
}

// chooseTests takes the tests that are named, all if none is, and of them those for a cluster.
func chooseTests(all []imagetest.Test, only []string, on string) (run, skipped []imagetest.Test, err error) {
	var names []string
	for _, t := range all {
		names = append(names, t.Title())
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			hint := "the tests are " + strings.Join(names, ", ")
			if near := spelling.Nearest(name, names); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			return nil, nil, fault.Usage(fault.Hint(fmt.Errorf("there is no test %q", name), hint))
		}
	}
	for _, t := range all {
		switch {
		case len(only) > 0 && !slices.Contains(only, t.Title()):
		case !t.On(on):
			if len(only) > 0 {
				return nil, nil, fault.Usage(fmt.Errorf("the test %q is for %s, and not for %s", t.Title(), strings.Join(t.Clusters, ", "), cmp.Or(on, "this machine")))
			}
		case t.Skip != "":
			skipped = append(skipped, t)
		default:
			run = append(run, t)
		}
	}
	if len(run)+len(skipped) == 0 {
		return nil, nil, fault.Usage(fmt.Errorf("none of the tests is for %s", cmp.Or(on, "this machine")))
	}
	return run, skipped, nil
}

// placeForTest sees to the image being where the tests read it.
func (a *app) placeForTest(ctx context.Context, p *imagetest.Plan, name, reference string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	dir := ""
	starts := job.Request{Cluster: p.Cluster, Runtime: p.Runtime}
	if p.Place != imagetest.Here && starts.StartsFiles() && len(p.Tests) > 0 {
		if dir, err = engine.ExpandHere(cmp.Or(p.Cluster.Paths.Images, "${PWD}/.sconce/images")); err != nil {
			return fmt.Errorf("paths.images of %s: %w", cmp.Or(p.Cluster.Name, "the cluster"), err)
		}
	}
	placed, err := s.PlaceOf(ctx, name, dir, starts.MountsUenv())
	if err != nil {
		return err
	}
	if err := s.Place(ctx, placed); err != nil {
		return err
	}
	p.Image, p.ImageDigest, p.Image.Reference = placed.Image, placed.Digest, reference
	if p.Place != imagetest.Here {
		return nil
	}
	p.Image.File = p.Image.Name
	if p.Store, err = a.storeDir(); err != nil {
		return err
	}
	p.Program, err = ownProgram()
	return err
}

// ownProgram is the path of this program.
func ownProgram() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return os.Executable()
	}
	return filepath.Abs(path)
}

func (a *app) printResults(o testOptions, results []imagetest.Result) error {
	if o.json {
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
			if _, err := fmt.Fprintf(a.out, "%s: %s\n", r.Test, r.Reason); err != nil {
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
