package bootstrap

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestNetrcIsNotForMirrors: a mirror that a recipe names sees the login of its host only with the user's word.
func TestNetrcIsNotForMirrors(t *testing.T) {
	var seen bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _, seen = req.BasicAuth()
		http.NotFound(w, req)
	}))
	defer server.Close()
	netrc := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(netrc, []byte("machine 127.0.0.1 login joe password hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NETRC", netrc)
	for _, hosts := range [][]string{nil, {"127.0.0.1"}} {
		st := storetest.New(t)
		f := fetch.New(st, fetch.Options{Attempts: 1, LoginHosts: hosts})
		if _, err := Resolve(t.Context(), st, f, Request{Suite: "trixie", Mirror: server.URL, Architecture: "amd64"}); err == nil {
			t.Error("there is nothing to resolve")
		}
		if seen != (hosts != nil) {
			t.Errorf("with %q: the login was sent: %t", hosts, seen)
		}
	}
}
