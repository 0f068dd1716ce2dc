package condalock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/tooltest"
)

// What rattler wrote down of packages that it installed makes the lock that the channel would give, without the token that was in
// its address.
func TestInstalled(t *testing.T) {
	tooltest.Path(t, "uv")
	channel := condatest.NewChannel(t,
		condatest.Package{Name: "libx", Version: "1.0", License: "MIT", Constrains: []string{"liby >2"}, Files: map[string]condatest.File{"lib/libx.txt": {Data: "at " + condatest.Placeholder + "\n"}}},
		condatest.Package{Name: "tool", Version: "2.0", Noarch: "generic", Depends: []string{"libx >=1"}, Files: map[string]condatest.File{"share/tool": {Data: "tool\n"}}},
	)
	server := channel.Serve(t)
	server.Token("tk-secret")
	prefix := filepath.Join(t.TempDir(), "env")
	condatest.Install(t, server.WithToken("tk-secret"), "linux-64", "/opt/conda", prefix, "tool")
	records, err := filepath.Glob(filepath.Join(prefix, "conda-meta", "*.json"))
	if err != nil || len(records) != 2 {
		t.Fatalf("records: %q, %v", records, err)
	}
	var l Lock
	for _, file := range records {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParseInstalled(data)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Add("linux-64", p); err != nil {
			t.Fatal(err)
		}
	}
	want := conda.SortPackages(channel.Packages(server.URL))
	if diff := cmp.Diff(want, l.Platforms[0].Packages, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-channel +installed:\n%s", diff)
	}
	if diff := cmp.Diff([]string{server.URL}, l.Channels); diff != "" {
		t.Error(diff)
	}
}

// Records may be anything: what cannot be locked is an error that names the package.
func TestInstalledWrong(t *testing.T) {
	for text, want := range map[string]string{
		"{":                                  "cannot be read",
		`{"name": "own", "version": "1"}`:    "own 1: its record has no address",
		`{"name": "own", "url": "not here"}`: "is not the address of a package",
		`{"name": "other", "url": "https://host/c/linux-64/own-1-0.conda"}`:                               "the address is of own",
		`{"name": "own", "url": "https://host/c/linux-64/own-1-0.conda", "md5": "x"}`:                     "its MD5",
		`{"name": "own", "url": "https://host/c/linux-64/own-1-0.conda", "sha256": "..", "version": "1"}`: "own",
	} {
		if _, err := ParseInstalled([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	p, err := ParseInstalled([]byte(`{"name": "own", "url": "https://host/c/linux-64/own-1-0.conda"}`))
	if err != nil {
		t.Fatal(err)
	}
	var l Lock
	if err := l.Add("linux-64", p, p); err == nil || !strings.Contains(err.Error(), "own: it is there twice") {
		t.Errorf("the same package twice: %v", err)
	}
}

// rattler reads the list of addresses as it is meant.
func TestExplicitByRattler(t *testing.T) {
	tooltest.Path(t, "uv")
	file := filepath.Join(t.TempDir(), "explicit.txt")
	part := sample().Platforms[0]
	write(t, file, string(part.Explicit()))
	out := condatest.Python(t, []string{"py-rattler==" + Rattler}, `
import pathlib, sys
from rattler.explicit_environment import ExplicitEnvironmentSpec
spec = ExplicitEnvironmentSpec.from_path(pathlib.Path(sys.argv[1]))
print(spec.platform)
for p in spec.packages:
    print(p.url)
`, file)
	want := "linux-64\n"
	for _, p := range conda.SortPackages(part.Packages) {
		want += p.URL + "#" + p.SHA256.Hex() + "\n"
	}
	if out != want {
		t.Errorf("rattler reads:\n%swant:\n%s", out, want)
	}
}
