package pipeline_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/tooltest"
)

// exampleWorkflows is where the workflow is that docs/guide/pipeline.md shows.
const exampleWorkflows = "../../examples/pipeline/.github/workflows"

// workflow is what the test understands of a workflow of GitHub.
type workflow struct {
	Jobs map[string]struct {
		Needs    any
		If       string
		Outputs  map[string]string
		Strategy struct{ Matrix string }
		Name     string
		Steps    []struct{ ID, Run string }
	}
}

// actionlint wants a linter to find nothing in a workflow. It does not know the runners of a site.
func actionlint(t *testing.T, text []byte) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tooltest.Path(t, "actionlint"), "-no-color", "-ignore", "label .* is unknown", "-")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
}

// matrixOf is the form of what the workflow says of a stage's matrix.
var matrixOf = regexp.MustCompile(`fromJSON\(needs\.plan\.outputs\.jobs\)\['([a-z0-9 ]+)'\]`)

// fromMatrix replaces what a job takes from its row of the matrix, as GitHub does, and wants it to be there.
func fromMatrix(t *testing.T, text string, row map[string]any) string {
	t.Helper()
	return regexp.MustCompile(`\$\{\{ *matrix\.([a-z_]+) *\}\}`).ReplaceAllStringFunc(text, func(found string) string {
		key := strings.TrimSpace(strings.Trim(found, "${}"))
		value, ok := row[strings.TrimPrefix(key, "matrix.")]
		if !ok {
			t.Errorf("%s is in no row such as %v", key, row)
		}
		return fmt.Sprint(value)
	})
}

// TestGithubMatrix does what GitHub does with the example's workflow: the first job's step writes the matrices that sconce prints, and each
// row becomes a job, those of a stage after those that it needs. So each job of the pipeline runs once, after those that it needs itself.
func TestGithubMatrix(t *testing.T) {
	p, all := withSite(t)
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Matrix(jobs)
	if err != nil {
		t.Fatal(err)
	}
	file := readFile(t, exampleWorkflows, "images.yml")
	actionlint(t, []byte(file))
	if shown, _, found := strings.Cut(file, "  test:\n"); !found || !strings.Contains(readFile(t, "../../docs/guide", "pipeline.md"), shown) {
		t.Errorf("docs/guide/pipeline.md shows another workflow than\n%s", shown)
	}
	var w workflow
	if err := yaml.Unmarshal([]byte(file), &w); err != nil {
		t.Fatal(err)
	}
	r := newRepository(t, text, nil)
	output := filepath.Join(r.dir, "output")
	shell := func(script string) {
		t.Helper()
		if out, err := r.run(t, []string{"GITHUB_OUTPUT=" + output}, "bash", "-e", "-c", script); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	plan := w.Jobs["plan"]
	shell(plan.Steps[1].Run)
	line, ok := strings.CutPrefix(strings.TrimSuffix(readFile(t, r.dir, "output"), "\n"), "jobs=")
	if want := "${{ steps." + plan.Steps[1].ID + ".outputs.jobs }}"; !ok || strings.Contains(line, "\n") || plan.Outputs["jobs"] != want {
		t.Fatalf("the step's output is %q, and the job's is %q, want %q", line, plan.Outputs["jobs"], want)
	}
	var matrices map[string]struct{ Include []map[string]any }
	if err := json.Unmarshal([]byte(line), &matrices); err != nil {
		t.Fatal(err)
	}
	done := []string{"plan"}
	for len(done) < len(w.Jobs) {
		ran := len(done)
		for name, j := range w.Jobs {
			if slices.Contains(done, name) || slices.ContainsFunc(needsOf(j.Needs), func(need string) bool { return !slices.Contains(done, need) }) {
				continue
			}
			done = append(done, name)
			stage := matrixOf.FindStringSubmatch(j.Strategy.Matrix)
			if stage == nil || !strings.Contains(j.If, stage[0]) || strings.ReplaceAll(name, "-", " ") != stage[1] {
				t.Errorf("%s has the matrix %q when %q", name, j.Strategy.Matrix, j.If)
				continue
			}
			for _, row := range matrices[stage[1]].Include {
				if id := fromMatrix(t, j.Name, row); !slices.Contains(idsOf(jobs), id) {
					t.Errorf("%s is called %q, which no job is", name, id)
				}
				shell(fromMatrix(t, j.Steps[1].Run, row))
			}
		}
		if len(done) == ran {
			t.Fatalf("after %q nothing can run", done)
		}
	}
	r.wantAll(t, jobs)
}

func needsOf(v any) []string {
	if one, ok := v.(string); ok {
		return []string{one}
	}
	return strs(v)
}
