package pipeline_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
)

const site = `clusters = ["here", "there"]
[ci.gitlab]
include = [{ remote = "https://ci.example.org/runners.yml" }]
variables = { SCONCE_STORE = "/dev/shm/sconce" }
build = { extends = ".builder", timeout = "6h" }
test.here = { extends = ".baremetal", variables = { SLURM_JOB_NUM_NODES = "4" } }
light = { extends = ".light" }
[ci.github]
build = { runs-on = ["self-hosted", "gh200"] }
`

// withSite is the family with what a site says of its jobs, and a test of the stack.
func withSite(t *testing.T) (*pipeline.Pipeline, []*pipeline.Status) {
	t.Helper()
	locktest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, "localhost:5000")
	change(t, dir, "pipeline.toml", "mutable", site+"[keep]\nnewest = 1\n")
	text := strings.Replace(readFile(t, dir, "pipeline.toml"), " = [\"*-dev\"]\n", "", 1)
	locktest.Write(t, dir, map[string]string{"pipeline.toml": text})
	change(t, dir, "images/stack/sconce.toml", "[image]", "[[test]]\nname = \"starts\"\nrun = \"true\"\nlog = [\"started\"]\n[image]")
	p := open(t, dir)
	images, err := p.Images(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return p, pipeline.Everything(images)
}

func parse(t *testing.T, text []byte) map[string]any {
	t.Helper()
	doc := map[string]any{}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return doc
}

func strs(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, x := range list {
		s, _ := x.(string)
		out = append(out, s)
	}
	return out
}

// gitlab is what GitLab gets of all that withSite has.
func gitlab(t *testing.T) (*pipeline.Pipeline, []pipeline.Job, []byte) {
	t.Helper()
	p, all := withSite(t)
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Gitlab(jobs)
	if err != nil {
		t.Fatal(err)
	}
	return p, jobs, text
}

// The graph as GitLab reads it: stages, needs that exist and come earlier, and the site's own keys.
func TestGitlab(t *testing.T) {
	p, jobs, text := gitlab(t)
	doc := parse(t, text)
	stages := strs(doc["stages"])
	wants := map[string][]string{
		"build base:1": nil, "promote base:1": {"build base:1"},
		"build stack:2": {"build base:1"}, "test stack:2 on here": {"build stack:2"}, "test stack:2 on there": {"build stack:2"},
		"promote stack:2": {"test stack:2 on here", "test stack:2 on there"},
		"build app:small": {"test stack:2 on here", "test stack:2 on there"}, "promote app:small": {"build app:small"},
		"build app:large-dev": {"test stack:2 on here", "test stack:2 on there"}, "promote app:large-dev": {"build app:large-dev"},
	}
	known := 0
	for name, v := range doc {
		if slices.Contains([]string{"stages", "include", "variables"}, name) {
			continue
		}
		known++
		job, _ := v.(map[string]any)
		want, ok := wants[name]
		if needs := strs(job["needs"]); !ok || !slices.Equal(needs, want) {
			t.Errorf("%s needs %q, want %q", name, needs, want)
		}
		stage, _ := job["stage"].(string)
		if kind, _, _ := strings.Cut(stage, " "); !slices.Contains(stages, stage) || !strings.HasPrefix(name, kind) {
			t.Errorf("%s is of stage %q", name, stage)
		}
		for _, need := range strs(job["needs"]) {
			before, _ := doc[need].(map[string]any)
			if earlier, _ := before["stage"].(string); slices.Index(stages, earlier) > slices.Index(stages, stage) {
				t.Errorf("%s is of stage %q, and needs %s of stage %q, which is later", name, stage, need, earlier)
			}
		}
		if len(strs(job["script"])) != 1 {
			t.Errorf("%s: %v", name, job["script"])
		}
	}
	if known != len(wants) {
		t.Errorf("%d jobs\n%s", known, text)
	}
	build, _ := doc["build app:small"].(map[string]any)
	if build["extends"] != ".builder" || build["timeout"] != "6h" || strs(build["script"])[0] != "sconce build apps/app:small --canonical" {
		t.Errorf("%v", build)
	}
	test, _ := doc["test stack:2 on here"].(map[string]any)
	variables, _ := test["variables"].(map[string]any)
	if test["extends"] != ".baremetal" || variables["SLURM_JOB_NUM_NODES"] != "4" || strs(test["script"])[0] != "sconce test images/stack --canonical --on here" {
		t.Errorf("%v", test)
	}
	promote, _ := doc["promote stack:2"].(map[string]any)
	if promote["extends"] != ".light" || promote["resource_group"] != "promote stack:2" {
		t.Errorf("%v", promote)
	}
	if again, err := p.Gitlab(jobs); err != nil || string(again) != string(text) {
		t.Errorf("another text the second time: %v", err)
	}
	nothing, err := p.Gitlab(nil)
	if err != nil || parse(t, nothing)["nothing to do"] == nil {
		t.Errorf("without jobs: %v\n%s", err, nothing)
	}
}

func idsOf(jobs []pipeline.Job) (ids []string) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// Only what is missing becomes jobs.
func TestJobsOfState(t *testing.T) {
	p, all := withSite(t)
	for n, action := range []pipeline.Action{pipeline.Fine, pipeline.Test, pipeline.Build, pipeline.Publish} {
		all[n].Action = action
	}
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	ids := idsOf(jobs)
	want := []string{"test stack:2 on here", "test stack:2 on there", "promote stack:2", "build app:small", "promote app:small", "promote app:large-dev"}
	if !slices.Equal(ids, want) {
		t.Errorf("%q", ids)
	}
	if needs := jobs[0].Needs; needs == nil || len(needs) > 0 {
		t.Errorf("the test needs %q", needs)
	}
	all[0].Action, all[0].Problem = pipeline.Lock, filepath.ErrBadPattern
	if _, err := p.Jobs(all); err == nil || !strings.Contains(err.Error(), "images/base: ") {
		t.Errorf("an image without a lock: %v", err)
	}
}

func TestGithub(t *testing.T) {
	p, all := withSite(t)
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Github(jobs)
	if err != nil {
		t.Fatal(err)
	}
	doc := parse(t, text)
	list, _ := doc["jobs"].(map[string]any)
	if len(list) != len(jobs) {
		t.Errorf("%d jobs of %d\n%s", len(list), len(jobs), text)
	}
	for id, v := range list {
		job, _ := v.(map[string]any)
		for _, need := range strs(job["needs"]) {
			if list[need] == nil {
				t.Errorf("%s needs %q, which there is not", id, need)
			}
		}
		if job["runs-on"] == nil || strings.ContainsAny(id, " :.") {
			t.Errorf("%s: %v", id, job)
		}
	}
	build, _ := list["build-app-small"].(map[string]any)
	if !slices.Equal(strs(build["runs-on"]), []string{"self-hosted", "gh200"}) {
		t.Errorf("%v", build)
	}
	actionlint(t, text)
}

// Matrices are on one line, each with the jobs of a stage, and there is none without a job.
func TestMatrix(t *testing.T) {
	p, all := withSite(t)
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Matrix(jobs)
	if err != nil || bytes.Count(text, []byte("\n")) != 1 {
		t.Fatalf("%v\n%s", err, text)
	}
	var stages map[string]struct{ Include []pipeline.Job }
	if err := json.Unmarshal(text, &stages); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for stage, m := range stages {
		for _, j := range m.Include {
			got[stage] = append(got[stage], j.Command)
		}
	}
	want := map[string][]string{
		"build":   {"sconce build images/base --canonical"},
		"build 2": {"sconce build images/stack --canonical"},
		"test 2":  {"sconce test images/stack --canonical --on here", "sconce test images/stack --canonical --on there"},
		"build 3": {"sconce build apps/app:small --canonical", "sconce build apps/app:large-dev --canonical"},
		"promote": {"sconce promote images/base", "sconce promote images/stack", "sconce promote apps/app:small", "sconce promote apps/app:large-dev"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text, err := p.Matrix(nil); err != nil || string(text) != "{}\n" {
		t.Errorf("without jobs: %q, %v", text, err)
	}
}

// What sconce writes itself is not the site's to say.
func TestSiteKeys(t *testing.T) {
	p, all := withSite(t)
	p.CI.Gitlab.Build = map[string]any{"script": "echo"}
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Gitlab(jobs); err == nil || !strings.Contains(err.Error(), "ci.gitlab.build.script: that is what sconce writes itself") {
		t.Error(err)
	}
}

// A name that a CI system, a program or a reader of the file takes for something else is refused, by the pipeline or where its jobs are written.
func TestNames(t *testing.T) {
	for _, name := range []string{"--offline", "a:b", "a\nb", "\u202ea"} {
		dir := locktest.Dir(t, locktest.Base{}, map[string]string{
			"pipeline.toml": "recipes = [\"*\"]\nstaging = \"localhost:5000/ci\"\n", "good/sconce.toml": family["images/base/sconce.toml"], name + "/sconce.toml": family["images/base/sconce.toml"],
		})
		if _, err := pipeline.Open(dir); err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	p, all := withSite(t)
	stack := all[slices.IndexFunc(all, func(st *pipeline.Status) bool { return st.Image.Ref == "images/stack" })]
	stack.Recipe.Tests[0].Clusters = []string{"${{github.head_ref}}"}
	if _, err := p.Jobs(all); err == nil || !strings.Contains(err.Error(), "replace") {
		t.Errorf("the name of a cluster: %v", err)
	}
	stack.Recipe.Tests[0].Clusters = nil
	stack.Image.Ref = "images/${{ github.head_ref }}"
	if _, err := p.Jobs(all); err == nil || !strings.Contains(err.Error(), "replace") {
		t.Errorf("the name of a directory: %v", err)
	}
}
