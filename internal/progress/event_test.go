package progress_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/progress"
)

type recorder struct {
	mu     sync.Mutex
	events []progress.Event
}

func (r *recorder) Emit(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func TestTaskReportsItsLife(t *testing.T) {
	var r recorder
	ctx := progress.With(context.Background(), &r)
	task := progress.Begin(ctx, "pull", "thing", 10)
	if _, err := io.Copy(task, strings.NewReader("0123456789")); err != nil {
		t.Fatal(err)
	}
	task.Log("a line")
	if err := task.End(nil); err != nil {
		t.Fatal(err)
	}
	want := []progress.Event{
		{Kind: progress.Start, Verb: "pull", Name: "thing", Total: 10},
		{Kind: progress.Progress, Verb: "pull", Name: "thing", Current: 10, Total: 10},
		{Kind: progress.Log, Verb: "pull", Name: "thing", Text: "a line"},
		{Kind: progress.Done, Verb: "pull", Name: "thing", Current: 10, Total: 10},
	}
	if diff := cmp.Diff(want, r.events, cmpopts.IgnoreFields(progress.Event{}, "Time", "Task")); diff != "" {
		t.Error(diff)
	}
	for _, e := range r.events {
		if e.Time.IsZero() || e.Task == "" || e.Task != r.events[0].Task {
			t.Errorf("event %+v is not of the task, or has no time", e)
		}
	}
}

func TestEndReturnsTheError(t *testing.T) {
	var r recorder
	broken := errors.New("broken")
	task := progress.Begin(progress.With(context.Background(), &r), "pull", "thing", 0)
	if err := task.End(broken); err != broken { //nolint:errorlint // the very error, not one that wraps it
		t.Errorf("End = %v", err)
	}
	if last := r.events[len(r.events)-1]; last.Kind != progress.Failed || last.Err != "broken" {
		t.Errorf("last event: %+v", last)
	}
}

// A fast copy must not be slowed down by its own progress.
func TestProgressIsRare(t *testing.T) {
	var r recorder
	task := progress.Begin(progress.With(context.Background(), &r), "copy", "thing", 0)
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for range 10_000 {
				task.Add(1)
			}
		})
	}
	g.Wait()
	_ = task.End(nil)
	if n := len(r.events); n > 1000 {
		t.Errorf("%d events for one short task", n)
	}
	if last := r.events[len(r.events)-1]; last.Current != 80_000 {
		t.Errorf("counted %d of 80000", last.Current)
	}
}

func TestWithoutSinkNothingHappens(t *testing.T) {
	ctx := context.Background()
	progress.Warn(ctx, "text", "hint")
	progress.Notef(ctx, "text")
	progress.Begin(ctx, "verb", "name", 0).EndCached()
}

func TestTasksAreTold(t *testing.T) {
	var r recorder
	ctx := progress.With(context.Background(), &r)
	progress.Begin(ctx, "a", "", 0)
	progress.Begin(ctx, "b", "", 0)
	if r.events[0].Task == r.events[1].Task {
		t.Error("two tasks have one name")
	}
}
