package lock_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// sdist is a source distribution whose setup.py leaves a file at the path in its text, if anybody runs it.
func sdist(t testing.TB, name, version, metadata, trap string, more map[string]string) []byte {
	t.Helper()
	top := name + "-" + version + "/"
	files := map[string]string{
		top + "PKG-INFO": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + metadata,
		top + "setup.py": "open('" + trap + "', 'w').close()\n",
	}
	for file, text := range more {
		files[top+file] = text
	}
	maps.DeleteFunc(files, func(_, text string) bool { return text == "" })
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(files[file])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[file])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// trap returns a path that no source may write, which the test looks at in its end.
func trap(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ran")
	t.Cleanup(func() {
		if _, err := os.Stat(path); err == nil {
			t.Error("the code of a source was run")
		}
	})
	return path
}

// names are what a lock installs and what it builds, with versions.
func (b *bench) names(text string) (wheels, compiled []string, l *lock.Files) {
	b.t.Helper()
	r, l := b.lock(text)
	all, err := wheelsOf(l, r)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, w := range all {
		wheels = append(wheels, w.Name+" "+w.Version)
	}
	builds, err := compilesOf(l, r)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range builds {
		compiled = append(compiled, c.Name+" "+c.Version)
	}
	return wheels, compiled, l
}

// TestSources: a package without a wheel comes as its source, with what it depends on, and nothing of it is run.
func TestSources(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("dep", "1.0"), w("dep", "2.0"), w("both", "1.0"))
	run := trap(t)
	x.AddFile("src-2.0.tar.gz", sdist(t, "src", "2.0", "Requires-Dist: dep<2\nRequires-Dist: other\n", run, nil))
	x.AddFile("other-1.0.tar.gz", sdist(t, "other", "1.0", "", run, map[string]string{"other.egg-info/requires.txt": "both\n"}))
	x.AddFile("both-1.0.tar.gz", sdist(t, "both", "1.0", "", run, nil))
	const text = "[python]\npackages = [\"src\"]\n"
	wheels, compiled, l := b.names(text)
	if diff := cmp.Diff([]string{"both 1.0", "dep 1.0"}, wheels); diff != "" {
		t.Errorf("wheels (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"other 1.0", "src 2.0"}, compiled); diff != "" {
		t.Errorf("compiled (-want +got)\n%s", diff)
	}
	for _, c := range l.Python.Compiled {
		if len(c.Requires) != 1 || c.Requires[0].Name != "setuptools" || c.Requires[0].Digest == "" || !c.Isolation {
			t.Errorf("%+v", c)
		}
	}
	x.Add(t, w("setuptools", "71.0"))
	if _, _, again := b.names(text + "[python.compile.src]\nisolation = true\n"); again.Python.Compiled[1].Requires[0].Version != "70.0" {
		t.Errorf("what was pinned is not kept: %+v", again.Python.Compiled)
	}
	r := b.recipe(text + "[python.compile.src]\nrequires = [\"dep\"]\n")
	if drift, err := driftOf(l, r); err != nil || len(drift) != 1 || !strings.Contains(drift[0], "src requires dep") {
		t.Errorf("drift %q, %v", drift, err)
	}
}

// TestSourceAgainstConflict: what a version of a source depends on, learned late, makes uv choose another.
func TestSourceAgainstConflict(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("dep", "1.0"), w("dep", "2.0"))
	run := trap(t)
	x.AddFile("src-1.0.tar.gz", sdist(t, "src", "1.0", "Requires-Dist: dep\n", run, nil))
	x.AddFile("src-2.0.tar.gz", sdist(t, "src", "2.0", "Requires-Dist: dep<2\n", run, nil))
	if _, compiled, _ := b.names("[python]\npackages = [\"src\", \"dep==2.0\"]\n"); !slices.Equal(compiled, []string{"src 1.0"}) {
		t.Errorf("compiled %q", compiled)
	}
}

// TestSourcePreferred: a package that the recipe says how to compile is compiled though it has a wheel.
func TestSourcePreferred(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("both", "1.0"))
	x.AddFile("both-1.0.tar.gz", sdist(t, "both", "1.0", "", trap(t), nil))
	if _, compiled, _ := b.names("[python]\npackages = [\"both\"]\n[python.compile.both]\n"); !slices.Equal(compiled, []string{"both 1.0"}) {
		t.Errorf("compiled %q", compiled)
	}
	if wheels, _, _ := b.names("[python]\npackages = [\"both\"]\n"); !slices.Equal(wheels, []string{"both 1.0"}) {
		t.Errorf("wheels %q", wheels)
	}
}

// TestDirectSources: archives, directories and repositories that are asked for by address.
func TestDirectSources(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("dep", "1.0"))
	run := trap(t)
	code := "open('" + run + "', 'w').close()\n"
	b.write(map[string]string{
		"one-3.0.tar.gz":     string(sdist(t, "one", "3.0", "Requires-Dist: dep\n", run, nil)),
		"two/pyproject.toml": "[project]\nname = \"two\"\nversion = \"4.0\"\ndependencies = [\"dep\"]\n",
		"two/setup.py":       code,
		"three/setup.py":     code,
	})
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"}} {
		cmd := exec.Command(tooltest.Path(t, "git"), args...)
		cmd.Dir = filepath.Join(b.dir, "three")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git: %v %s", err, out)
		}
	}
	text := "[python]\npackages = [\"one @ file://" + b.dir + "/one-3.0.tar.gz\", \"two @ file://" + b.dir + "/two\", \"three @ git+file://" + b.dir + "/three\"]\n"
	b.fails(text, "three does not say what it depends on", "[python.compile.three]: depends")
	text += "[python.compile.three]\ndepends = [\"dep\"]\n"
	wheels, compiled, l := b.names(text)
	if !slices.Equal(wheels, []string{"dep 1.0"}) || !slices.Equal(compiled, []string{"one 3.0", "three ", "two 4.0"}) {
		t.Errorf("wheels %q, compiled %q", wheels, compiled)
	}
	builds, err := compilesOf(l, b.recipe(text))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []python.SourceKind
	for _, c := range builds {
		kinds = append(kinds, c.Source.Kind)
		if c.Source.DirectURL() == nil || !c.Requested {
			t.Errorf("%+v", c)
		}
	}
	if want := []python.SourceKind{python.SourceArchive, python.SourceGit, python.SourceDirectory}; !slices.Equal(kinds, want) {
		t.Errorf("%q", kinds)
	}
}

// TestAgainstTorch: the image's torch is what a known extension is built against, and is not resolved again.
func TestAgainstTorch(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("wheel", "0.4"), w("ninja", "1.0", "torch"), w("torch", "2.0"), w("torch", "3.0"))
	x.AddFile("torch_scatter-2.1.2.tar.gz", sdist(t, "torch_scatter", "2.1.2", "", trap(t), nil))
	b.fails("[python]\npackages = [\"torch-scatter\"]\n", "torch-scatter is built against torch, and the image has none", "add torch to packages")
	_, compiled, l := b.names("[python]\npackages = [\"torch-scatter\", \"torch<3\"]\n")
	if !slices.Equal(compiled, []string{"torch-scatter 2.1.2"}) {
		t.Errorf("compiled %q", compiled)
	}
	c := l.Python.Compiled[0]
	var names []string
	for _, w := range c.Requires {
		names = append(names, w.Name)
	}
	if c.Isolation || !slices.Equal(c.Against, []string{"torch"}) || !slices.Equal(names, []string{"ninja", "setuptools", "wheel"}) {
		t.Errorf("%+v, %q", c, names)
	}
}

// TestOwnLockOfSources: the user's own lock may hold sources.
func TestOwnLockOfSources(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	data := sdist(t, "src", "1.0", "", trap(t), nil)
	x.AddFile("src-1.0.tar.gz", data)
	b.write(map[string]string{"pylock.toml": "lock-version = \"1.0\"\ncreated-by = \"test\"\n[[packages]]\nname = \"src\"\nversion = \"1.0\"\nsdist = { url = \"" +
		x.FileURL("src-1.0.tar.gz") + "\", hashes = { sha256 = \"" + store.DigestOf(data).Hex() + "\" } }\n"})
	if _, compiled, _ := b.names("[python]\nlock = \"pylock.toml\"\n"); !slices.Equal(compiled, []string{"src 1.0"}) {
		t.Errorf("compiled %q", compiled)
	}
}

// TestRealSources: packages of the real index that have no wheel. None of their setup.py, which import torch, is run.
func TestRealSources(t *testing.T) {
	b := realBench(t, locktest.Base{})
	_, compiled, l := b.names("[python]\npackages = [\"torch==2.7.0\", \"torch-scatter==2.1.2\", \"flash-attn==2.8.3\", \"deepspeed==0.17.0\"]\n")
	if want := []string{"deepspeed 0.17.0", "flash-attn 2.8.3", "torch-scatter 2.1.2"}; !slices.Equal(compiled, want) {
		t.Errorf("compiled %q, want %q", compiled, want)
	}
	for _, c := range l.Python.Compiled {
		if c.Isolation || !slices.Contains(c.Against, "torch") || slices.ContainsFunc(c.Requires, func(w lock.BuildRequirement) bool { return w.Name == "torch" }) {
			t.Errorf("%+v", c)
		}
	}
}

// TestCompileBase: a package may be built in an image of its own, whose Python and C library fit.
func TestCompileBase(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	x.AddFile("src-1.0.tar.gz", sdist(t, "src", "1.0", "", trap(t), nil))
	b.write(map[string]string{"builder.tar": string(locktest.Base{Files: map[string]string{"usr/bin/gcc": "x"}}.Tar(t))})
	const text = "[python]\npackages = [\"src\"]\n[python.compile.src]\nbase = \"tar:builder.tar\"\n"
	r, l := b.lock(text)
	builds, err := compilesOf(l, r)
	if err != nil {
		t.Fatal(err)
	}
	c := builds[0]
	if c.Base == nil || c.Base.Image.Digest == l.Base.Digest || !strings.HasPrefix(c.Base.Executable, "/usr/bin/python3") {
		t.Errorf("%+v", c.Base)
	}
	if got := lock.CompileReference(r, c); got != "tar:"+filepath.Join(b.dir, "builder.tar") {
		t.Errorf("it is looked for at %s", got)
	}
}

// TestSourcesWithoutSettings: who tells uv to read no settings can have packages without wheels all the same.
func TestSourcesWithoutSettings(t *testing.T) {
	t.Setenv("UV_NO_CONFIG", "1")
	b, _ := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	b.write(map[string]string{
		"three/setup.py":       "raise SystemExit(1)",
		"three/pyproject.toml": "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n",
	})
	_, compiled, _ := b.names("[python]\npackages = [\"three @ file://" + b.dir + "/three\"]\n[python.compile.three]\ndepends = []\n")
	if !slices.Equal(compiled, []string{"three "}) {
		t.Errorf("compiled %q", compiled)
	}
}

// TestNewestParent: a package whose newest release needs one that has only a source is taken in its newest release all the same, and
// not in one of long ago that does not need it; whatever way uv asks what a source depends on.
func TestNewestParent(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("engine", "0.0.0"), w("engine", "2.0", "core"), w("hydra", "0.11"), w("hydra", "1.3", "grammar"))
	run := trap(t)
	x.AddFile("core-2.0.tar.gz", sdist(t, "core", "2.0", "Dynamic: Requires-Dist\nRequires-Dist: dep<2\n", run, map[string]string{
		"pyproject.toml": "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n",
	}))
	x.AddFile("tree-1.0.tar.gz", sdist(t, "tree", "1.0", "Requires-Dist: dep\n", run, map[string]string{
		"pyproject.toml": "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"own.parts:thing\"\nbackend-path = [\".\"]\n",
		"own/parts.py":   "open('" + run + "', 'w').close()\n", "json.py": "open('" + run + "', 'w').close()\n",
	}))
	const hatch = "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"hatchling.build\"\n[project]\nname = \"hatched-one\"\ndynamic = [\"version\", \"dependencies\"]\n"
	x.AddFile("hatched_one-1.0.tar.gz", sdist(t, "hatched_one", "1.0", "Dynamic: Requires-Dist\nRequires-Dist: dep\n", run, map[string]string{"pyproject.toml": hatch}))
	x.AddFile("grammar-4.9.tar.gz", sdist(t, "grammar", "4.9", "", run, map[string]string{"grammar.egg-info/requires.txt": "dep\n"}))
	x.Add(t, w("dep", "1.0"), w("dep", "2.0"))
	wheels, compiled, _ := b.names("[python]\npackages = [\"engine\", \"hydra\", \"tree\", \"hatched-one\"]\n")
	if !slices.Equal(wheels, []string{"dep 1.0", "engine 2.0", "hydra 1.3"}) || !slices.Equal(compiled, []string{"core 2.0", "grammar 4.9", "hatched-one 1.0", "tree 1.0"}) {
		t.Errorf("wheels %q, compiled %q", wheels, compiled)
	}
	notes := strings.Join(b.events.Texts(progress.Note), "\n")
	if !strings.Contains(notes, "built from source: core 2.0, grammar 4.9, hatched-one 1.0, tree 1.0") {
		t.Errorf("notes %q", notes)
	}
}

// TestNewerSource: a newer version without a wheel goes before an older one with, unless the recipe says otherwise; then both versions are
// named.
func TestNewerSource(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("top", "1.0", "src"), w("src", "1.0"))
	x.AddFile("src-2.0.tar.gz", sdist(t, "src", "2.0", "", trap(t), nil))
	if wheels, compiled, _ := b.names("[python]\npackages = [\"top\"]\n"); !slices.Equal(wheels, []string{"top 1.0"}) || !slices.Equal(compiled, []string{"src 2.0"}) {
		t.Errorf("wheels %q, compiled %q", wheels, compiled)
	}
	for _, value := range []string{"src", ":all:"} {
		if err := os.Remove(filepath.Join(b.dir, "pylock.toml")); err != nil {
			t.Fatal(err)
		}
		wheels, compiled, _ := b.names("[python]\npackages = [\"top\"]\nonly-binary = [\"" + value + "\"]\n")
		if !slices.Equal(wheels, []string{"src 1.0", "top 1.0"}) || len(compiled) > 0 {
			t.Errorf("%s: wheels %q, compiled %q", value, wheels, compiled)
		}
		if notes := b.events.Texts(progress.Note); !strings.Contains(notes[len(notes)-1], "src 1.0 instead of 2.0") {
			t.Errorf("%s: notes %q", value, notes)
		}
	}
}

// TestOlderForWantOfAnswer: where the newer cannot be had, since its source does not say what it depends on or what it is built with is not
// there, an older wheel is taken, and both versions and the reason are told.
func TestOlderForWantOfAnswer(t *testing.T) {
	for name, mute := range map[string][]byte{
		"does not say what it depends on": sdist(t, "mute", "2.0", "", trap(t), map[string]string{
			"PKG-INFO": "", "pyproject.toml": "[project]\nname = \"mute\"\nversion = \"2.0\"\ndynamic = [\"dependencies\"]\n",
		}),
		"what is needed to build mute": sdist(t, "mute", "2.0", "", trap(t), map[string]string{
			"pyproject.toml": "[build-system]\nrequires = [\"no-such-backend\"]\n",
		}),
	} {
		b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"), w("top", "1.0"), w("top", "2.0", "mute"))
		x.AddFile("mute-2.0.tar.gz", mute)
		wheels, compiled, _ := b.names("[python]\npackages = [\"top\"]\n")
		if !slices.Equal(wheels, []string{"top 1.0"}) || len(compiled) > 0 {
			t.Errorf("%s: wheels %q, compiled %q", name, wheels, compiled)
		}
		warned := strings.Join(b.events.Texts(progress.Warning), "\n")
		for _, part := range []string{"top 1.0 instead of 2.0", "mute 2.0", name} {
			if !strings.Contains(warned, part) {
				t.Errorf("the warning lacks %q: %s", part, warned)
			}
		}
		b.fails("[python]\npackages = [\"top>=2\"]\n", name)
	}
}

// TestBuildRequirementsAtOnce: what all sources are built with is asked for before any is built, and all that cannot be had is told
// together.
func TestBuildRequirementsAtOnce(t *testing.T) {
	b, x := newBench(t, locktest.Base{})
	run := trap(t)
	for _, name := range []string{"one", "two"} {
		x.AddFile(name+"-1.0.tar.gz", sdist(t, name, "1.0", "", run, map[string]string{"pyproject.toml": "[build-system]\nrequires = [\"absent-" + name + "\"]\n"}))
	}
	b.fails("[python]\npackages = [\"one\", \"two\"]\n", "needed to build one", "absent-one", "needed to build two", "absent-two")
}

// TestPinsOfDownloads: of a source that may download while it is built, the lock names the files that say by hash what comes, and locking
// warns where there is none.
func TestPinsOfDownloads(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	run := trap(t)
	x.AddFile("rusty-1.0.tar.gz", sdist(t, "rusty", "1.0", "", run, map[string]string{"rust/Cargo.lock": "version = 4\n"}))
	x.AddFile("loose-1.0.tar.gz", sdist(t, "loose", "1.0", "", run, nil))
	const text = "[python]\npackages = [\"loose\", \"rusty\"]\n"
	_, _, offline := b.names(text)
	if warned := b.events.Texts(progress.Warning); len(warned) > 0 || offline.Python.Compiled[1].Pins != nil {
		t.Errorf("without network: %q, %+v", warned, offline.Python.Compiled)
	}
	const network = text + "[python.compile.loose]\nnetwork = true\n[python.compile.rusty]\nnetwork = true\n"
	if drift, err := driftOf(offline, b.recipe(network)); err != nil || len(drift) != 2 {
		t.Errorf("drift %q, %v", drift, err)
	}
	_, _, l := b.names(network)
	if c := l.Python.Compiled; c[0].Pins != nil || !slices.Equal(c[1].Pins, []string{"rust/Cargo.lock"}) {
		t.Errorf("%+v", c)
	}
	if warned := b.events.Texts(progress.Warning); len(warned) != 1 || !strings.Contains(warned[0], "what loose downloads") {
		t.Errorf("warnings %q", warned)
	}
}

// TestManyCandidates: two packages of many releases, sources all of them, of which no pair fits: uv is asked once and for all, and says why.
func TestManyCandidates(t *testing.T) {
	const releases = 40
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	run := trap(t)
	for i := 1; i <= releases; i++ {
		for _, pair := range [][2]string{{"one", "two"}, {"two", "one"}} {
			version := fmt.Sprintf("%d.0", i)
			x.AddFile(pair[0]+"-"+version+".tar.gz", sdist(t, pair[0], version, fmt.Sprintf("Requires-Dist: %s==%d.0\n", pair[1], i%releases+1), run, nil))
		}
	}
	b.fails("[python]\npackages = [\"one\", \"two\"]\n", "No solution found", "one")
	started := 0
	for _, text := range b.events.Texts(progress.Start) {
		if strings.Contains(text, "resolve Python packages") {
			started++
		}
	}
	if started != 1 {
		t.Errorf("uv was asked %d times", started)
	}
}

// TestAnswersStayHere: what uv is told of a source is nothing that uv believes elsewhere.
func TestAnswersStayHere(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("setuptools", "70.0"))
	for name, project := range map[string]string{
		"src":   "", // uv asks for metadata, and of the other for a wheel
		"hatch": "[build-system]\nrequires = []\nbuild-backend = \"hatchling.build\"\n[project]\nname = \"hatch\"\nversion = \"1.0\"\ndynamic = [\"dependencies\"]\n",
	} {
		x.AddFile(name+"-1.0.tar.gz", sdist(t, name, "1.0", "Requires-Dist: absent\n", trap(t), map[string]string{"pyproject.toml": project}))
		b.fails("[python]\npackages = [\""+name+"\"]\n", "absent was not found")
		b.write(map[string]string{"in.txt": name + "\n"})
		cmd := exec.Command("uv", "pip", "compile", "in.txt", "--offline")
		cmd.Dir, cmd.Env = b.dir, append(os.Environ(), "PYTHONHOME=/nonexistent")
		if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "absent") {
			t.Errorf("uv believes: %v\n%s", err, out)
		}
	}
}
