package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// A version is the number of the file alone where the commit carries its tag, and else says which commit it is.
func TestVersionOfTheSources(t *testing.T) {
	git := tooltest.Path(t, "git")
	script, err := os.ReadFile(filepath.Join("..", "..", "scripts", "version.sh"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, text []byte) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("scripts/version.sh", script)
	write("VERSION", []byte("1.2.0\n"))
	run := func(program string, args ...string) string {
		cmd := exec.Command(program, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	version := func(want string) {
		t.Helper()
		if got := run("sh", "scripts/version.sh"); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("the version is %q, want %s", got, want)
		}
	}
	commit := func() {
		run(git, "add", ".")
		run(git, "-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-q", "-m", "x")
	}
	version(`1\.2\.0`) // an archive of the sources
	run(git, "init", "-q")
	commit()
	version(`1\.2\.0\+[0-9a-f]{12}`)
	run(git, "tag", "v1.2.0")
	version(`1\.2\.0`)
	write("more", nil)
	commit()
	version(`1\.2\.0\+[0-9a-f]{12}`)
	write("VERSION", []byte("1.3.0\n"))
	version(`1\.3\.0\+[0-9a-f]{12}\.dirty`)
}
