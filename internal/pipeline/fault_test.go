package pipeline_test

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/registry/registrytest"
)

// A registry stops working in the middle of a whole pipeline, a little later each time. Run again each time, it comes to its end; until then
// nothing is taken for done that is not, and in the end nothing is missing.
func TestRunWithFailingRegistry(t *testing.T) {
	locktest.Isolate(t)
	registrytest.Isolate(t)
	outsideCI(t)
	var left atomic.Int64 // requests that the registry answers before it stops
	proxy := registrytest.NewProxy(t, registrytest.Start(t, false), func(w http.ResponseWriter, _ *http.Request) bool {
		if left.Add(-1) >= 0 {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store"), Patience: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	dir := write(t, s, proxy.Host)
	key, private, _ := evidencetest.Key(t)
	change(t, dir, "pipeline.toml", "mutable =", "sign = \"file:"+private+"\"\nmutable =")
	attempt := func() error {
		p := open(t, dir)
		images, err := p.Images(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.Look(t.Context(), s, images)
		if err != nil {
			return err
		}
		_, err = p.Run(t.Context(), s, all, pipeline.RunOptions{After: func(ctx context.Context, st *pipeline.Status) (bool, error) {
			_, err := p.Promote(ctx, s, st.Image, engine.Promoting{})
			return err == nil, err
		}})
		return err
	}
	failures := 0
	for answers := int64(5); ; answers += 20 {
		left.Store(answers)
		err := attempt()
		if err == nil {
			break
		}
		if failures++; !strings.Contains(err.Error(), "503") {
			t.Fatalf("after %d requests: %v", answers, err)
		}
	}
	if failures < 5 {
		t.Errorf("it failed %d times", failures)
	}
	left.Store(1_000_000)
	for _, st := range look(t, newSession(t), dir) {
		if st.Action != pipeline.Fine {
			t.Errorf("%s: %s because %q", st.Image.Ref, st.Action, st.Reasons)
		}
		got, err := s.Verify(t.Context(), st.Canonical, "", []*attest.PublicKey{key.Public()})
		if want := []string{engine.Provenance, engine.SBOM, engine.SPDX, engine.Facts}; err != nil || !slices.Equal(got.Signed, want) {
			t.Errorf("%s has %+v, %v; want %q", st.Canonical, got, err, want)
		}
	}
}
