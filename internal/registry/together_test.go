package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
)

// Many repositories are read with few tokens; where a server issues none for several, or one that is good for fewer of them, or hides what
// a token is not for, each has its own, and what is there is found.
func TestAskTogether(t *testing.T) {
	const repositories = 45
	registrytest.Isolate(t)
	first := func(scopes []string) ([]string, error) { return scopes[:1], nil }
	for name, tc := range map[string]struct {
		tokens *registrytest.Tokens
		issued int64
	}{
		"all":                      {&registrytest.Tokens{}, 3},
		"none for several":         {&registrytest.Tokens{Grant: func([]string) ([]string, error) { return nil, errors.New("one at a time") }}, repositories},
		"the first alone":          {&registrytest.Tokens{Grant: first}, repositories},
		"the first alone, hidden":  {&registrytest.Tokens{Grant: first, Hidden: http.StatusNotFound}, repositories},
		"the first alone, refused": {&registrytest.Tokens{Grant: first, Hidden: http.StatusForbidden}, repositories},
	} {
		t.Run(name, func(t *testing.T) {
			inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Docker-Content-Digest", "sha256:"+fmt.Sprintf("%064d", 1))
			}))
			t.Cleanup(inner.Close)
			proxy := registrytest.NewProxy(t, inner.Listener.Addr().String(), tc.tokens.Trouble)
			var repos []*Repository
			for n := range repositories {
				o := Options{Fetch: client(t)}
				if n > 0 {
					o.Beside = repos[0]
				}
				repos = append(repos, New(Endpoint{Host: proxy.Host, Path: fmt.Sprintf("team/i%d", n)}, o))
			}
			AskTogether(repos)
			var all sync.WaitGroup
			for _, r := range repos {
				all.Go(func() {
					for range 2 {
						if _, found, err := r.Head(t.Context(), "1"); err != nil || !found {
							t.Errorf("%s: found %t, %v", r.Name(), found, err)
						}
					}
				})
			}
			all.Wait()
			if n := tc.tokens.Issued.Load(); tc.issued == 3 && n != 3 || n < tc.issued {
				t.Errorf("%d tokens, want %d", n, tc.issued)
			}
		})
	}
}
