package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/slurm"
	"sconce.dev/sconce/internal/store"
)

// TestOptions say which image of the store is tested, where and how.
type TestOptions struct {
	Image   string   // its name in the store
	Recipe  *Recipe  // which names its tests; nil: they are those of the kit
	Only    []string // tests, by their names; empty: all
	Cluster string   // instead of the recipe's
	Runtime string

	Here   bool          // on this machine, without Slurm
	Detach bool          // submit the job, and let a later call collect what it does
	Wait   time.Duration // for the job; 0: to its end

	Record string // repository in which the results are evidence
	Sign   string // private key by which it is signed

	After []*attest.PublicKey // keys that it comes after

	Known bool // tests of which there is good evidence, in the form that they have today, do not run again

	Say func(format string, args ...any) // while tests run
}

// Tested is what came of the tests of an image. Keep keeps it.
type Tested struct {
	Results []imagetest.Result

	session *Session
	opts    TestOptions
	key     *attest.PrivateKey
	fresh   []imagetest.Result // those that nobody has recorded yet
	kept    func() error       // notes that they are where they belong; nil: there are none
}

// Test runs the tests of an image. It returns nil when nobody waits for them.
func (s *Session) Test(ctx context.Context, o TestOptions) (*Tested, error) {
	if (o.Record == "") != (o.Sign == "") {
		return nil, fault.Usage(errors.New("--record REPOSITORY and --sign KEY go together"))
	}
	t := &Tested{session: s, opts: o}
	var err error
	if t.key, err = SigningKey(o.Sign); err != nil { // before anything runs
		return nil, err
	}
	t.key = t.key.After(o.After)
	p, skipped, err := s.testPlan(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Record != "" && p.Cluster.Name == "" {
		return nil, fault.Usage(fault.Hint(errors.New("evidence names the cluster, and none is named"), "--on CLUSTER, or cluster under [target] of the recipe"))
	}
	for _, test := range skipped {
		left, err := p.Left(test)
		if err != nil {
			return nil, err
		}
		t.Results = append(t.Results, left)
	}
	if o.Known && o.Record != "" && len(o.Only) == 0 {
		known, err := t.knownResults(ctx, &p)
		if err != nil {
			return nil, err
		}
		t.Results = append(t.Results, known...)
	}
	if len(p.Tests) == 0 {
		return t, nil
	}
	where := imagetest.Options{Detach: o.Detach, Wait: o.Wait, Say: o.Say}
	if where.Root, where.Unkept, err = testDirs(); err != nil {
		return nil, err
	}
	collected, err := p.Run(ctx, where)
	if err != nil || o.Detach {
		return nil, err
	}
	t.fresh, t.kept = collected.Results, collected.Kept
	t.Results = append(slices.Clone(t.fresh), t.Results...)
	return t, nil
}

// testDirs are the directory of the jobs that run tests, and that of results that nobody has kept yet.
func testDirs() (jobs, unkept string, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	if jobs, err = slurm.FilesDir(dir, "tests"); err != nil {
		return "", "", err
	}
	state, err := slurm.StateDir()
	return jobs, filepath.Join(state, "tests"), err
}

// Keep records what came of the tests as evidence, and forgets what was kept for want of it. It comes after whoever wants to know has been
// told: till then, the same tests are not run again but told again. recorded is called with the title of each test.
func (t *Tested) Keep(ctx context.Context, recorded func(test string)) error {
	for _, one := range t.fresh {
		if _, noEvidence := one.Predicate(); t.opts.Record == "" || noEvidence != nil {
			continue
		}
		if err := t.session.RecordTest(ctx, t.opts.Record, one, t.key); err != nil {
			return fmt.Errorf("record test %s: %w", one.Test, err)
		}
		recorded(one.Test)
	}
	if t.kept == nil {
		return nil
	}
	return t.kept()
}

// Repository is where the results are evidence; "" for nowhere.
func (t *Tested) Repository() string { return t.opts.Record }

// testPlan puts together what is tested, where, and by which tests; skipped are those that the recipe leaves out.
func (s *Session) testPlan(ctx context.Context, o TestOptions) (p imagetest.Plan, skipped []imagetest.Test, err error) {
	if p.Place, err = imagetest.FindPlace(o.Here, o.Detach); err != nil {
		return p, nil, err
	}
	p.Runtime = o.Runtime
	var tests []imagetest.Test
	var target Target
	reference := ""
	if from := o.Recipe; from != nil {
		if o.Cluster != "" {
			there := *from
			from = &there
			if from.Target, err = TargetOf(from.Recipe, o.Cluster); err != nil {
				return p, nil, err
			}
		}
		tests, reference, target = from.Tests, from.JobImage().Reference, from.Target
		p.Recipe = from.Dir
		if len(tests) == 0 {
			return p, nil, fault.Usage(fault.Hint(fmt.Errorf("%s has no tests", from.Path), "add [[test]] with use = \"import\", or another"))
		}
	} else {
		if target, err = FindTarget(o.Cluster, "."); err != nil {
			return p, nil, err
		}
		p.Recipe = "/"
		tests = imagetest.OfKit(len(o.Only) > 0, o.Here)
	}
	if p.Cluster = target.Profile; p.Place == imagetest.Here {
		p.Cluster = job.HereProfile(imagetest.GPUsHere())
	} else {
		target.tellMounts(ctx)
	}
	if p.Tests, skipped, err = imagetest.Choose(tests, o.Only, p.Cluster.Name); err != nil {
		return p, nil, err
	}
	return p, skipped, s.placeForTest(ctx, &p, o.Image, reference)
}

// knownResults takes out of a plan the tests of which there is good evidence, in the form that they have today, and returns what came of
// them.
func (t *Tested) knownResults(ctx context.Context, p *imagetest.Plan) ([]imagetest.Result, error) {
	book, err := t.session.Evidence(t.opts.Record, t.key, []*attest.PublicKey{t.key.Public()})
	if err != nil {
		return nil, err
	}
	image, err := store.ParseDigest(p.ImageDigest)
	if err != nil {
		return nil, err
	}
	var known []imagetest.Result
	var left []imagetest.Test
	for _, test := range p.Tests {
		hash, err := imagetest.Hash(p.Recipe, test, p.Cluster)
		if err != nil {
			return nil, err
		}
		e, err := book.Get(ctx, evidence.Key{Image: image, Test: hash, Cluster: p.Cluster.Name})
		if err != nil {
			return nil, fmt.Errorf("evidence of test %s: %w", test.Title(), err)
		}
		var r imagetest.Result
		if e == nil || !e.Result.Good() || json.Unmarshal(e.Details, &r) != nil {
			left = append(left, test)
			continue
		}
		t.opts.Say("%s was tested before: %s", test.Title(), e.Result)
		known = append(known, r)
	}
	p.Tests = left
	return known, nil
}

// placeForTest sees to the image being where the tests read it.
func (s *Session) placeForTest(ctx context.Context, p *imagetest.Plan, name, reference string) error {
	dir := ""
	starts := job.Request{Cluster: p.Cluster, Runtime: p.Runtime}
	if p.Place != imagetest.Here && starts.StartsFiles() && len(p.Tests) > 0 {
		var err error
		if dir, err = imagesOf(p.Cluster); err != nil {
			return err
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
	p.Store = s.Store.Dir()
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
