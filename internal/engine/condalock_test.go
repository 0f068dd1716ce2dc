package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/torecipe"
)

// plain is a package of one file.
func plain(name, version string) condatest.Package {
	return condatest.Package{Name: name, Version: version, Noarch: "generic", Files: map[string]condatest.File{"share/" + name: {Data: version + "\n"}}}
}

// condaTable writes a recipe whose [conda] says this.
func condaTable(text string) map[string]string {
	return map[string]string{recipe.FileName: "name = \"env\"\n[base]\nimage = \"tar:root.tar\"\n[conda]\n" + text}
}

// lockedPackages are the packages of the environment of a recipe, as the lock has them: "a 1.0, b 1.0".
func lockedPackages(t *testing.T, s *engine.Session, dir string, o engine.LockOptions) string {
	t.Helper()
	l, err := lockIn(t, s, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range l.Conda.Packages {
		all = append(all, p.Name+" "+p.Version)
	}
	return strings.Join(all, ", ")
}

func lockIn(t *testing.T, s *engine.Session, dir string, o engine.LockOptions) (*engine.Locked, error) {
	t.Helper()
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Lock(t.Context(), r, o)
}

// What was chosen stays, whatever the channel has by now, until somebody asks for the newest of one or of all. Without a network, what
// the store knows of the channel is enough to choose again.
func TestCondaUpgrade(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, plain("a", "1.0"), plain("b", "1.0"), plain("c", "1.0"))
	server := channel.Serve(t)
	table := func(packages string) map[string]string {
		return condaTable("packages = [" + packages + "]\nchannels = [\"" + server.URL + "\"]\n")
	}
	dir := condaRecipe(t, "", table(`"a", "b"`))
	s := newSession(t)
	want := func(what, packages string, o engine.LockOptions) {
		t.Helper()
		if got := lockedPackages(t, s, dir, o); got != packages {
			t.Errorf("%s: %s, want %s", what, got, packages)
		}
	}
	want("first", "a 1.0, b 1.0", engine.LockOptions{})
	channel.Add(t, plain("a", "1.1"), plain("b", "1.1"))
	want("again", "a 1.0, b 1.0", engine.LockOptions{})
	locktest.Write(t, dir, table(`"a", "b", "c"`))
	_, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "+ conda.packages c") {
		t.Errorf("--locked: %v", err)
	}
	want("one package more", "a 1.0, b 1.0, c 1.0", engine.LockOptions{})
	want("the newest of b", "a 1.0, b 1.1, c 1.0", engine.LockOptions{Packages: []string{"B"}})
	want("the newest of all", "a 1.1, b 1.1, c 1.0", engine.LockOptions{Upgrade: true})

	s.Offline = true
	server.Requests()
	locktest.Write(t, dir, table(`"a <1.1", "c"`))
	want("offline", "a 1.0, c 1.0", engine.LockOptions{})
	if asked := server.Requests(); len(asked) > 0 {
		t.Errorf("offline, the channel was asked for %q", asked)
	}
	other := newSession(t)
	other.Offline = true
	locktest.Write(t, dir, table(`"b"`))
	if _, err := lockIn(t, other, dir, engine.LockOptions{}); err == nil {
		t.Error("offline, and nothing is known of the channel: no error")
	}
}

// Of a conda-lock.yml that somebody brings, the categories count that the recipe names, and of a pixi.lock the environment.
func TestCondaLockParts(t *testing.T) {
	channel := condatest.NewChannel(t, plain("a", "1.0"), plain("b", "1.0"))
	server := channel.Serve(t)
	categories := "version: 1\nmetadata: {channels: [], platforms: [" + condatest.Subdir() + "], sources: []}\npackage:\n"
	pixi := "version: 6\nenvironments:\n  default: {channels: [], packages: {" + condatest.Subdir() + ": [{conda: A}]}}\n  dev: {channels: [], packages: {" + condatest.Subdir() + ": [{conda: A}, {conda: B}]}}\npackages:\n"
	for _, p := range channel.Packages(server.URL) {
		category := map[string]string{"a": "main", "b": "dev"}[p.Name]
		categories += fmt.Sprintf("- {name: %s, version: '1.0', manager: conda, platform: %s, dependencies: {}, url: %q, hash: {sha256: %s}, category: %s, optional: %v}\n",
			p.Name, condatest.Subdir(), p.URL, p.SHA256.Hex(), category, category == "dev")
		pixi = strings.ReplaceAll(pixi, strings.ToUpper(p.Name)+"}", p.URL+"}") + fmt.Sprintf("- {conda: %q, sha256: %s, size: %d}\n", p.URL, p.SHA256.Hex(), p.Size)
	}
	s := newSession(t)
	for _, test := range []struct{ table, want string }{
		{"lock = \"conda-lock.yml\"\n", "a 1.0"},
		{"lock = \"conda-lock.yml\"\nlock-categories = [\"dev\"]\n", "a 1.0, b 1.0"},
		{"lock = \"pixi.lock\"\n", "a 1.0"},
		{"lock = \"pixi.lock\"\nlock-environment = \"dev\"\n", "a 1.0, b 1.0"},
	} {
		files := condaTable(test.table)
		files["conda-lock.yml"], files["pixi.lock"] = categories, pixi
		dir := condaRecipe(t, "", files)
		if got := lockedPackages(t, s, dir, engine.LockOptions{}); got != test.want {
			t.Errorf("%s: %s, want %s", test.table, got, test.want)
		}
		if _, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{}); err != nil {
			t.Errorf("%s: built with --locked: %v", test.table, err)
		}
	}
}

// What `sconce init` writes for an environment file, for a conda-lock.yml and for a pixi.lock means what these say.
func TestCondaInit(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, plain("a", "1.0"), plain("a", "2.0"), plain("b", "1.0"))
	server := channel.Serve(t)
	dir := condaRecipe(t, "", map[string]string{
		"first.yml": environmentFile(server.URL, "name: first\ndependencies: [a=1.0]\n"), "second.yml": environmentFile(server.URL, "dependencies: [b]\n"),
	})
	s := newSession(t)
	how := torecipe.Options{Name: "env", Base: "tar:root.tar", Dir: dir}
	want := func(text []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		locktest.Write(t, dir, map[string]string{recipe.FileName: string(text)})
		if got := lockedPackages(t, s, dir, engine.LockOptions{Upgrade: true}); got != "a 1.0, b 1.0" {
			t.Errorf("locked: %s, of\n%s", got, text)
		}
		built, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
		if err != nil || runIn(t, s, built.Image, "cat", "/opt/conda/share/a") != "1.0" {
			t.Errorf("built: %v", err)
		}
	}
	want(torecipe.FromEnvironments([]string{filepath.Join(dir, "first.yml"), filepath.Join(dir, "second.yml")}, how))

	pixi, packages := "version: 6\nenvironments:\n  default:\n    channels: []\n    packages:\n      "+condatest.Subdir()+":\n", "packages:\n"
	for _, p := range channel.Packages(server.URL) {
		if p.Version == "1.0" {
			pixi += "      - conda: " + p.URL + "\n"
			packages += fmt.Sprintf("- conda: %s\n  sha256: %s\n  size: %d\n", p.URL, p.SHA256.Hex(), p.Size)
		}
	}
	locktest.Write(t, dir, map[string]string{"my-conda-lock.yml": read(t, filepath.Join(dir, "conda-lock.yml")), "pixi.lock": pixi + packages})
	want(torecipe.FromCondaLock(filepath.Join(dir, "my-conda-lock.yml"), how))
	want(torecipe.FromCondaLock(filepath.Join(dir, "pixi.lock"), how))
}

// Of packages without a SHA-256 the channel is asked for one; where that has none either, they are brought, and the MD5 has to be right.
func TestCondaWithoutSHA256(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, plain("old", "1.0"), plain("new", "1.0"), plain("bad", "1.0"))
	channel.Lie(t, "old-1.0-0.conda", "sha256", nil)
	channel.Lie(t, "bad-1.0-0.conda", "sha256", nil)
	channel.Lie(t, "bad-1.0-0.conda", "md5", strings.Repeat("0", 32))
	server := channel.Serve(t)
	dir := condaRecipe(t, "", condaTable("packages = [\"old\"]\nchannels = [\""+server.URL+"\"]\n"))
	s := newSession(t)
	built, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, s, built.Image, "cat", "/opt/conda/share/old"); got != "1.0" {
		t.Errorf("old: %q", got)
	}
	sums := map[string]string{}
	for _, p := range channel.Packages(server.URL) {
		sums[p.Name] = p.SHA256.Hex()
	}
	if text := read(t, filepath.Join(dir, "conda-lock.yml")); !strings.Contains(text, "sha256: "+sums["old"]) {
		t.Errorf("the lock has not found out the SHA-256:\n%s", text)
	}

	locktest.Write(t, dir, condaTable("packages = [\"bad\"]\nchannels = [\""+server.URL+"\"]\n"))
	if _, err := lockIn(t, s, dir, engine.LockOptions{}); err == nil || !strings.Contains(err.Error(), "bad-1.0-0.conda has the MD5 ") {
		t.Errorf("another MD5 than the channel's: %v", err)
	}

	own := condaTable("lock = \"list.txt\"\n")
	own["list.txt"] = fmt.Sprintf("@EXPLICIT\n%s/noarch/new-1.0-0.conda\n", server.URL)
	locktest.Write(t, dir, own)
	server.Requests()
	l, err := lockIn(t, s, dir, engine.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Conda.Packages[0].SHA256.Hex(); got != sums["new"] {
		t.Errorf("a lock without hashes: %s, and the channel says %s", got, sums["new"])
	}
	for _, asked := range server.Requests() {
		if strings.HasSuffix(asked, ".conda") {
			t.Errorf("for its hash, a package was brought: %s", asked)
		}
	}
	built, err = build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err != nil || runIn(t, s, built.Image, "cat", "/opt/conda/share/new") != "1.0" {
		t.Errorf("built from it: %v", err)
	}
	own["list.txt"] = fmt.Sprintf("@EXPLICIT\n%s/noarch/old-1.0-0.conda\n", server.URL)
	locktest.Write(t, dir, own)
	if _, err := lockIn(t, s, dir, engine.LockOptions{}); err == nil || !strings.Contains(err.Error(), "the lock has no hash of old-1.0-0.conda") {
		t.Errorf("no hash anywhere: %v", err)
	}
}

// Channels that ask for a licence are used by who accepts it, and nobody else; the client comes from the channels that there are.
func TestCondaLicencesAndClient(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, plain("a", "1.0"), plain("conda", "26.7.1"), plain("mamba", "2.8.1")).Serve(t)
	config := t.TempDir()
	t.Setenv("RATTLER_HOME", config)
	locktest.Write(t, config, map[string]string{"config.toml": "[mirrors]\n\"https://repo.anaconda.com/pkgs/main\" = [\"" + channel.URL + "\"]\n"})
	files := condaTable("environment = [\"env.yml\"]\n")
	files["env.yml"] = "channels: [https://repo.anaconda.com/pkgs/main, nodefaults]\ndependencies: [a]\nvariabels: {}\n"
	dir := condaRecipe(t, "", files)
	s := newSession(t)
	_, err := lockIn(t, s, dir, engine.LockOptions{})
	if err == nil || !strings.Contains(err.Error(), "repo.anaconda.com") {
		t.Errorf("without acceptance: %v", err)
	}
	if asked := channel.Requests(); len(asked) > 0 {
		t.Errorf("and it was asked for %q", asked)
	}
	locktest.Write(t, dir, condaTable("environment = [\"env.yml\"]\naccept-licenses = true\nclient = true\n"))
	var events locktest.Events
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock(progress.With(t.Context(), &events), r, engine.LockOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Anaconda's terms of service", `env.yml:3:1: unknown key "variabels"`} {
		if !strings.Contains(events.Everything(), want) {
			t.Errorf("not told: %s\n%s", want, events.Everything())
		}
	}
	if got := lockedPackages(t, s, dir, engine.LockOptions{}); got != "a 1.0, conda 26.7.1, mamba 2.8.1" {
		t.Errorf("accepted, with a client: %s", got)
	}
}

// What a channel says of a package and is not so is told by the package's name, whether the solver, the answer or the download shows it.
// Nothing of it stays: no lock that nobody can read, a store that is sound, in which the package of an honest channel is built.
func TestCondaChannelLies(t *testing.T) {
	locktest.UV(t)
	s := newSession(t)
	for _, test := range []struct {
		key   string
		value any
		want  string
	}{
		{"sha256", strings.Repeat("0", 64), "wrong hash"},
		{"size", 1, "wrong size"},
		{"version", "2.0", "the address is of version 1.0, and not 2.0: "},
		{"build", "h1_0", "the address is of build 0, and not h1_0: "},
		{"subdir", "../../x", `its subdirectory "../../x" is wrong`},
		{"depends", []any{"=== ???"}, "=== ???"},
	} {
		t.Run(fmt.Sprint(test.key, test.value), func(t *testing.T) {
			channel := condatest.NewChannel(t, plain("lies", "1.0"))
			dir := condaRecipe(t, "", condaTable("packages = [\"lies\"]\nchannels = [\""+channel.Serve(t).URL+"\"]\n"))
			channel.Lie(t, "lies-1.0-0.conda", test.key, test.value)
			_, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "lies") {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "conda-lock.yml")); err == nil && test.key != "sha256" && test.key != "size" {
				t.Error("there is a lock of it")
			}
		})
	}
	if report, err := s.Store.Verify(t.Context(), false); err != nil || len(report.Damaged) > 0 {
		t.Errorf("the store: %+v, %v", report.Damaged, err)
	}
	truth := condaRecipe(t, "", condaTable("packages = [\"lies\"]\nchannels = [\""+condatest.NewChannel(t, plain("lies", "1.0")).Serve(t).URL+"\"]\n"))
	if _, err := build(t.Context(), s, truth, engine.PlanOptions{}, engine.BuildOptions{}); err != nil {
		t.Errorf("of a channel that says the truth: %v", err)
	}
}

// What an environment file says to pip counts as pip reads it: where the index is and which other there is, a file beside it, hashes,
// a project that is edited in place.
func TestCondaPipOptions(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, condatest.LeanPython(t)).Serve(t)
	alpha, beta, gamma := locktest.Wheel{Name: "alpha", Version: "1.5"}, locktest.Wheel{Name: "beta", Version: "0.1"}, locktest.Wheel{Name: "gamma", Version: "3.0"}
	index, other := locktest.NewIndex(t, alpha, beta), locktest.NewIndex(t, gamma)
	indexes := "--index-url " + index.URL + ", --extra-index-url " + other.URL + ", "
	hashed := func(w locktest.Wheel, sum store.Digest) string {
		return w.Name + "==" + w.Version + " --hash=sha256:" + sum.Hex()
	}
	sum := func(w locktest.Wheel) store.Digest { return store.DigestOf(w.Bytes(t)) }
	files := func(pip, list string) map[string]string {
		return map[string]string{
			recipe.FileName:            "name = \"env\"\n[base]\nimage = \"tar:root.tar\"\n[conda]\nenvironment = [\"envs/a.yml\"]\n",
			"envs/a.yml":               environmentFile(channel.URL, "dependencies:\n- python\n- pip: ["+pip+"]\n"),
			"envs/more/list.txt":       list + "\n",
			"envs/mine/pyproject.toml": "[project]\nname = \"mine\"\nversion = \"1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
			"envs/mine/backend.py":     "",
		}
	}
	s := newSession(t)
	for _, test := range []struct {
		name, pip, list string
		want            []string // in pylock.toml, or in the error
		fails           bool
	}{
		{
			name: "indexes, a file, a project", pip: indexes + "alpha, gamma, -r more/list.txt, -e ./mine", list: "beta",
			want: []string{index.FileURL(alpha.File()), index.FileURL(beta.File()), other.FileURL(gamma.File()), "envs/mine"},
		},
		{
			name: "hashes", pip: indexes + hashed(alpha, sum(alpha)) + ", -r more/list.txt", list: hashed(beta, sum(beta)) + " \\\n  --hash=sha256:" + sum(gamma).Hex(),
			want: []string{sum(alpha).Hex(), sum(beta).Hex()},
		},
		{
			name: "another's hash, and none", pip: indexes + hashed(alpha, sum(beta)) + ", -r more/list.txt", list: "beta==0.1",
			want: []string{"alpha 1.5", "which envs/a.yml:4 does not allow", "beta 0.1: it has no hash"}, fails: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := condaRecipe(t, "", nil)
			locktest.Write(t, dir, files(test.pip, test.list))
			_, err := lockIn(t, s, dir, engine.LockOptions{})
			var text string
			switch {
			case test.fails && err == nil:
				t.Fatal("no error")
			case test.fails:
				text = err.Error()
			case err != nil:
				t.Fatal(err)
			default:
				text = read(t, filepath.Join(dir, "pylock.toml"))
			}
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("not told: %s\n%s", want, text)
				}
			}
		})
	}
}
