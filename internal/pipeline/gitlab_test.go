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

// recorder stands in place of sconce where the graph of jobs is what matters: it writes down what it is called with, and prints a file for
// who asks it for jobs.
const recorder = `#!/bin/sh
case "$*" in
"pipeline gitlab" | "pipeline matrix") cat "$JOBS" ;;
*) echo "$*" >> "$RECORD" ;;
esac
`

// repository is a directory with files and a recorder on the PATH of what runs in it.
type repository struct {
	dir, record string
	env         []string
}

func newRepository(t *testing.T, jobs []byte, files map[string]string) *repository {
	t.Helper()
	r := &repository{dir: t.TempDir()}
	bin, home := t.TempDir(), t.TempDir()
	r.record = filepath.Join(home, "record")
	for name, text := range map[string]string{filepath.Join(bin, "sconce"): recorder, filepath.Join(home, "jobs"): string(jobs)} {
		if err := tooltest.WriteProgram(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.env = append(os.Environ(), "HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"), "JOBS="+filepath.Join(home, "jobs"), "RECORD="+r.record)
	return r
}

// run runs a program and returns all that it prints.
func (r *repository) run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = r.dir, append(slices.Clone(r.env), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// wantAll wants the command of each job to have run once, after those of the jobs that it needs.
func (r *repository) wantAll(t *testing.T, jobs []pipeline.Job) {
	t.Helper()
	recorded := readFile(t, filepath.Dir(r.record), filepath.Base(r.record))
	ran := strings.Split(strings.TrimSpace(recorded), "\n")
	if len(ran) != len(jobs) {
		t.Errorf("%d jobs ran, of %d:\n%s", len(ran), len(jobs), recorded)
	}
	at := func(command string) int { return slices.Index(ran, strings.TrimPrefix(command, "sconce ")) }
	for _, j := range jobs {
		if at(j.Command) < 0 {
			t.Errorf("%s did not run:\n%s", j.ID, recorded)
		}
		for _, need := range j.Needs {
			i := slices.IndexFunc(jobs, func(other pipeline.Job) bool { return other.ID == need })
			if before, after := at(jobs[i].Command), at(j.Command); before < 0 || after < before {
				t.Errorf("%s ran before %s:\n%s", j.ID, need, recorded)
			}
		}
	}
}

// TestGitlabRuns has another program run the example's pipeline, whose child is what sconce writes, without a network: both fit GitLab's
// schema, and each job runs once, after those that it needs.
func TestGitlabRuns(t *testing.T) {
	offline, program := tooltest.GitlabCI(t)
	_, jobs, text := gitlab(t)
	// The site's templates lie beside it here: nothing is downloaded.
	child := strings.Replace(string(text), "remote: https://ci.example.org/runners.yml", "local: runners.yml", 1)
	parent := readFile(t, "../../examples/pipeline", ".gitlab-ci.yml")
	start := func(t *testing.T, child string) (*repository, string, error) {
		t.Helper()
		r := newRepository(t, []byte(child), map[string]string{
			".gitlab-ci.yml": parent, "runners.yml": ".builder: { tags: [builder] }\n.baremetal: { tags: [login] }\n.light: { tags: [small] }\n",
		})
		out, err := r.run(t, nil, append(offline, "sh", "-ec", tooltest.CommitAll+"exec "+strings.Join(program, " "))...)
		return r, out, err
	}
	r, out, err := start(t, child)
	if err != nil || !strings.Contains(out, "json schema validated") {
		t.Fatalf("%v\n%s\n%s", err, out, child)
	}
	r.wantAll(t, jobs)
	if !strings.Contains(readFile(t, "../../docs/guide", "pipeline.md"), parent) {
		t.Errorf("docs/guide/pipeline.md shows another parent than\n%s", parent)
	}
	// A child that GitLab would refuse fails; the word about the schema above is of the parent alone.
	for _, broken := range []struct{ old, text, told string }{
		{"- build base:1", "- build base:2", "build base:2"},
		{"resource_group:", "resource_groups:", "resource_groups"},
	} {
		if _, out, err := start(t, strings.Replace(child, broken.old, broken.text, 1)); err == nil || !strings.Contains(out, broken.told) {
			t.Errorf("%s in place of %s: %v\n%s", broken.text, broken.old, err, out)
		}
	}
}
