package engine

import (
	"context"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/plan"
)

// Explained is a plan as a person asks about it: each step with where its result is, and why it is made again.
type Explained struct {
	Image string
	Steps []ExplainedStep
	First bool // no image of that name was built here before, so nothing can be said to have changed
}

// ExplainedStep is one step of an [Explained], the image itself being the last.
type ExplainedStep struct {
	plan.StepRecord
	build.Look
	Why     []string // what made its key another than that of the last build, by name; nil: the key is the same
	Seconds float64  // about how long it will take, by how long it or what it was took the last time; 0: not known
}

// Explain says what building a plan would do. Nothing is made.
func (s *Session) Explain(ctx context.Context, p *Plan) (*Explained, error) {
	how := p.means
	how.Store, how.Fetch, how.Offline, how.Cores = s.Store, s.Fetch, s.Offline, s.Cores
	looks, err := build.LookAround(ctx, p.Plan, how)
	if err != nil {
		return nil, err
	}
	now := p.Record()
	before, err := build.LastPlan(s.Store, now)
	if err != nil {
		return nil, err
	}
	took := make(map[plan.Key]float64)
	if before != nil {
		for _, t := range before.Steps {
			took[t.Key] = t.Seconds
		}
	}
	differences := plan.Compare(before, now)
	x := &Explained{Image: p.Name, First: before == nil}
	for i, t := range now.Steps {
		step := ExplainedStep{StepRecord: t, Look: looks[t.Key], Why: differences[i].Causes, Seconds: took[t.Key]}
		if was := differences[i].Before; was != nil {
			step.Seconds = was.Seconds
		}
		if step.Where == build.ToMake && differences[i].Upstream && !how.Again {
			step.Where = build.IfChanged
		}
		x.Steps = append(x.Steps, step)
	}
	return x, nil
}
