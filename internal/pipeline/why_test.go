package pipeline_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/registry/registrytest"
)

// Why an image is to be built is told by what users have, signed or not: each change by its name, and what only follows of it not.
func TestReasons(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	_, private, _ := evidencetest.Key(t)
	for _, sign := range []string{"", "sign = \"file:" + private + "\"\n"} {
		change(t, dir, "pipeline.toml", "mutable =", sign+"mutable =")
		change(t, dir, "images/base/file", "\n", "\nmore\n")
		if _, err := open(t, dir).Run(t.Context(), s, look(t, s, dir), pipeline.RunOptions{}); err != nil {
			t.Fatal(err)
		}
		before := map[string]string{}
		for _, name := range []string{"images/base/sconce.toml", "images/base/file", "images/stack/tree/program", "apps/app/sconce.toml"} {
			before[name] = readFile(t, dir, name)
		}
		change(t, dir, "images/base/sconce.toml", "KEEP = \"1\"", "KEEP = \"2\"")
		change(t, dir, "images/base/file", "first", "second")
		change(t, dir, "apps/app/sconce.toml", "\"large\"", "\"huge\"")
		want := map[string][]string{
			"images/base":        {"copy file:/opt/base/file: file file: changed", "KEEP"},
			"images/stack":       {"what it is based on, images/base, is to be built"},
			"apps/app:small":     {"what it is based on, images/stack, is to be built"},
			"apps/app:large-dev": {"SIZE", "what it is based on, images/stack, is to be built"},
		}
		for _, st := range look(t, newSession(t), dir) {
			parts := want[st.Ref]
			if len(st.Reasons) != len(parts) {
				t.Errorf("%s: %q, want %q", st.Ref, st.Reasons, parts)
				continue
			}
			for n, part := range parts {
				if !strings.Contains(st.Reasons[n], part) {
					t.Errorf("%s: %q, want %q", st.Ref, st.Reasons, parts)
				}
			}
		}
		for name, text := range before {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A new version is compared with what was built of the one before, of the same variant.
func TestReasonsOfNewVersion(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	if _, err := open(t, dir).Run(t.Context(), s, look(t, s, dir), pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	change(t, dir, "images/base/sconce.toml", "version = \"1\"", "version = \"1.1\"")
	change(t, dir, "images/base/file", "first", "second")
	change(t, dir, "apps/app/sconce.toml", "\"large\"", "\"huge\"")
	want := map[string][]string{
		"images/base":        {"since 1", "copy file:/opt/base/file: file file: changed"},
		"apps/app:large-dev": {"SIZE", "what it is based on"},
	}
	for _, st := range look(t, newSession(t), dir) {
		for n, part := range want[st.Ref] {
			if n >= len(st.Reasons) || !strings.Contains(st.Reasons[n], part) {
				t.Errorf("%s: %q, want %q", st.Ref, st.Reasons, want[st.Ref])
			}
		}
	}
}

// What is done after an image comes before what is based on it is built, and can stop that alone.
func TestAfter(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	p := open(t, dir)
	all := look(t, s, dir)
	there := func(ctx context.Context, st *pipeline.Status) bool {
		t.Helper()
		_, found, err := s.Head(ctx, st.Canonical)
		if err != nil {
			t.Error(err)
		}
		return found
	}
	var order []string
	after := func(ctx context.Context, st *pipeline.Status) (bool, error) {
		order = append(order, st.Ref)
		for _, other := range all {
			if other.Base != nil && other.Base.Ref == st.Ref && there(ctx, other) {
				t.Errorf("%s is built before what it is based on is done", other.Ref)
			}
		}
		return st.Ref != "images/stack", nil
	}
	done, err := p.Run(t.Context(), s, all, pipeline.RunOptions{Jobs: 4, After: after})
	if err != nil || !slices.Equal(order, []string{"images/base", "images/stack"}) {
		t.Errorf("%q, %v", order, err)
	}
	for n, d := range done {
		if d.Waited != (n > 1) || there(t.Context(), all[n]) != (n < 2) {
			t.Errorf("%+v", d)
		}
	}
	// Run again, what is there is not built and is looked at all the same.
	order = nil
	done, err = p.Run(t.Context(), s, look(t, s, dir), pipeline.RunOptions{After: func(_ context.Context, st *pipeline.Status) (bool, error) {
		order = append(order, st.Ref)
		return true, nil
	}})
	if err != nil || len(order) != 4 || done[0].Built || !done[3].Built {
		t.Errorf("%q, %+v, %v", order, done, err)
	}
}

// What is done after images is done for as many at once as was said: the two variants, which stand on the same image, meet.
func TestAfters(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	var mu sync.Mutex
	running, most := 0, 0
	run := func(afters int, meet bool) {
		t.Helper()
		both := make(chan struct{})
		running, most = 0, 0
		_, err := open(t, dir).Run(t.Context(), s, look(t, s, dir), pipeline.RunOptions{Afters: afters, After: func(ctx context.Context, st *pipeline.Status) (bool, error) {
			mu.Lock()
			running++
			if most = max(most, running); running == 2 {
				close(both)
			}
			mu.Unlock()
			if meet && strings.HasPrefix(st.Ref, "apps/") {
				select {
				case <-both:
				case <-time.After(10 * time.Minute):
					t.Errorf("%s is alone", st.Ref)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			running--
			return true, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if run(2, true); most != 2 {
		t.Errorf("%d at once, want 2", most)
	}
	if run(0, false); most != 1 {
		t.Errorf("%d at once, want 1", most)
	}
}
