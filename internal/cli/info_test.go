package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/uv"
)

// What is said of a machine fits a terminal of 60 columns, words apart that are wider than that.
func TestInfoFitsATerminal(t *testing.T) {
	in := hostInfo{
		Sandbox: sandboxState{Error: "user namespaces are switched off on this machine, so that no command can be run in an image", Hint: "ask an administrator to set what is named below to another value"},
		Report: host.Report{
			Store: host.StorePlace{Dir: "/home/me/.local/share/sconce", FileSystem: host.FileSystem{
				Type: "nfs", Free: 1e9, Size: 1e12, Files: 1e6, FreeFiles: 5e4, Advice: "a store here works, but builds are faster with SCONCE_STORE on a local disk",
			}},
			Tools: []host.Tool{
				{Name: "uv", Purpose: "resolves Python packages (sconce lock, the first sconce build)", Install: "it comes by itself, from your Python index, when it is needed first"},
				{Name: "git", Purpose: "fetches Python packages that a recipe names by a git URL", Path: "/usr/bin/git", Version: "git version 2.39.5"},
			},
		},
		Quota:  &host.Quota{Bytes: 9e9, MaxBytes: 1e10, Files: 10, MaxFiles: 1000},
		Logins: []registry.Known{{Name: "registry.example.org/team", From: "/home/me/.config/containers/auth.json"}},
	}
	for line := range strings.Lines(in.text(60)) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	text := in.text(0)
	for _, want := range []string{"50000 of 1000000 inodes", "9.0 GB of 10.0 GB used", "10 of 1000 files used", "that is little", "registry.example.org/team, by /home/me"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q in\n%s", want, text)
		}
	}
	in.Quota, in.Store.Free, in.Store.FreeFiles = nil, 1e11, 5e5
	if text := in.text(0); strings.Contains(text, "little") || strings.Contains(text, "quota") {
		t.Errorf("there is enough of everything:\n%s", text)
	}
}

// The uv that sconce has brought is not called missing.
func TestInfoFindsTheStoresUV(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	a := &app{flags: globalFlags{store: filepath.Join(t.TempDir(), "store")}}
	found := func() host.Tool {
		tools := []host.Tool{{Name: "git"}, {Name: "uv", Install: "by itself"}}
		a.findUV(t.Context(), a.flags.store, tools)
		return tools[1]
	}
	if got := found(); got.Path != "" {
		t.Errorf("there is no store, and uv is %+v", got)
	}
	if _, err := os.Stat(a.flags.store); err == nil {
		t.Error("looking has made a store")
	}
	s, err := a.open(t.Context())
	if err != nil {
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
	ask := func(address string) answer {
		an := answer{Address: address}
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
	if an := ask(srv.URL); an.Error == "" || an.Hint == "" {
		t.Errorf("nobody is there: %+v", an)
	}
	a := &app{flags: globalFlags{offline: true}}
	if got := a.askNetwork(t.Context(), []registry.Known{{Name: "registry.invalid"}}); got != nil {
		t.Errorf("--offline asks %+v", got)
	}
}
