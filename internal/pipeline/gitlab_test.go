package pipeline_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/tooltest"
)

// gitlabCILocal is a program that runs pipelines of GitLab without GitLab, and compares them with GitLab's schema first.
func gitlabCILocal(t *testing.T) []string {
	t.Helper()
	script, err := filepath.Abs("../../.tools/gitlab-ci-local/node_modules/gitlab-ci-local/src/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		tooltest.Missing(t, "gitlab-ci-local is not installed: scripts/setup.sh tests")
	}
	for _, program := range []string{"git", "rsync"} {
		tooltest.Path(t, program)
	}
	return []string{tooltest.Path(t, "node"), script}
}

// TestGitlabRuns has another program run the jobs: each once, and after those that it needs. In place of sconce there is a script that
// writes down what it is called with, as this is about the graph.
func TestGitlabRuns(t *testing.T) {
	program := gitlabCILocal(t)
	_, jobs, text := gitlab(t)
	dir, bin := t.TempDir(), t.TempDir()
	record := filepath.Join(bin, "record")
	for name, content := range map[string]string{
		filepath.Join(bin, "sconce"): "#!/bin/sh\necho \"$CI_JOB_NAME=$*\" >> " + record + "\n",
		// The site's templates lie beside it here: nothing is downloaded.
		filepath.Join(dir, ".gitlab-ci.yml"): strings.Replace(string(text), "remote: https://ci.example.org/runners.yml", "local: runners.yml", 1),
		filepath.Join(dir, "runners.yml"):    ".builder: { tags: [builder] }\n.baremetal: { tags: [login] }\n.light: { tags: [small] }\n",
	} {
		if err := tooltest.WriteProgram(name, []byte(content)); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", name, err, out, text)
		}
		return string(out)
	}
	run("git", "init", "--quiet", "--initial-branch=main")
	run("git", "remote", "add", "origin", "git@gitlab.example.org:team/images.git")
	run("git", "add", ".")
	run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message=images")
	if out := run(program[0], program[1:]...); !strings.Contains(out, "json schema validated") {
		t.Errorf("no word of the schema:\n%s", out)
	}
	recorded, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	ran := strings.Split(strings.TrimSpace(string(recorded)), "\n")
	if len(ran) != len(jobs) {
		t.Errorf("%d jobs ran, of %d:\n%s", len(ran), len(jobs), recorded)
	}
	at := func(command string) int {
		return slices.IndexFunc(ran, func(line string) bool { return strings.HasSuffix(line, "="+strings.TrimPrefix(command, "sconce ")) })
	}
	for _, j := range jobs {
		for _, need := range j.Needs {
			i := slices.IndexFunc(jobs, func(other pipeline.Job) bool { return other.ID == need })
			if before, after := at(jobs[i].Command), at(j.Command); before < 0 || after < before {
				t.Errorf("%s ran before %s:\n%s", j.ID, need, recorded)
			}
		}
	}
}
