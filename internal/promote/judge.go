package promote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// Demand is what there has to be known of an image before it is given to users, and before they believe it.
type Demand struct {
	Image  store.Digest   // of its manifest or index
	Parts  []store.Digest // of an index, the images that it lists
	From   string         // HOST/PATH with the evidence
	Recipe bool           // what follows is what its recipe says; else the record of its promotion counts, and without one all evidence that there is

	Required []Required // verdicts that there must be, of the image and what it is based on
	Untested []string   // what nothing tests, in words
	Allowed  bool       // that is allowed; without a recipe: that there is no evidence
}

// Required is a verdict that there must be.
type Required struct {
	evidence.Key
	Name       string // of the test, for people
	Repository string // HOST/PATH with the evidence; "" is Demand.From
}

// Verdict is one piece of evidence, or one that there should be.
type Verdict struct {
	Test         string          `json:"test"`
	Image        store.Digest    `json:"image"` // of an index, the one that was tested
	Hash         string          `json:"hash"`
	Cluster      string          `json:"cluster"`
	Result       evidence.Result `json:"result,omitempty"` // "": there is none
	Finished     string          `json:"finished,omitempty"`
	FailedBefore int             `json:"failedBefore,omitempty"` // how often it failed before, in the same form and with the same image
	Manifest     store.Digest    `json:"manifest,omitempty"`
	Problem      string          `json:"problem,omitempty"`
}

// Judgement is what [Judge] has found.
type Judgement struct {
	Verdicts []Verdict
	Untested []string // what nothing tests, and need not
	Record   *Record  // of its promotion, where it decides; nil: none does
	Problems []string // why it is not to be given to users, or believed

	moved *evidence.MovedError // one of the problems, if it is one
}

// Err is the problems as an error, nil without any.
func (j *Judgement) Err() error {
	if len(j.Problems) == 0 {
		return nil
	}
	err := fault.Problem(fmt.Errorf("the image is not tested as it has to be:\n  %s", strings.Join(j.Problems, "\n  ")))
	if j.moved != nil {
		return fault.Hint(err, j.moved.Hint())
	}
	return fault.Hint(err, "run `sconce test` for what is missing, and promote again")
}

// judge is one judgement.
type judge struct {
	*Judgement
	Demand
	open  func(repository string) (*evidence.Book, error)
	books map[string]*evidence.Book
	later map[string][]*evidence.Evidence // what refers to an image, by HOST/PATH@DIGEST
}

// Judge decides whether what is known of an image is enough: promotion, `sconce verify` and the plan of a pipeline ask nobody else. open
// opens the evidence in a repository, which says whose signatures count. A verdict counts when its test has passed, also when it did so on
// other nodes than those where it failed at first.
func Judge(ctx context.Context, d Demand, open func(repository string) (*evidence.Book, error)) (*Judgement, error) {
	j := &judge{&Judgement{Verdicts: []Verdict{}}, d, open, map[string]*evidence.Book{}, map[string][]*evidence.Evidence{}}
	if len(d.Parts) == 0 {
		j.Parts = []store.Digest{d.Image}
	}
	if d.Recipe {
		return j.Judgement, j.byRecipe(ctx)
	}
	return j.Judgement, j.byEvidence(ctx)
}

func (j *judge) book(repository string) (*evidence.Book, error) {
	if repository == "" {
		repository = j.From
	}
	b, err := j.books[repository], error(nil)
	if b == nil {
		b, err = j.open(repository)
		j.books[repository] = b
	}
	return b, err
}

// newest is a verdict that a tag leads to, or another about the same that ended later and is listed beside the image: whoever may write can move a tag
// back to what a trusted key has signed before.
func (j *judge) newest(ctx context.Context, b *evidence.Book, e *evidence.Evidence) (*evidence.Evidence, error) {
	at := b.Repository().Name() + "@" + string(e.Image)
	list, known := j.later[at]
	if !known {
		var err error
		if list, _, err = b.Referred(ctx, e.Image); err != nil {
			return nil, err
		}
		j.later[at] = list
	}
	for _, other := range list {
		if other.Key == e.Key && other.Finished.After(e.Finished) {
			return other, nil
		}
	}
	return e, nil
}

// problem notes an error that is one, and returns any other.
func (j *judge) problem(err error) error {
	var moved *evidence.MovedError
	if !errors.As(err, &moved) {
		return err
	}
	if text := moved.Error(); !slices.Contains(j.Problems, text) {
		j.Problems = append(j.Problems, text)
	}
	j.moved = moved
	return nil
}

// note adds a verdict; bad, if it is not "", says why it is a problem.
func (j *judge) note(v Verdict, bad string) {
	if v.Problem = bad; bad != "" {
		of := ""
		if v.Image != j.Image {
			of = ", image " + v.Image.Short()
		}
		j.Problems = append(j.Problems, fmt.Sprintf("%s on %s%s: %s", v.Test, v.Cluster, of, bad))
	}
	j.Verdicts = append(j.Verdicts, v)
}

func describe(e *evidence.Evidence, name string) Verdict {
	v := Verdict{Test: name, Image: e.Image, Hash: e.Test, Cluster: e.Cluster, Result: e.Result, FailedBefore: e.FailedBefore, Manifest: e.Manifest}
	if !e.Finished.IsZero() {
		v.Finished = e.Finished.UTC().Format(time.RFC3339)
	}
	return v
}

// The problems that verdicts have.
const (
	notRun    = "it has not run with this image and in its present form"
	notPassed = "it has not passed"
	notThere  = "the image was promoted with its verdict, which is not there"
)

func (j *judge) byRecipe(ctx context.Context) error {
	j.Judgement.Untested = j.Demand.Untested
	if !j.Allowed {
		j.Problems = append(j.Problems, j.Demand.Untested...)
	}
	for _, q := range j.Required {
		b, err := j.book(q.Repository)
		if err != nil {
			return err
		}
		e, err := b.Get(ctx, q.Key)
		if err := j.problem(err); err != nil {
			return err
		}
		if e != nil {
			if e, err = j.newest(ctx, b, e); err != nil {
				return err
			}
		}
		missing := notRun
		if err == nil && e == nil {
			if missing, err = b.WhyNone(ctx, q.Key); err != nil {
				return err
			}
		}
		j.require(q.Key, q.Name, e, err, missing)
	}
	return nil
}

// require notes a verdict that there must be. missing says what it means that there is none.
func (j *judge) require(k evidence.Key, name string, e *evidence.Evidence, err error, missing string) {
	switch {
	case err != nil: // which is a problem that is noted
		j.Verdicts = append(j.Verdicts, Verdict{Test: name, Image: k.Image, Hash: k.Test, Cluster: k.Cluster, Problem: err.Error()})
	case e == nil:
		j.note(Verdict{Test: name, Image: k.Image, Hash: k.Test, Cluster: k.Cluster}, missing)
	case !e.Result.Good():
		j.note(describe(e, name), notPassed)
	default:
		j.note(describe(e, name), "")
	}
}

// byEvidence judges an image whose recipe is not known.
func (j *judge) byEvidence(ctx context.Context) error {
	b, err := j.book("")
	if err != nil {
		return err
	}
	if j.Record, err = readRecord(ctx, b, j.Image); j.problem(err) != nil {
		return err
	}
	var all []*evidence.Evidence
	for _, image := range j.Parts {
		list, others, err := evidenceOf(ctx, b, image)
		if j.problem(err) != nil {
			return err
		}
		if len(list) == 0 && err == nil && j.Record == nil && !j.Allowed {
			j.Problems = append(j.Problems, j.nothing(image, others))
		}
		for _, e := range list {
			if e, err = j.newest(ctx, b, e); err != nil {
				return err
			}
			all = append(all, e)
		}
	}
	since := time.Time{}
	if j.Record != nil {
		j.Judgement.Untested, since = j.Record.Untested, j.Record.Time
		all = j.byRecord(all)
	}
	for _, e := range all {
		bad := ""
		if !e.Result.Good() && !isSuperseded(e, all) && !e.Finished.Before(since) {
			bad = notPassed
		}
		j.note(describe(e, e.Name), bad)
	}
	return nil
}

// evidenceOf is what tests have said of an image, by tags, or else by what refers to it; and how many of these nobody trusted has signed.
func evidenceOf(ctx context.Context, b *evidence.Book, image store.Digest) (list []*evidence.Evidence, others int, err error) {
	if list, err = b.List(ctx, image); err != nil || len(list) > 0 {
		return list, 0, err
	}
	return b.Referred(ctx, image)
}

// nothing says what was looked for in vain.
func (j *judge) nothing(image store.Digest, others int) string {
	what := "it"
	if image != j.Image {
		what = image.Short() + ", which is part of it,"
	}
	text := fmt.Sprintf("there is no evidence in %s that %s was tested: no verdict lies under its tags, and none refers to it", j.From, what)
	if others > 0 {
		text = fmt.Sprintf("there is no evidence in %s that %s was tested but what other keys have signed", j.From, what)
	}
	return text
}

// byRecord wants the verdicts about the image itself that it was promoted with, and returns the others. Those about what it is based on lie
// beside that.
func (j *judge) byRecord(all []*evidence.Evidence) (others []*evidence.Evidence) {
	for _, t := range j.Record.Tests {
		if !slices.Contains(j.Parts, t.Image) {
			continue
		}
		k := evidence.Key{Image: t.Image, Test: t.Hash, Cluster: t.Cluster}
		i := slices.IndexFunc(all, func(e *evidence.Evidence) bool { return e.Key == k })
		if i < 0 {
			j.require(k, t.Test, nil, nil, notThere)
			continue
		}
		j.require(k, all[i].Name, all[i], nil, notThere)
		all = slices.Delete(slices.Clone(all), i, i+1)
	}
	return all
}

// isSuperseded reports whether a test has passed since on the same cluster, in another form: whoever changes a test has it judged again.
func isSuperseded(e *evidence.Evidence, all []*evidence.Evidence) bool {
	return slices.ContainsFunc(all, func(o *evidence.Evidence) bool {
		return o.Image == e.Image && o.Name == e.Name && o.Cluster == e.Cluster && o.Result.Good() && o.Finished.After(e.Finished)
	})
}

// Record is what a pipeline signs of an image that it promotes: by what right, and where that was done. Whoever has the public key judges
// by it as the pipeline did.
type Record struct {
	Time     time.Time        `json:"time"`
	To       []string         `json:"to"`    // HOST/PATH:TAG
	Tests    []RecordedTest   `json:"tests"` // that have passed, of the image and of what it is based on
	Untested []string         `json:"untested,omitempty"`
	Origin   *evidence.Origin `json:"origin,omitempty"` // of the pipeline
}

// RecordedTest is a test of a [Record].
type RecordedTest struct {
	Test    string          `json:"test"`
	Hash    string          `json:"hash"`
	Cluster string          `json:"cluster"`
	Image   store.Digest    `json:"image"`
	Result  evidence.Result `json:"result"`
}

// The kind and the type of the document that a record is.
const (
	RecordKind = "promotion"
	recordType = evidence.PromotionType
)

// readRecord returns the record of an image's promotion that somebody trusted has signed, nil when there is none.
func readRecord(ctx context.Context, b *evidence.Book, image store.Digest) (*Record, error) {
	said, err := b.Find(ctx, image, RecordKind, recordType)
	if err != nil || said == nil || said.PredicateType != recordType {
		return nil, err
	}
	r := &Record{}
	if json.Unmarshal(said.Predicate, r) != nil {
		return nil, nil //nolint:nilerr // of another form: it says nothing
	}
	return r, nil
}

// record signs by what right the image is promoted, where there is a key. It is not signed again when that is the same and no tag is to be
// written. It reports whether it was written.
func (r *promoter) record(ctx context.Context, found *Judgement, missing bool) (bool, error) {
	if r.opts.Key == nil || !r.Recipe {
		return false, nil
	}
	b, err := r.book(r.From)
	if err != nil {
		return false, err
	}
	now := &Record{Time: r.opts.Now().UTC().Truncate(time.Second), Tests: []RecordedTest{}, Untested: found.Untested, Origin: r.Origin}
	for _, t := range r.To {
		now.To = append(now.To, t.String())
	}
	for _, v := range found.Verdicts {
		now.Tests = append(now.Tests, RecordedTest{v.Test, v.Hash, v.Cluster, v.Image, v.Result})
	}
	there, err := readRecord(ctx, b, r.Image)
	if err != nil {
		return false, err
	}
	if !missing && there != nil && slices.Equal(there.Tests, now.Tests) && slices.Equal(there.Untested, now.Untested) {
		return false, nil
	}
	if err := b.Attach(ctx, r.Image, RecordKind, recordType, now, nil); err != nil {
		return false, fmt.Errorf("record the promotion: %w", err)
	}
	return true, nil
}

// checkEvidence wants what is known of the image to be enough.
func (r *promoter) checkEvidence(ctx context.Context) (*Judgement, error) {
	d := Demand{Image: r.Image, From: r.From, Recipe: r.Recipe, Required: r.Required, Untested: r.Untested, Allowed: r.Allowed}
	if !d.Recipe && d.Allowed && len(r.opts.Trust) == 0 {
		return &Judgement{}, nil
	}
	if !d.Recipe {
		var err error
		if _, d.Parts, err = r.from.Reach(ctx, string(r.Image)); err != nil {
			return nil, err
		}
	}
	found, err := Judge(ctx, d, r.book)
	if found != nil {
		r.report.Evidence, r.report.Untested = found.Verdicts, found.Untested
	}
	if err != nil {
		return nil, err
	}
	return found, found.Err()
}

func (r *promoter) book(repository string) (*evidence.Book, error) {
	if err := CheckTrust(r.opts.Trust); err != nil {
		return nil, err
	}
	return evidence.Open(repository, evidence.Options{Store: r.opts.Store, Fetch: r.opts.Fetch, Key: r.opts.Key, Trust: r.opts.Trust})
}

// CheckTrust wants somebody to be trusted whose evidence is to be judged.
func CheckTrust(trust []*attest.PublicKey) error {
	if len(trust) > 0 {
		return nil
	}
	err := fault.Usage(errors.New("evidence is signed, and no key says by whom"))
	return fault.Hint(err, "name the public key with --key team.pub")
}
