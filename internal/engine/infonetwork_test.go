package engine

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
)

// Servers are asked once; one that wants a login or speaks without encryption is there, and an address tells no password.
func TestInfoAsksTheNetwork(t *testing.T) {
	status := http.StatusUnauthorized
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer srv.Close()
	ask := func(address string) Answer { return thereAt(address, "images").ask(t.Context()) }
	if an := ask(strings.Replace(srv.URL, "//", "//me:secret@", 1)); an.Error != "" || strings.Contains(an.Address, "secret") {
		t.Errorf("%+v", an)
	}
	if an := ask(strings.Replace(srv.URL, "http:", "https:", 1) + "/v2/"); an.Error != "" {
		t.Errorf("without encryption: %+v", an)
	}
	mirror := Answer{Address: srv.URL + "/rocky", For: "packages of rocky"}
	if all := askNetwork(t.Context(), nil, map[string]string{"rocky": srv.URL + "/rocky"}); !slices.Contains(all, mirror) {
		t.Errorf("a mirror that was named: %+v", all)
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

// Channels are asked for their index, with the user's login, at their mirrors; one that is not there, or not for this user, is of no use.
func TestInfoAsksChannels(t *testing.T) {
	server := condatest.NewChannel(t, condatest.Package{Name: "a", Version: "1", Noarch: "generic"}).Serve(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_CONFIG_HOME", "CONDA_ROOT", "CONDA_PREFIX", "CONDARC", "NETRC", "RATTLER_HOME", "RATTLER_AUTH_FILE", "CONDA_CHANNELS"} {
		t.Setenv(name, "")
	}
	ask := func(condarc string) []Answer {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, ".condarc"), []byte(condarc), 0o600); err != nil {
			t.Fatal(err)
		}
		var all []Answer
		for _, an := range askNetwork(t.Context(), nil, nil) {
			if strings.HasPrefix(an.For, "conda packages") {
				all = append(all, an)
			}
		}
		return all
	}
	is := func(name string, got []Answer, want Answer) {
		t.Helper()
		if len(got) != 1 || got[0].Address != want.Address || got[0].For != want.For || got[0].Status != want.Status || !strings.Contains(got[0].Hint, want.Hint) || want.Hint == "" && got[0].Hint != "" {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	is("there", ask("channels: ["+server.URL+"]\n"), Answer{Address: server.URL, For: "conda packages of " + server.URL})
	if got, want := server.Requests(), []string{"HEAD noarch/repodata.json"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	is("a mirror", ask("channels: [conda-forge]\nmirrored_channels: {conda-forge: ["+server.URL+"]}\n"), Answer{Address: server.URL, For: "conda packages of conda-forge"})
	is("a place", ask("channels: [channel]\ncustom_channels: {channel: "+strings.TrimSuffix(server.URL, "/channel")+"}\n"),
		Answer{Address: server.URL, For: "conda packages of channel"})
	is("not there", ask("channels: ["+server.URL+"x]\n"), Answer{Address: server.URL + "x", For: "conda packages of " + server.URL + "x", Status: http.StatusNotFound, Hint: "no channel is there"})
	server.Fail("repodata.json", 1, http.StatusTooManyRequests)
	is("asked too often", ask("channels: ["+server.URL+"]\n"), Answer{Address: server.URL, For: "conda packages of " + server.URL, Status: http.StatusTooManyRequests, Hint: "try again later"})

	server.Basic("me", "hunter22")
	is("a login is wanted", ask("channels: ["+server.URL+"]\n"), Answer{Address: server.URL, For: "conda packages of " + server.URL, Status: http.StatusUnauthorized, Hint: "asks for a login"})
	is("a login in the address", ask("channels: ["+server.WithLogin("me", "hunter22")+"]\n"), Answer{Address: server.URL, For: "conda packages of " + server.URL})
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte("machine 127.0.0.1 login me password hunter22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	is("a login in netrc", ask("channels: ["+server.URL+"]\n"), Answer{Address: server.URL, For: "conda packages of " + server.URL})

	for name, test := range map[string]struct{ condarc, hint string }{
		"no variable": {"channels: [lab]\ncustom_channels: {lab: 'https://x.example.org/t/${LAB_TOKEN}'}\n", "export LAB_TOKEN"},
		"no list":     {"channels: {}\n", ""},
	} {
		if got := ask(test.condarc); len(got) != 1 || got[0].Address != someChannels || !got[0].Unasked || got[0].Error == "" || !strings.Contains(got[0].Hint, test.hint) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := ask("channels: [/data/channel, 'oci://registry.example.org/channel']\n"); len(got) != 0 {
		t.Errorf("nobody can be asked: %+v", got)
	}
}
