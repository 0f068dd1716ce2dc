package cli

import (
	"context"
	"errors"
	"slices"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/pipeline"
)

// validation tests and promotes the images of a pipeline as they come to be there.
type validation struct {
	*app
	pipeline *pipeline.Pipeline
	opts     pipelineRunOptions
	code     int // the worst exit code of tests
}

// after tests an image on its clusters, and promotes it when that is asked for. It reports whether others may stand on it: only once it has
// passed, as they could not be promoted otherwise.
func (v *validation) after(ctx context.Context, st *pipeline.Status) (bool, error) {
	i := st.Image
	if v.opts.test {
		code, err := v.testOnClusters(ctx, v.pipeline, i)
		if err != nil {
			return false, err
		}
		if code != 0 {
			v.code = worse(v.code, code)
			return false, nil
		}
	}
	if !v.opts.promote || len(i.Stable) == 0 {
		return true, nil
	}
	report, err := v.pipeline.Promote(ctx, v.session, i, engine.Promoting{})
	if err != nil {
		return false, err
	}
	return true, v.printPromotion(report)
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
