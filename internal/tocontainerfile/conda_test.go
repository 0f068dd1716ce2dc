package tocontainerfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
)

const condaText = `
name = "demo"
[base]
image = "registry.example.org/debian:12"
[conda]
environment = ["environment.yml"]
[python]
packages = ["torch"]
prefer = ["torch"]
`

// lockConda adds the packages of a channel to a lock.
func lockConda(t *testing.T, r *recipe.Recipe, l *lock.Lock, c *condatest.Channel, url string) {
	t.Helper()
	file := condalock.Lock{Channels: []string{url}, Platforms: []condalock.Platform{{Name: condatest.Subdir(), Packages: c.Packages(url)}}}
	data, err := file.Write()
	if err == nil {
		err = os.WriteFile(filepath.Join(r.Dir, "conda-lock.yml"), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Conda = &lock.Conda{File: "conda-lock.yml", Prefix: "/opt/conda", Platform: condatest.Subdir()}
}

// What a Containerfile says of conda packages is what the lock has of them, and what it runs lays down just these.
func TestWriteConda(t *testing.T) {
	tools := condatest.Package{Name: "my-tools", Version: "1.0", Subdir: condatest.Subdir(), Files: map[string]condatest.File{
		"bin/tools":                  {Data: "#!" + condatest.Placeholder + "/bin/sh\n", Mode: 0o755},
		"lib/tools.bin":              {Data: "\x00" + condatest.Placeholder + "/lib\x00\x00"},
		"bin/.my-tools-post-link.sh": {Data: "echo linked > \"$PREFIX/linked\"\n"},
	}}
	notLocked := condatest.Package{Name: "my-tools", Version: "2.0", Noarch: "generic"}
	channel := condatest.NewChannel(t, tools, condatest.Package{Name: "data", Version: "0.1", Noarch: "generic", Depends: []string{"my-tools"}, Files: map[string]condatest.File{"share/data": {Data: "data\n"}}})
	server := channel.Serve(t)
	r, l := load(t, condaText), locked()
	l.System, l.Python.Executable = nil, "/opt/conda/bin/python3.11"
	lockConda(t, r, l, channel, server.URL)
	text, err := write(r, l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	golden := text
	for _, p := range channel.Packages(server.URL) {
		golden = strings.ReplaceAll(golden, p.SHA256.Hex(), "HASH-OF-"+p.File)
	}
	golden = strings.ReplaceAll(strings.ReplaceAll(golden, server.URL, "https://conda.example.org/c"), condatest.Subdir(), "linux-64")
	wantGolden(t, "testdata/conda.containerfile", golden)

	stage := last(t, text)
	if got, want := strings.Join(stage.Config.Env, "|"), "PATH=/opt/conda/bin:/bin|CONDA_DEFAULT_ENV=base|CONDA_PREFIX=/opt/conda|CONDA_PROMPT_MODIFIER=(base) |CONDA_SHLVL=1|LEVEL=it's $3"; got != want {
		t.Errorf("environment:\n got %s\nwant %s", got, want)
	}
	_, script, ok := strings.Cut(text, "<<'PACKAGES'\n")
	script, _, ends := strings.Cut(script, "\nPACKAGES\n")
	if !ok || !ends {
		t.Fatalf("no script in\n%s", text)
	}
	channel.Add(t, notLocked)
	t.Setenv("RATTLER_CACHE_DIR", t.TempDir())
	prefix := filepath.Join(t.TempDir(), "env")
	condatest.Python(t, []string{condatest.Rattler}, script+"\n", prefix, condatest.Subdir(), "with-link-scripts")
	for name, want := range map[string]string{"bin/tools": "#!" + prefix + "/bin/sh\n", "share/data": "data\n", "linked": "linked\n"} {
		if data, err := os.ReadFile(filepath.Join(prefix, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v; want %q", name, data, err, want)
		}
	}
}

// What is compiled against a conda environment no Containerfile builds as the recipe does.
func TestWriteCondaCompiled(t *testing.T) {
	r, l := loadCompiled(t)
	lockConda(t, r, l, condatest.NewChannel(t, condatest.Package{Name: "data", Version: "0.1", Noarch: "generic"}), "https://conda.example.org/c")
	_, err := write(r, l, Options{})
	if err == nil || !strings.Contains(err.Error(), "no way to compile Python packages against a conda environment") || fault.HintOf(err) == "" {
		t.Errorf("error: %v", err)
	}
}
