package registrytest

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// StartWithConditions starts docker-registry behind a proxy of ours that holds it to the conditions of HTTP, which docker-registry ignores: it
// writes a manifest with If-None-Match: * only if there is none, and with If-Match only if there is the one of that digest. It returns HOST:PORT.
func StartWithConditions(t testing.TB) string {
	t.Helper()
	inner := Start(t, false)
	var mu sync.Mutex // looking and writing are one
	return NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if !conditionsHold(t, inner, r) {
			w.WriteHeader(http.StatusPreconditionFailed)
			return true
		}
		Forward(inner, w, r)
		return true
	}).Host
}

// conditionsHold reports whether what a request wants of what is there now is so.
func conditionsHold(t testing.TB, host string, r *http.Request) bool {
	absent, still := r.Header.Get("If-None-Match") == "*", r.Header.Get("If-Match")
	if !absent && still == "" {
		return true
	}
	head, err := http.NewRequestWithContext(r.Context(), http.MethodHead, "http://"+host+r.URL.Path, nil)
	if err != nil {
		t.Error(err)
		return false
	}
	head.Header.Set("Accept", string(types.OCIManifestSchema1+", "+types.OCIImageIndex))
	resp, err := http.DefaultClient.Do(head)
	if err != nil {
		return false // it went away, and answers with an error by itself
	}
	resp.Body.Close()
	if absent {
		return resp.StatusCode == http.StatusNotFound
	}
	return still == `"`+resp.Header.Get("Docker-Content-Digest")+`"`
}
