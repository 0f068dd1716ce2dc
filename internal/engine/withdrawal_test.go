package engine

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry/registrytest"
)

// warnings collects what a user is warned of.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) Emit(e progress.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == progress.Warning {
		w.said = append(w.said, e.Text)
	}
}

// Who pulls an image that is withdrawn is warned, by tag and by digest, and also once the tag is gone. Of one that is not, the registry is asked hardly
// more than for the image alone.
func TestPullOfWithdrawn(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	key, _, _ := evidencetest.Key(t)
	image := evidencetest.Image(t, inner+"/team/app", "1", "app")
	pull := func(name string, ask bool) (requests int, said []string) {
		t.Helper()
		var mu sync.Mutex
		proxy := registrytest.NewProxy(t, inner, func(http.ResponseWriter, *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			requests++
			return false
		})
		s, err := New(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "store")})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		seen := &warnings{}
		ctx := progress.With(t.Context(), seen)
		subject, err := s.Open(dockerPrefix+proxy.Host+name, Wanted{})
		if err != nil {
			t.Fatal(err)
		}
		defer subject.Close()
		tell := s.WarnIfWithdrawn(ctx, subject, nil)
		if !ask {
			tell("")
			mu.Lock()
			requests = 0
			mu.Unlock()
		}
		named, _ := s.Pull(ctx, subject, "got")
		if ask {
			tell(named.Digest)
		}
		mu.Lock()
		defer mu.Unlock()
		return requests, seen.said
	}
	alone, _ := pull("/team/app:1", false)
	asked, said := pull("/team/app:1", true)
	if len(said) > 0 || asked > alone+4 { // two of them find out what the server speaks
		t.Errorf("%d requests, and %d without asking; warned of %q", asked, alone, said)
	}
	st, client := evidencetest.Client(t)
	for _, users := range [][]string{nil, {inner + "/team/app"}} { // the tag stays, and goes
		o := promote.WithdrawOptions{Options: promote.Options{Store: st, Fetch: client}, Key: key}
		if _, err := promote.Withdraw(t.Context(), promote.Withdrawing{From: inner + "/team/app", Image: image, Users: users, Because: strings.Repeat("bad", len(users)+1)}, o); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{":1", "@" + string(image)} {
			if _, said := pull("/team/app"+name, true); len(said) != 1 || !strings.Contains(said[0], "is withdrawn: bad") {
				t.Errorf("%s: warned of %q", name, said)
			}
		}
	}
}
