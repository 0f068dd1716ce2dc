package promote

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
)

// checkEvidence reads the verdicts that there must be. Any that is missing or bad is a problem, and all are named at once; one that is
// not what its tag says is an error.
func (r *promoter) checkEvidence(ctx context.Context) error {
	if len(r.Required) == 0 {
		if !r.Existing && len(r.opts.Trust) == 0 {
			return nil
		}
		return r.checkExisting(ctx)
	}
	books := map[string]*evidence.Book{}
	var bad []string
	for _, q := range r.Required {
		if q.Repository == "" {
			q.Repository = r.From
		}
		if books[q.Repository] == nil {
			b, err := r.book(q.Repository)
			if err != nil {
				return err
			}
			books[q.Repository] = b
		}
		e, err := books[q.Repository].Get(ctx, q.Key)
		if err != nil {
			return err
		}
		v := Verdict{Test: q.Name, Cluster: q.Cluster, Image: q.Image}
		switch {
		case e == nil:
			if v.Problem, err = books[q.Repository].WhyNone(ctx, q.Key); err != nil {
				return err
			}
		case !e.Result.Good():
			v.Result, v.Problem = e.Result, "it has not passed"
		default:
			v.Result = e.Result
		}
		r.report.Evidence = append(r.report.Evidence, v)
		if v.Problem != "" {
			bad = append(bad, fmt.Sprintf("%s on %s, image %s: %s", q.Name, q.Cluster, q.Image.Short(), v.Problem))
		}
	}
	return untested(bad)
}

func untested(bad []string) error {
	if len(bad) == 0 {
		return nil
	}
	err := fault.Problem(fmt.Errorf("the image is not tested as it has to be:\n  %s", strings.Join(bad, "\n  ")))
	return fault.Hint(err, "run `sconce test` for what is missing, and promote again")
}

// checkExisting takes what evidence there is as what there must be.
func (r *promoter) checkExisting(ctx context.Context) error {
	b, err := r.book(r.From)
	if err != nil {
		return err
	}
	list, err := b.List(ctx, r.Image)
	if err != nil {
		return err
	}
	if len(list) == 0 && r.Existing {
		err := fault.Problem(fmt.Errorf("%s has no evidence that %s was ever tested", r.From, r.Image.Short()))
		return fault.Hint(err, "run `sconce test` first; --untested promotes it all the same")
	}
	var bad []string
	for _, e := range list {
		v := Verdict{Test: e.Name, Cluster: e.Cluster, Image: e.Image, Result: e.Result}
		if !e.Result.Good() {
			v.Problem = "it has not passed"
			bad = append(bad, fmt.Sprintf("%s on %s: %s", e.Name, e.Cluster, v.Problem))
		}
		r.report.Evidence = append(r.report.Evidence, v)
	}
	return untested(bad)
}

func (r *promoter) book(repository string) (*evidence.Book, error) {
	if len(r.opts.Trust) == 0 {
		err := fault.Usage(errors.New("evidence is signed, and no key says by whom"))
		return nil, fault.Hint(err, "name the public key with --key team.pub")
	}
	return evidence.Open(repository, evidence.Options{Store: r.opts.Store, Fetch: r.opts.Fetch, Trust: r.opts.Trust})
}
