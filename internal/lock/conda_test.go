package lock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store/storetest"
)

func writeText(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Files that all say nodefaults stay the only ones that name channels, whatever the recipe adds to them.
func TestNoDefaults(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "closed.yml"), "channels: [https://host/private, nodefaults]\ndependencies: [python]\n")
	writeText(t, filepath.Join(dir, "open.yml"), "channels: [https://host/private]\ndependencies: [python]\n")
	for _, c := range []struct {
		files  []string
		client bool
		closed bool
	}{
		{[]string{"closed.yml"}, true, true},
		{[]string{"closed.yml"}, false, true},
		{[]string{"closed.yml", "open.yml"}, true, false},
		{nil, true, false},
	} {
		r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir}
		r.Target.Platform = "linux/amd64"
		r.Conda = recipe.Conda{Environment: c.files, Client: c.client}
		k := &condaLocker{recipe: r, config: &condalock.Config{}, conda: Conda{Platform: "linux-64"}}
		got, err := k.request(&condalock.Machine{})
		if err != nil {
			t.Fatal(err)
		}
		closed := true
		for _, s := range got.Sources {
			closed = closed && s.NoDefaults
		}
		if closed != c.closed {
			t.Errorf("%q, client %t: closed %t", c.files, c.client, closed)
		}
	}
}

// Python packages of the user's own conda lock are not left out without a word.
func TestCondaLockWheels(t *testing.T) {
	dir := t.TempDir()
	own := condalock.Lock{Platforms: []condalock.Platform{{Name: "linux-64", Wheels: []condalock.Wheel{
		{Name: "einops", Version: "0.8.1", URL: "https://host/einops-0.8.1-py3-none-any.whl"},
	}}}}
	text, err := own.Write()
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, filepath.Join(dir, "conda-lock.yml"), string(text))
	writeText(t, filepath.Join(dir, "pixi.lock"), "version: 6\nenvironments:\n  default:\n    channels: []\n    packages:\n      linux-64:\n"+
		"      - pypi: https://host/einops-0.8.1-py3-none-any.whl\npackages:\n- pypi: https://host/einops-0.8.1-py3-none-any.whl\n  name: einops\n  version: 0.8.1\n")
	for _, file := range []string{"conda-lock.yml", "pixi.lock"} {
		r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Conda: recipe.Conda{Lock: file}}
		r.Target.Platform = "linux/amd64"
		if err := checkCondaWheels(r); err == nil || !strings.Contains(err.Error(), "einops==0.8.1") {
			t.Errorf("%s: %v", file, err)
		}
		r.Python.Packages = []string{"einops"}
		if err := checkCondaWheels(r); err != nil {
			t.Errorf("%s, with einops under [python]: %v", file, err)
		}
	}
}

// A key that is misspelt in an environment file is told, with its place and what may have been meant. What is spelt right is not.
func TestUnknownKeys(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "a.yml"), "name: a\nchannel: [conda-forge]\ndependencies: [python]\nvariabels: {A: 1}\n")
	writeText(t, filepath.Join(dir, "b.yml"), "dependencies: [numpy]\nplatforms: [linux-64]\ncategory: dev\nfrobnicate: 1\n")
	r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Conda: recipe.Conda{Environment: []string{"a.yml", "b.yml"}}}
	r.Target.Platform = "linux/amd64"
	var events locktest.Events
	if err := warnOfEnvironments(progress.With(t.Context(), &events), r); err != nil {
		t.Fatal(err)
	}
	told := events.Everything()
	for _, want := range []string{
		"a.yml:2:1: unknown key \"channel\" has no effect", `did you mean "channels"?`,
		"a.yml:4:1: unknown key \"variabels\" has no effect", `did you mean "variables"?`,
		"b.yml:4:1: unknown key \"frobnicate\" has no effect",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("not told: %s\n%s", want, told)
		}
	}
	if n := strings.Count(told, "unknown key"); n != 3 {
		t.Errorf("%d keys are told, and 3 are unknown:\n%s", n, told)
	}
}

// The recipe's own priority of channels goes before that of the user's configuration, and either before the usual one.
func TestChannelPriority(t *testing.T) {
	for _, c := range []struct{ recipe, user, want string }{
		{"", "", "strict"}, {"", "disabled", "disabled"}, {"flexible", "disabled", "flexible"}, {"flexible", "", "flexible"},
	} {
		r := &recipe.Recipe{Path: "sconce.toml", Conda: recipe.Conda{Packages: []string{"python"}, ChannelPriority: c.recipe}}
		k := &condaLocker{recipe: r, config: &condalock.Config{Priority: c.user}, conda: Conda{Platform: "linux-64"}}
		got, err := k.request(&condalock.Machine{})
		if err != nil || got.Priority != c.want {
			t.Errorf("%q in the recipe, %q of the user: %q, want %q (%v)", c.recipe, c.user, got.Priority, c.want, err)
		}
	}
}

// What the target has, the recipe and the base say: the driver's CUDA, the lowest of the GPUs, the processor, the C library. What the
// recipe says of virtual packages goes before, and a variable before that.
func TestMachineOfRecipe(t *testing.T) {
	for _, c := range []struct{ name, recipe, override, want string }{
		{"nothing is known", "", "", "__archspec=0=x86_64 __glibc=2.36=0 __linux=5.10=0 __unix=0=0"},
		{
			"a target", "gpu = [\"9.0\", \"8.0\", \"10.0\"]\ndriver = \"550.54.15\"\ncpu-level = 3\n", "",
			"__archspec=1=x86_64_v3 __cuda=12.4=0 __cuda_arch=8.0=0 __glibc=2.36=0 __linux=5.10=0 __unix=0=0",
		},
		{
			"virtual packages", "driver = \"550.54.15\"\n[conda]\nvirtual = { __cuda = \"12.8\", __linux = \"\", __glibc = \"2.28\" }\n", "",
			"__archspec=0=x86_64 __cuda=12.8=0 __glibc=2.28=0 __unix=0=0",
		},
		{
			"a variable", "[conda]\nvirtual = { __cuda = \"12.8\" }\n", "13.0",
			"__archspec=0=x86_64 __cuda=13.0=0 __glibc=2.36=0 __linux=5.10=0 __unix=0=0",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			locktest.Isolate(t)
			if c.override != "" {
				t.Setenv("CONDA_OVERRIDE_CUDA", c.override)
			}
			text := locktest.Head + c.recipe
			if !strings.Contains(text, "[conda]") {
				text += "[conda]\n"
			}
			r := locktest.Load(t, t.TempDir(), text+"packages = [\"python\"]\n")
			m, err := machineOf(r, "2.36")
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, v := range m.Packages {
				all = append(all, v.String())
			}
			if got := strings.Join(all, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			request, err := (&condaLocker{recipe: r, config: &condalock.Config{}, conda: Conda{Platform: "linux-64"}}).request(m)
			if wants := strings.Contains(c.recipe, "gpu ="); err != nil || request.WantsCUDA != wants {
				t.Errorf("a package without CUDA is an error: %t, want %t (%v)", request.WantsCUDA, wants, err)
			}
		})
	}
}

// A base with musl is refused before anything is asked of a channel; one with glibc is what its version says.
func TestCondaCLibrary(t *testing.T) {
	st := storetest.New(t)
	refused := func(files map[string]string) error {
		dir := locktest.Dir(t, locktest.Base{Files: files}, nil)
		r := locktest.Load(t, dir, locktest.Head+"[conda]\npackages = [\"python\"]\nchannels = [\"http://127.0.0.1:9/none\"]\n")
		_, err := Update(t.Context(), r, Options{Store: st, Fetch: fetch.New(st, fetch.Options{Attempts: 1}), Offline: true})
		return err
	}
	const glibc = "usr/lib/x86_64-linux-gnu/libc.so.6"
	err := refused(map[string]string{glibc: "", "lib/ld-musl-x86_64.so.1": "\x001.2.5\x00"})
	if err == nil || !strings.Contains(err.Error(), "the base has musl 1.2 as its C library, and conda packages need glibc") || !strings.Contains(fault.HintOf(err), "debian:12") {
		t.Errorf("musl: %v", err)
	}
	if err := refused(map[string]string{"lib/ld-musl-x86_64.so.1": "\x001.2.5\x00"}); err == nil || strings.Contains(err.Error(), "musl") {
		t.Errorf("glibc, and musl for a few programs: %v", err)
	}
}
