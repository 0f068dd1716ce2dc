package tooltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sources is a copy of the scripts, for a machine that has a few commands and what is given besides.
type sources struct {
	t   *testing.T
	dir string
}

func newSources(t *testing.T, commands ...string) sources {
	t.Helper()
	s := sources{t, t.TempDir()}
	if err := os.CopyFS(filepath.Join(s.dir, "scripts"), os.DirFS(filepath.Join("..", "..", "scripts"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(commands, "sh", "dirname", "mkdir", "cat") {
		path := Path(t, name)
		if err := os.MkdirAll(filepath.Join(s.dir, "path"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(s.dir, "path", name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s sources) program(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := WriteProgram(path, []byte("#!/bin/sh\n"+text)); err != nil {
		s.t.Fatal(err)
	}
}

// run runs a script where nothing else is on PATH, and returns what it prints.
func (s sources) run(shell, script string, args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.dir, "path", shell), append([]string{filepath.Join("scripts", script)}, args...)...)
	cmd.Dir, cmd.Env = s.dir, []string{"PATH=" + filepath.Join(s.dir, "path")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Where an administrator is missing, all that needs none is there in the end, and what is missing is told at once.
func TestSetupWithoutAnAdministrator(t *testing.T) {
	if found, _ := filepath.Glob("/*/sbin/apt-get"); len(found) > 0 {
		Missing(t, "a machine whose apt-get the script does not find, where it looks besides PATH")
	}
	s := newSources(t, "bash", "ln", "id", "grep", "env", "sleep", "chmod", "touch")
	s.program("path/go", `[ "$1" = install ] || exit 0
mkdir -p "$GOBIN"
for c in golangci-lint actionlint; do touch "$GOBIN/$c"; chmod 755 "$GOBIN/$c"; done
`)
	out, err := s.run("bash", "setup.sh")
	if err == nil || strings.Count(out, "ask an administrator") != 1 || !strings.Contains(out, "skopeo") || !strings.Contains(out, "python3-venv") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range []string{"golangci-lint", "actionlint"} {
		if _, err := os.Stat(filepath.Join(s.dir, ".tools", "bin", name)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// The demonstration needs the binary, which brings what else it needs, and nothing of Debian's or of Python's.
func TestDemoNeedsTheBinaryAlone(t *testing.T) {
	s := newSources(t, "date", "awk", "tee")
	s.program("bin/sconce", `[ "$1" = build ] && echo sha256:0 || echo "did $1"`+"\n")
	for _, want := range []string{"did run", "Nothing to do"} {
		if out, err := s.run("sh", "demo.sh"); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, and not %q\n%s", err, want, out)
		}
	}
}

// saidByGo is what go test -json says of a short run.
const saidByGo = `{"Action":"output","Package":"sconce.dev/sconce/internal/a","Test":"TestWhole","Output":"    a_test.go:1: all of it\n"}
{"Action":"pass","Package":"sconce.dev/sconce/internal/a","Test":"TestWhole","Elapsed":1}
{"Action":"output","Package":"sconce.dev/sconce/internal/a","Test":"TestLess","Output":"    a_test.go:2: ` + lessSaid + `\n"}
{"Action":"pass","Package":"sconce.dev/sconce/internal/a","Test":"TestLess","Elapsed":1}
{"Action":"output","Package":"sconce.dev/sconce/cmd/b","Test":"TestMany/one_(1.5)","Output":"    b_test.go:3: takes long\n"}
{"Action":"skip","Package":"sconce.dev/sconce/cmd/b","Test":"TestMany/one_(1.5)","Elapsed":0}
{"Action":"pass","Package":"sconce.dev/sconce/cmd/b","Test":"TestMany/two","Elapsed":9}
{"Action":"pass","Package":"sconce.dev/sconce/cmd/b","Test":"TestMany","Elapsed":0}
{"Action":"pass","Package":"sconce.dev/sconce/cmd/b","Elapsed":1}
{"Action":"pass","Package":"sconce.dev/sconce/internal/a","Elapsed":1}
{"Action":"output","Package":"sconce.dev/sconce/internal/none","Output":"?   [no test files]\n"}
{"Action":"skip","Package":"sconce.dev/sconce/internal/none","Elapsed":0}
`

// What a short run has left out, or done less of, is run afterwards, and nothing else.
func TestLeftByAShortRun(t *testing.T) {
	s := newSources(t, "bash", "awk", "sed", "cut", "sort", "paste")
	s.program("path/python3", "PATH="+os.Getenv("PATH")+" exec "+Path(t, "python3")+` "$@"`+"\n") // which may itself be a script
	s.program("path/go", "cat <<'END'\n"+saidByGo+"END\n")
	if out, err := s.run("bash", "test.sh", "race", "-short", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for what, want := range map[string]string{"tests": `^TestLess$|^TestMany$/^one_\(1\.5\)$` + "\n", "packages": "./cmd/b\n./internal/a\n"} {
		if out, err := s.run("bash", "left.sh", what); err != nil || out != want {
			t.Errorf("left.sh %s: %v, %q, want %q", what, err, out, want)
		}
	}
}
