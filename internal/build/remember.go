package build

import (
	"time"

	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/store"
)

// LastPlan returns the steps of the last build of an image's name, nil if there was none.
func LastPlan(st *store.Store, like *plan.Record) (*plan.Record, error) {
	var r plan.Record
	found, err := st.GetRecord(store.KindPlan, like.Key(), &r)
	if !found || err != nil {
		return nil, err
	}
	return &r, nil
}

// remember keeps the steps of a build that went well, and how long those took that were made now. A build with nothing to do
// writes nothing.
func remember(st *store.Store, p *plan.Plan, took map[plan.Key]time.Duration) error {
	if p.Name == "" || st.ReadOnly() {
		return nil
	}
	now := p.Record()
	before, err := LastPlan(st, now)
	if err != nil || before != nil && took == nil && before.Steps[len(before.Steps)-1].Key == p.Image.Key {
		return err
	}
	known := make(map[plan.Key]float64)
	if before != nil {
		for _, t := range before.Steps {
			known[t.Key] = t.Seconds
		}
	}
	for i := range now.Steps {
		t := &now.Steps[i]
		t.Seconds = max(known[t.Key], took[t.Key].Seconds())
	}
	return st.PutRecord(store.KindPlan, now.Key(), nil, now)
}

// tookFrom notes how long a step took. Of one that was there already the longer time is remembered, which is that of making it.
func (b *builder) tookFrom(key plan.Key, began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.took[key] = time.Since(began)
}
