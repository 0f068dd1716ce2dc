package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/pipeline"
)

// validation tests and promotes the images of a pipeline as they come to be there, several at once.
type validation struct {
	*app
	pipeline *pipeline.Pipeline
	opts     pipelineRunOptions

	mu   sync.Mutex // held while what came of one image is told
	code int        // the worst exit code of tests
}

// testsAtOnce is how many images are tested side by side as jobs, which mostly wait in the queue.
const testsAtOnce = 16

// atOnce is how many images are tested side by side: one in an allocation, where tests would take the nodes and the network from each
// other that they measure.
func (v *validation) atOnce() int {
	if place, err := imagetest.FindPlace(false, false); err != nil || place != imagetest.Submitted {
		return 1
	}
	return testsAtOnce
}

// after tests an image on its clusters, and promotes it when that is asked for. It reports whether others may stand on it: only once it has
// passed, as they could not be promoted otherwise.
func (v *validation) after(ctx context.Context, st *pipeline.Status) (bool, error) {
	i := st.Image
	if v.opts.test {
		passed, err := v.testOnClusters(ctx, i)
		if err != nil || !passed {
			return false, err
		}
	}
	if !v.opts.promote || len(i.Stable) == 0 {
		return true, nil
	}
	report, err := v.pipeline.Promote(ctx, v.session, i, engine.Promoting{})
	if err != nil {
		return false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return true, v.printPromotion(report)
}

// worse is the exit code of two: that a test has failed counts for more than that one could not be judged.
func worse(a, b int) int {
	if a == 0 || a == imagetest.CodeNotJudged {
		return b
	}
	return a
}

// testOnClusters runs the tests of an image that have not passed yet, on all its clusters at once, and reports whether it has passed.
func (v *validation) testOnClusters(ctx context.Context, i *pipeline.Image) (passed bool, err error) {
	tests, err := v.pipeline.Tests(ctx, i)
	if err != nil {
		return false, err
	}
	var clusters []string
	for _, t := range tests {
		if !slices.Contains(clusters, t.Cluster) {
			clusters = append(clusters, t.Cluster)
		}
	}
	codes := make([]int, len(clusters))
	var g errgroup.Group
	g.SetLimit(v.atOnce())
	for n, name := range clusters {
		g.Go(func() (err error) {
			codes[n], err = v.testOn(ctx, i, name)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	return !slices.ContainsFunc(codes, func(code int) bool { return code != 0 }), nil
}

// testOn runs the tests of an image on a cluster, and returns the exit code of `sconce test` for it.
func (v *validation) testOn(ctx context.Context, i *pipeline.Image, cluster string) (int, error) {
	say := func(format string, args ...any) { v.say("%s: %s", i.Ref, fmt.Sprintf(format, args...)) }
	t, err := v.test(ctx, testOptions{subject: i.Ref, canonical: true, TestOptions: engine.TestOptions{Cluster: cluster, Say: say}})
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.say("%s on %s:", i.Ref, cluster)
	code, err := v.reportTests(ctx, t, false)
	if err != nil {
		return 0, err
	}
	v.code = worse(v.code, code)
	return code, nil
}
