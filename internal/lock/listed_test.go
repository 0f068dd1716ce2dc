package lock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// An item of a pip list may name its package, or only say where the source is.
func TestAsksFor(t *testing.T) {
	directory := &python.Source{Kind: python.SourceDirectory, Path: "/work/src/mine", Direct: true}
	file := &python.Source{Kind: python.SourceArchive, Path: "/work/mine-1.0.tar.gz", File: "mine-1.0.tar.gz", Direct: true}
	archive := &python.Source{Kind: python.SourceArchive, URL: "https://host/a/mine-1.0.tar.gz", File: "mine-1.0.tar.gz", Direct: true}
	index := &python.Source{Kind: python.SourceArchive, URL: "https://host/a/mine-1.0.tar.gz", File: "mine-1.0.tar.gz"}
	git := &python.Source{Kind: python.SourceGit, URL: "https://host/me/mine.git", Revision: "v1/rc", Direct: true}
	part := &python.Source{Kind: python.SourceGit, URL: "ssh://git@host/me/all", Subdirectory: "parts/mine", Direct: true}
	local := &python.Source{Kind: python.SourceGit, URL: "file:///work/a@b/mine", Direct: true}
	for _, test := range []struct {
		requirement string
		source      *python.Source
		want        bool
	}{
		{"Mine>=1", index, true},
		{"mine[fast] @ file:///elsewhere", directory, true},
		{"other", index, false},
		{"https://host/a/mine-1.0.tar.gz", index, false}, // what an index has was not asked for by address

		{"/work/src/mine", directory, true},
		{"./src/../src/mine/", directory, true},
		{"./src/mine[fast,small] ; python_version > '3'", directory, true},
		{"file:///work/src/mine#egg=mine", directory, true},
		{"./src/mine2", directory, false},
		{"./src", directory, false},
		{"other @ ./src/mine2", directory, false},
		{"./mine-1.0.tar.gz", file, true},
		{"file:///work/mine-1.0.tar.gz", file, true},
		{"./mine-1.1.tar.gz", file, false},

		{"https://me:secret@host/a/mine-1.0.tar.gz#sha256=00", archive, true},
		{"https://host/b/mine-1.0.tar.gz", archive, false},

		{"git+https://host/me/mine.git", git, true},
		{"git+https://me:secret@host/me/mine@v1/rc#egg=mine", git, true},
		{"git+https://host/me/mine.git#subdirectory=part", git, false},
		{"git+https://host/me/other.git@v1", git, false},
		{"https://host/me/mine.git", git, false},
		{"git+ssh://git@host/me/all@v1#subdirectory=parts/mine/&egg=x", part, true},
		{"git+ssh://git@host/me/all@v1", part, false},
		{"git+file:///work/a@b/mine", local, true},
		{"git+file:///work/a@b/mine@main", local, true},
	} {
		if got := asksFor(test.requirement, "/work", python.Package{Name: "mine", Source: test.source}); got != test.want {
			t.Errorf("%s, %+v: %t", test.requirement, *test.source, got)
		}
	}
}

// What is said of a pip list is for its packages without a name and for those of files that it includes.
func TestListed(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"envs", "more"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeText(t, filepath.Join(dir, "a.yml"), "dependencies:\n- pip: [early]\nvariables: {PIP_NO_BUILD_ISOLATION: 0, LEVEL: high}\n")
	writeText(t, filepath.Join(dir, "envs/b.yml"), "dependencies:\n- pip: [./plain, -e ./edited, -r ../more/list.txt, -c ../more/limits.txt]\n")
	writeText(t, filepath.Join(dir, "more/list.txt"), "included==1.0\n-r deeper.txt\n-c limits.txt\n")
	writeText(t, filepath.Join(dir, "more/deeper.txt"), "git+https://host/deep.git@v1\n-e ./more/there\n")
	writeText(t, filepath.Join(dir, "more/limits.txt"), "limited==1.0\n")
	writeText(t, filepath.Join(dir, "c.yml"), "dependencies:\n- pip: [./first, -r more/list2.txt, --no-build-isolation, ./second, -r more/list.txt, -r more/list2.txt]\n")
	writeText(t, filepath.Join(dir, "more/list2.txt"), "twice\n")

	for _, test := range []struct {
		files      []string
		pkg        string
		source     *python.Source
		place      int
		unisolated bool
	}{
		{[]string{"a.yml", "envs/b.yml"}, "early", nil, 0, false},
		{[]string{"a.yml", "envs/b.yml"}, "plain", sourceIn(dir, "envs/plain"), 1, true},
		{[]string{"a.yml", "envs/b.yml"}, "edited", sourceIn(dir, "envs/edited"), 1, true},
		{[]string{"a.yml", "envs/b.yml"}, "included", nil, 1, true},
		{[]string{"a.yml", "envs/b.yml"}, "there", sourceIn(dir, "more/there"), 1, true},
		{[]string{"a.yml", "envs/b.yml"}, "deep", &python.Source{Kind: python.SourceGit, URL: "https://host/deep.git", Direct: true}, 1, true},
		{[]string{"a.yml", "envs/b.yml"}, "limited", nil, -1, false},
		{[]string{"envs/b.yml"}, "plain", sourceIn(dir, "envs/plain"), 0, false},
		{[]string{"c.yml"}, "first", sourceIn(dir, "first"), 0, false},
		{[]string{"c.yml"}, "second", sourceIn(dir, "second"), 0, true},
		{[]string{"c.yml"}, "included", nil, 0, true},
		{[]string{"envs/b.yml", "c.yml"}, "included", nil, 0, false}, // a file that two lists include is read for both
		{[]string{"c.yml", "envs/b.yml"}, "plain", sourceIn(dir, "envs/plain"), 1, false},
	} {
		r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Reach: reach.Anywhere(), Conda: recipe.Conda{Environment: test.files}}
		r.Target.Platform = "linux/amd64"
		with, err := WithEnvironments(r)
		if err != nil {
			t.Fatal(err)
		}
		place, list, asked := listOf(with, python.Package{Name: test.pkg, Source: test.source})
		if place != test.place || asked.Unisolated != test.unisolated {
			t.Errorf("%q: %s is in list %d, unisolated %t", test.files, test.pkg, place, asked.Unisolated)
		}
		if after := test.files[0] == "a.yml" && place == 1; after && list.Variables["LEVEL"] != "high" {
			t.Errorf("%q: %s has the variables %q", test.files, test.pkg, list.Variables)
		}
	}
}

// Hashes in a pip list are demanded as those of a requirements file are.
func TestListedHashes(t *testing.T) {
	dir := t.TempDir()
	hash := "sha256:" + strings.Repeat("0a", 32)
	writeText(t, filepath.Join(dir, "a.yml"), "dependencies:\n- pip: [\"beta==1.0 --hash="+hash+"\", alpha]\n")
	r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Reach: reach.Anywhere(), Conda: recipe.Conda{Environment: []string{"a.yml"}}}
	r.Target.Platform = "linux/amd64"
	r, err := WithEnvironments(r)
	if err != nil {
		t.Fatal(err)
	}
	files, err := readRequirements(r)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := newHashPolicy(r, files)
	if got := policy.allowed("beta", ""); err != nil || !policy.required || !got.pinned || len(got.hashes) != 1 || got.hashes[0].String() != hash {
		t.Errorf("%+v of %+v, %v", got, policy, err)
	}
}

// A variable of an earlier file is read as pip does, the other way round: what says no turns isolation off. The expectations are what
// `pip install` (23.2) makes of it.
func TestIsolationByVariable(t *testing.T) {
	for _, test := range []struct {
		values string // between blanks, as they stand in the file
		off    bool
		wrong  bool
	}{
		{values: `0 "0" n N no No NO f F off OFF false False`, off: true},
		{values: `1 "1" y yes YES t on ON true True ""`},
		{values: `2 -1 none disabled 00`, wrong: true},
	} {
		for _, value := range strings.Fields(test.values) {
			dir := t.TempDir()
			writeText(t, filepath.Join(dir, "a.yml"), "dependencies:\n- pip: [early]\nvariables: {PIP_NO_BUILD_ISOLATION: "+value+"}\n")
			writeText(t, filepath.Join(dir, "b.yml"), "dependencies:\n- pip: [late]\n")
			r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Reach: reach.Anywhere(), Conda: recipe.Conda{Environment: []string{"a.yml", "b.yml"}}}
			r.Target.Platform = "linux/amd64"
			with, err := WithEnvironments(r)
			if test.wrong {
				if err == nil || !strings.Contains(err.Error(), "b.yml: the variable PIP_NO_BUILD_ISOLATION") || fault.HintOf(err) == "" {
					t.Errorf("%s: error %v", value, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", value, err)
				continue
			}
			if got := with.Python.Listed; got[0].Asked[0].Unisolated || got[1].Asked[0].Unisolated != test.off {
				t.Errorf("%s: %+v", value, got)
			}
		}
	}
}

func sourceIn(dir, path string) *python.Source {
	return &python.Source{Kind: python.SourceDirectory, Path: filepath.Join(dir, path), Direct: true}
}

// What the second file builds sees what the first one has built, though neither names its package.
func TestBuildAfterUnnamed(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "a.yml"), "dependencies:\n- pip: [./one]\n")
	writeText(t, filepath.Join(dir, "b.yml"), "dependencies:\n- pip: [./two --no-build-isolation]\n")
	r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir, Reach: reach.Anywhere(), Conda: recipe.Conda{Environment: []string{"a.yml", "b.yml"}}}
	r.Target.Platform = "linux/amd64"
	with, err := WithEnvironments(r)
	if err != nil {
		t.Fatal(err)
	}
	one, two := python.Package{Name: "first", Source: sourceIn(dir, "one")}, python.Package{Name: "second", Source: sourceIn(dir, "two")}
	k := &locker{recipe: with}
	c := Compiled{Name: "second", Isolation: !k.unisolated(two)}
	k.buildAfter(&c, two, []python.Package{one, two})
	if c.Isolation || len(c.Against) != 1 || c.Against[0] != "first" {
		t.Errorf("it is built so: %+v", c)
	}
}
