package reach

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
)

// tree makes files, directories with a slash at their ends and links "NAME -> TARGET".
func tree(t *testing.T, names ...string) string {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		name, target, isLink := strings.Cut(name, " -> ")
		path := filepath.Join(top, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(target, path)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestCheck(t *testing.T) {
	t.Setenv(Variable, "")
	top := tree(t, "ctx/a/b", "ctx/out -> ../private", "ctx/in -> a", "ctx/away -> /nowhere/x", "ctx/up -> ..", "ctx/a/self -> .", "ctx/ring -> ring", "private/key", "shared/own", "shared/img -> ../private/key", "named -> shared", "ctxbeside/x")
	b := In("the build context", filepath.Join(top, "ctx")).With(filepath.Join(top, "named"), "", filepath.Join(top, "private/one"))
	for path, want := range map[string]string{
		"ctx":                   "",
		"ctx/a/b":               "",
		"ctx/new/thing":         "",
		"ctx/in/b":              "",
		"ctx/a/../../private":   "outside of the build context",
		"ctx/out":               "leads to " + top + "/private",
		"ctx/out/key":           "leads to " + top + "/private/key",
		"ctx/away":              "leads to /nowhere/x",
		"ctx/up/../ctx":         "leads to " + filepath.Dir(top) + "/ctx", // ".." is above where the link leads
		"ctx/a/self/../new":     "",
		"up/../ctx/a":           "",
		"ctx/a/self/../../x":    "outside of the build context", // to who cleans it first
		"ctx/ring":              "outside of the build context",
		"ctx/out/new":           "leads to " + top + "/private/new",
		"private/key":           "outside of the build context",
		"ctxbeside/x":           "outside of the build context",
		".":                     "outside of the build context",
		"named/img":             "leads to " + top + "/private/key", // as well for a directory that the user has named
		"named/own":             "",
		"shared/own":            "",
		"shared/img":            "outside of the build context",
		"shared":                "",
		"private/one":           "",
		"private/one/more":      "",
		"private/oneself":       "outside",
		"ctx/../ctx/a/new name": "",
	} {
		err := b.Check(top + "/" + path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	err := b.Check(filepath.Join(top, "private", "my key"))
	outside := new(OutsideError)
	if !errors.As(err, &outside) || fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(fault.HintOf(err), "--allow-path '"+top+"/private/my key'") {
		t.Errorf("%v, code %d, hint %s", err, fault.CodeOf(err), fault.HintOf(err))
	}
	if (Bounds{}).Check(top) == nil || Anywhere().Check("/etc/shadow") != nil {
		t.Error("no bounds have something in them, or all have not")
	}
}

// TestUsersWord: the environment and the command line count for all bounds.
func TestUsersWord(t *testing.T) {
	top := tree(t, "ctx/", "a/x", "b/x", "c/x")
	t.Setenv(Variable, "/nowhere:"+top+"/a:")
	defer Allow(nil)
	Allow([]string{top + "/b"})
	bounds := In("the build context", top+"/ctx")
	for name, want := range map[string]bool{"a/x": true, "b/x": true, "c/x": false, "a": true} {
		if got := bounds.Check(filepath.Join(top, name)) == nil; got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	t.Chdir(top) // "" in the variable is not the current directory
	if bounds.Check("c/x") == nil {
		t.Error("an empty element of the variable opens the current directory")
	}
}

func TestRepository(t *testing.T) {
	t.Setenv(Variable, "")
	top := tree(t, "home/.git/", "home/recipes/x/", "home/src/repo/.git/", "home/src/repo/images/a/", "home/src/repo/common/f", "home/work/pipeline.toml",
		"home/work/images/a/", "home/work/wt/.git", "home/work/wt/r/", "pipeline.toml", "tmp/r/", "link -> home/src/repo/images/a")
	t.Setenv("HOME", filepath.Join(top, "home"))
	for dir, want := range map[string]string{
		"home/src/repo/images/a": "home/src/repo",
		"home/src/repo":          "home/src/repo",
		"link":                   "home/src/repo",
		"home/work/wt/r":         "home/work/wt", // a working tree, whose .git is a file
		"home/work/images/a":     "home/work",
		"home/recipes/x":         "", // settings of somebody's are kept in a repository that is all of the home
		"home":                   "",
		"tmp/r":                  "",
	} {
		got := repository(real(filepath.Join(top, dir)))
		if want != "" {
			want = filepath.Join(top, want)
		}
		if dir == "tmp/r" { // which is above the home
			got = strings.TrimPrefix(got, top)
		}
		if got != want {
			t.Errorf("%s: the repository is %q, want %q", dir, got, want)
		}
	}
	b := InRepository("the recipe", filepath.Join(top, "home/src/repo/images/a"))
	if err := b.Check(filepath.Join(top, "home/src/repo/common/f")); err != nil {
		t.Error(err)
	}
	if err := b.Check(filepath.Join(top, "home/recipes")); err == nil || !strings.Contains(err.Error(), "outside of the recipe's repository") {
		t.Errorf("got %v", err)
	}
}

// TestForeignRepository: a .git of somebody else's above a recipe, as in /tmp, opens nothing.
func TestForeignRepository(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	top := tree(t, "all/.git/", "all/mine/r/")
	if err := os.Lchown(filepath.Join(top, "all/.git"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if got := repository(filepath.Join(top, "all/mine/r")); got != "" {
		t.Errorf("%s is taken for the repository", got)
	}
}

func TestLocal(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	top := tree(t, "l@v1/")
	for address, want := range map[string][]string{
		"https://example.org/x":               nil,
		"ssh://git@example.org/x":             nil,
		"git+https://example.org/x@main":      nil,
		"git@example.org:team/x":              nil,
		"example.org:team/x":                  nil,
		"docker://debian":                     nil,
		"":                                    nil,
		"file:///a/b":                         {"/a/b"},
		"FILE:///a/b":                         {"/a/b"},
		"file://localhost/a/b":                {"/a/b"},
		"file://host/a/b":                     {"/host/a/b"},
		"file:/a/b":                           {"/a/b"},
		"file:a/b":                            {"/dir/a/b"},
		"file:///a/%62":                       {"/a/b"},
		"file:///a/../b#subdirectory=x":       {"/a/../b"},
		"git+file:///a/b@v1":                  {"/a/b"},
		"git+file:///a/l@v1#subdirectory=sub": {"/a/l"},
		"/a/b":                                {"/a/b"},
		"../b":                                {"/dir/../b"},
		"wheels":                              {"/dir/wheels"},
		"./x.whl#sha256=0":                    {"/dir/./x.whl"},
		"~/x":                                 {"/home/me/x"},
		"~x":                                  {"/dir/~x"},
		"git+file://" + top + "/l@v1":         {top + "/l", top + "/l@v1"},
	} {
		if got := Local(address, "/dir"); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", address, got, want)
		}
	}
}

// A path without a directory that it starts in is one of the current directory, not of the root.
func TestLocalStartsHere(t *testing.T) {
	if got := Local("key.asc", ""); len(got) != 1 || filepath.IsAbs(got[0]) {
		t.Errorf("got %q", got)
	}
}
