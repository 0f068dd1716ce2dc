package cli

import (
	"context"
	"errors"
	"slices"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/pipeline"
)

// testAndPromote goes on with images that are built, those that others stand on first: it tests each on its clusters, and promotes what
// has passed when that is asked for. An image whose tests have not passed stops what stands on it, and the exit code says so.
func (a *app) testAndPromote(ctx context.Context, p *pipeline.Pipeline, all []*pipeline.Status, o pipelineRunOptions) error {
	code := 0
	stopped := map[string]bool{}
	for _, st := range all {
		i := st.Image
		if slices.ContainsFunc(i.Below(), func(below *pipeline.Image) bool { return stopped[below.Ref] }) {
			a.say("left %s: what it stands on, or is made of, has not passed its tests", i.Ref)
			stopped[i.Ref] = true
			continue
		}
		if o.test {
			status, err := a.testOnClusters(ctx, p, i)
			if err != nil {
				return err
			}
			if status != 0 {
				code, stopped[i.Ref] = worse(code, status), true
				continue
			}
		}
		if !o.promote || len(i.Stable) == 0 {
			continue
		}
		report, err := p.Promote(ctx, a.session, i, engine.Promoting{})
		if err != nil {
			return err
		}
		if err := a.printPromotion(report); err != nil {
			return err
		}
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// worse is the exit code of two: that a test has failed counts for more than that one could not be judged.
func worse(a, b int) int {
	if a == 0 || a == imagetest.CodeNotJudged {
		return b
	}
	return a
}

// testOnClusters runs the tests of an image that have not passed yet, and returns the exit code of `sconce test` for it.
func (a *app) testOnClusters(ctx context.Context, p *pipeline.Pipeline, i *pipeline.Image) (int, error) {
	tests, err := p.Tests(ctx, i)
	if err != nil {
		return 0, err
	}
	var clusters []string
	for _, t := range tests {
		if !slices.Contains(clusters, t.Cluster) {
			clusters = append(clusters, t.Cluster)
		}
	}
	code := 0
	for _, name := range clusters {
		err := a.runTest(ctx, testOptions{subject: i.Ref, canonical: true, cluster: name})
		if status := exitStatus(0); errors.As(err, &status) {
			code = worse(code, int(status))
		} else if err != nil {
			return 0, err
		}
	}
	return code, nil
}
