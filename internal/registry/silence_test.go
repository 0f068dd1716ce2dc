package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestRegistryFallsSilent has a registry stop once, or for ever, in each thing that is asked of it before a blob.
func TestRegistryFallsSilent(t *testing.T) {
	registrytest.Isolate(t)
	for _, tc := range []struct {
		name   string
		path   string
		answer string // what comes before the silence
	}{
		{"manifest", "/manifests/", ""},
		{"within a manifest", "/manifests/", `{"schema`},
		{"token", "/token", ""},
		{"within a token", "/token", `{"tok`},
	} {
		for _, heals := range []bool{true, false} {
			t.Run(tc.name+map[bool]string{true: ", then works"}[heals], func(t *testing.T) {
				r := &tokenRegistry{good: 100, anonymous: true}
				var asked atomic.Int64
				over := make(chan struct{})
				r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					refused := req.Header.Get("Authorization") == "" && req.URL.Path != "/token"
					if refused || !strings.Contains(req.URL.Path, tc.path) || (asked.Add(1) > 1 && heals) {
						r.serve(w, req)
						return
					}
					fmt.Fprint(w, tc.answer)
					w.(http.Flusher).Flush()
					<-over
				}))
				t.Cleanup(r.Close)
				t.Cleanup(func() { close(over) })
				st := storetest.New(t)
				attempts := 3
				if heals {
					attempts = 50 // a loaded machine falls silent, too
				}
				c := fetch.New(st, fetch.Options{Backoff: time.Millisecond, Attempts: attempts, IdleTimeout: 200 * time.Millisecond})
				_, _, err := New(Endpoint{Host: r.host(), Path: "app"}, Options{Fetch: c}).Manifest(t.Context(), "v1")
				if heals && err != nil {
					t.Error(err)
				}
				if !heals && (err == nil || !strings.Contains(err.Error(), "sent nothing for too long") || asked.Load() > 3) {
					t.Errorf("asked %d times, want 3 at most; error %v", asked.Load(), err)
				}
			})
		}
	}
}
