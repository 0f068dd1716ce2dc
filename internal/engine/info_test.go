package engine

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/uv"
)

// The uv that sconce has brought is not called missing.
func TestInfoFindsTheStoresUV(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	store := filepath.Join(t.TempDir(), "store")
	var s *Session
	open := func(ctx context.Context) (_ *Session, err error) {
		if s == nil {
			s, err = New(ctx, Options{Dir: store})
		}
		return s, err
	}
	found := func() host.Tool {
		tools := []host.Tool{{Name: "git"}, {Name: "uv", Install: "by itself"}}
		findUV(t.Context(), store, tools, open)
		return tools[1]
	}
	if got := found(); got.Path != "" {
		t.Errorf("there is no store, and uv is %+v", got)
	}
	if _, err := os.Stat(store); err == nil {
		t.Error("looking has made a store")
	}
	if _, err := open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := found(); got.Path != "" {
		t.Errorf("the store is empty, and uv is %+v", got)
	}
	dir, err := s.Store.Tree(t.Context(), uv.TreeName(), func(dir string) error { return os.WriteFile(filepath.Join(dir, "uv"), nil, 0o700) })
	if err != nil {
		t.Fatal(err)
	}
	if got := found(); got.Path != filepath.Join(dir, "uv") || !strings.Contains(got.Version, uv.Version) {
		t.Errorf("uv is %+v, want that in %s", got, dir)
	}
}

// Servers are asked once; one that wants a login or speaks without encryption is there, and an address tells no password.
func TestInfoAsksTheNetwork(t *testing.T) {
	status := http.StatusUnauthorized
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer srv.Close()
	ask := func(address string) Answer {
		an := Answer{Address: address}
		an.ask(t.Context())
		return an
	}
	if an := ask(strings.Replace(srv.URL, "//", "//me:secret@", 1)); an.Error != "" || strings.Contains(an.Address, "secret") {
		t.Errorf("%+v", an)
	}
	if an := ask(strings.Replace(srv.URL, "http:", "https:", 1) + "/v2/"); an.Error != "" {
		t.Errorf("without encryption: %+v", an)
	}
	status = http.StatusBadGateway
	if an := ask(srv.URL); !strings.Contains(an.Error, "502") {
		t.Errorf("%+v", an)
	}
	srv.Close()
	if an := ask(srv.URL); an.Error == "" || an.Err == nil {
		t.Errorf("nobody is there: %+v", an)
	}
}
