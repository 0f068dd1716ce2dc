package fetch

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store/storetest"
)

// netrc's login is not for an address that only a recipe names: what comes is in reach of its steps.
func TestNetrcIsNotForRecipes(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer srv.Close()
	netrc := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(netrc, []byte("machine 127.0.0.1 login joe password hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NETRC", netrc)
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		ofRecipe bool
		hosts    []string
		let      bool
	}{
		{false, nil, true},
		{true, nil, false},
		{true, []string{"other.example.org", "127.0.0.1:1"}, false},
		{true, []string{"127.0.0.1"}, true},
		{true, []string{at.Host}, true},
	} {
		c := New(storetest.New(t), Options{Attempts: 1, LoginHosts: test.hosts})
		_, err := c.Unpinned(t.Context(), Request{URL: srv.URL + "/private.tar", OfRecipe: test.ofRecipe})
		if (err == nil) != test.let {
			t.Errorf("%+v: %v", test, err)
		}
		if err != nil && !strings.Contains(fault.HintOf(err), "--allow-login "+at.Host) {
			t.Errorf("%+v: the hint is %q", test, fault.HintOf(err))
		}
	}
}
