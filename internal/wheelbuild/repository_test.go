package wheelbuild

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestRepositoryLeadsOut: a repository of this machine that came along with a recipe leads to another one in none of the ways that git follows.
func TestRepositoryLeadsOut(t *testing.T) {
	tooltest.Path(t, "git")
	t.Setenv(reach.Variable, "")
	t.Setenv("GIT_CONFIG_COUNT", "1") // which `git submodule add` asks for; what is tested sets its own
	t.Setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
	t.Setenv("GIT_CONFIG_VALUE_0", "always")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(top, "private")
	run := func(dir, script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "P="+private, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	const fresh = "git init -q -b main .; echo x > f; git add f; git commit -qm x\n"
	run(top, "mkdir private ctx; cd private\n"+fresh)
	for name, script := range map[string]string{
		"a .git that is a file":        "echo gitdir: $P/.git > .git",
		"a .git that is a link":        "ln -s $P/.git .git",
		"shared directories":           "mkdir .git .git/refs .git/objects; echo ref: refs/heads/main > .git/HEAD; echo $P/.git > .git/commondir",
		"shared directories, bare":     "mkdir refs objects; echo ref: refs/heads/main > HEAD; echo ../../private/.git > commondir",
		"objects of another":           fresh + "echo $P/.git/objects > .git/objects/info/alternates; (cd $P; git rev-parse HEAD) > .git/refs/heads/other",
		"a link among its directories": "git init -q --bare .; rmdir refs/heads; ln -s $P/.git/refs/heads refs/heads; rm -rf objects; ln -s $P/.git/objects objects",
		"directories above a link":     "mkdir .git .git/refs .git/objects; ln -s .. .git/up; echo ref: refs/heads/main > .git/HEAD; echo up/../../private/.git > .git/commondir",
		"a link behind a link":         fresh + "mv .git/refs/heads ../heads-$$; ln -s ../../../heads-$$ .git/refs/heads; mkdir ../heads-$$/x; ln -s $P/.git/refs/heads/main ../heads-$$/x/y",
		"information behind a link":    fresh + "rm -rf .git/objects/info; mkdir i; echo $P/.git/objects > i/alternates; ln -s ../../i .git/objects/info",
		"a submodule above a link":     fresh + "ln -s .. up; git add up; git submodule --quiet add $P sub; git config -f .gitmodules submodule.sub.url ./up/../private; git add .gitmodules; git commit -qm sub",
		"a submodule of a hard name":   fresh + "git submodule --quiet add --name 'x.url '$PWD/y $P sub; git commit -qm sub",
		"a submodule":                  fresh + "git submodule --quiet add $P sub; git commit -qm sub",
		"a submodule by address":       fresh + "git submodule --quiet add file://$P sub; git commit -qm sub",
		"a submodule of a submodule":   "mkdir inner; (cd inner\n" + fresh + "git submodule --quiet add $P sub; git commit -qm sub)\n" + fresh + "git submodule --quiet add ./inner sub; git commit -qm sub",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(top, "ctx", strings.NewReplacer(" ", "-", ",", "").Replace(name))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			run(dir, script)
			look := func(b reach.Bounds) error {
				st := storetest.New(t)
				s := Sources{Store: st, Fetch: fetch.New(st, fetch.Options{Attempts: 1}), Reach: b}
				commit, err := s.Commit(t.Context(), dir, "main")
				if err != nil {
					return err
				}
				_, err = s.Bring(t.Context(), "x", python.Source{Kind: python.SourceGit, URL: dir, Commit: commit})
				return err
			}
			own := reach.In("the recipe's directory", filepath.Join(top, "ctx"))
			if err := look(own); err == nil || !strings.Contains(err.Error(), "outside of the recipe's directory") || fault.HintOf(err) == "" {
				t.Errorf("got %v", err)
			}
			if err := look(own.With(private)); err != nil {
				t.Errorf("with the user's word: %v", err)
			}
		})
	}
}

// TestRepositoryIsPlain: git undoes quotes in what a repository borrows from, and it may borrow from itself.
func TestRepositoryIsPlain(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := Sources{Reach: reach.In("the recipe's directory", top)}
	for i, c := range []struct{ file, text, want string }{
		{"objects/info/alternates", "# a note\n.\n.\n../objects\n", ""},
		{"objects/info/alternates", `"../../../private"` + "\n", "names a directory with quotes"},
		{"objects/info/alternates", " /private\n", "blanks at its ends"},
		{"objects/info/alternates", "../../../private\n", "outside of the recipe's directory"},
		{"commondir", "a\nb\n", "control characters"},
		{"commondir", "#/../../../private\n", "outside of the recipe's directory"},
		{"commondir", ".\r\n", ""},
		{"refs/heads/commondir", "0\t1\n", ""},
	} {
		dir := filepath.Join(top, strconv.Itoa(i))
		file := filepath.Join(dir, c.file)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(filepath.Join(dir, "HEAD"), nil, 0o644), os.WriteFile(file, []byte(c.text), 0o644))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.reachRepository(t.Context(), dir); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: got %v", c.file, c.text, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.reachRepository(ctx, filepath.Join(top, "0")); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: got %v", err)
	}
}
