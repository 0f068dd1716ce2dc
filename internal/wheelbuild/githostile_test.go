package wheelbuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestNothingOfARepositoryRuns: hooks, settings, filters and addresses of a repository start no program on this machine.
func TestNothingOfARepositoryRuns(t *testing.T) {
	tooltest.Path(t, "git")
	for name, test := range map[string]struct{ module, want string }{
		"its own settings":            {"", ""},
		"a submodule by ext":          {"\turl = ext::TRAP\n", "not allowed"},
		"a submodule with an update":  {"\turl = ./\n\tupdate = !TRAP\n", ""},
		"a submodule with an option":  {"\turl = --upload-pack=TRAP\n", "url"},
		"a submodule by ssh's option": {"\turl = ssh://-oProxyCommand=TRAP/x\n", "strange"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, mark := t.TempDir(), filepath.Join(t.TempDir(), "mark")
			trap := filepath.Join(dir, ".git", "trap")
			commit := makeRepository(t, dir)
			git := func(args ...string) string {
				t.Helper()
				cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("git %q: %v\n%s", args, err, out)
				}
				return strings.TrimSpace(string(out))
			}
			write := func(name, text string, mode os.FileMode) {
				t.Helper()
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "TRAP", trap)), mode); err != nil {
					t.Fatal(err)
				}
			}
			write(".gitattributes", "* filter=x diff=x merge=x\n", 0o644)
			if test.module != "" {
				write(".gitmodules", "[submodule \"s\"]\n\tpath = s\n"+test.module, 0o644)
				git("update-index", "--add", "--cacheinfo", "160000,"+commit+",s")
			}
			git("add", ".gitattributes")
			if test.module != "" {
				git("add", ".gitmodules")
			}
			git("commit", "--quiet", "-m", "y")
			commit = git("rev-parse", "HEAD")
			write(".git/trap", "#!/bin/sh\necho \"$0 $*\" >>"+mark+"\nexec cat\n", 0o755)
			for _, hook := range []string{"post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change", "fsmonitor-watchman"} {
				write(".git/hooks/"+hook, "#!/bin/sh\nexec TRAP\n", 0o755)
			}
			write(".git/config", "[core]\n\tfsmonitor = TRAP\n\tsshCommand = TRAP\n\tgitProxy = TRAP\n\tpager = TRAP\n\talternateRefsCommand = TRAP\n"+
				"[uploadpack]\n\tpackObjectsHook = TRAP\n\tallowAnySHA1InWant = true\n[filter \"x\"]\n\tsmudge = TRAP\n\tprocess = TRAP\n\trequired = true\n"+
				"[credential]\n\thelper = !TRAP\n[remote \"origin\"]\n\turl = ext::TRAP\n\tpromisor = true\n\tuploadpack = TRAP\n[protocol \"ext\"]\n\tallow = always\n[gpg]\n\tprogram = TRAP\n", 0o644)
			st := storetest.New(t)
			s := Sources{Store: st, Fetch: fetch.New(st, fetch.Options{Attempts: 1}), Reach: reach.Anywhere()}
			_, err := s.Bring(t.Context(), "x", python.Source{Kind: python.SourceGit, URL: "file://" + dir, Commit: commit})
			if test.want == "" && err != nil && test.module == "" || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if said, err := os.ReadFile(mark); err == nil {
				t.Errorf("on this machine ran: %s", said)
			}
		})
	}
}
