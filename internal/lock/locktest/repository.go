package locktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Repository makes a repository of git's in dir, with the source of a package in its one commit.
func Repository(t testing.TB, dir, name string) {
	t.Helper()
	Write(t, dir, map[string]string{
		"pyproject.toml":      "[project]\nname = \"" + name + "\"\nversion = \"1.0\"\n[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n",
		name + "/__init__.py": "",
	})
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
}

// SSHServer stands for ssh and the server behind it: repositories are those of this machine.
type SSHServer struct {
	Command string // for GIT_SSH_COMMAND

	t   testing.TB
	dir string
}

// SSH makes one, which answers every request.
func SSH(t testing.TB) *SSHServer {
	t.Helper()
	s := &SSHServer{t: t, dir: t.TempDir()}
	s.Command = filepath.Join(s.dir, "ssh")
	Write(t, s.dir, map[string]string{"ssh": `#!/bin/sh
echo x >> "${0%/*}/asked"
if [ "$(wc -l < "${0%/*}/asked")" -eq "$(cat "${0%/*}/silent")" ]; then
	exec sleep 100000
fi
for last; do :; done
eval "exec $last"
`})
	if err := os.Chmod(s.Command, 0o755); err != nil {
		t.Fatal(err)
	}
	s.SilentAt(0)
	return s
}

// SilentAt has the server say nothing to the n-th request from now on, 0 to none.
func (s *SSHServer) SilentAt(n int) {
	s.t.Helper()
	Write(s.t, s.dir, map[string]string{"silent": strconv.Itoa(n) + "\n", "asked": ""})
}

// Asked is how often it was asked since then.
func (s *SSHServer) Asked() int {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "asked"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
