package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// Job is one command that a CI system runs for a pipeline. It asks registries again what there is to do, so it may run twice.
type Job struct {
	ID      string   `json:"id"`    // "build stack:2", once in a pipeline
	Stage   string   `json:"stage"` // what it does: build, test or promote
	Image   string   `json:"image"` // Image.Ref
	Cluster string   `json:"cluster,omitempty"`
	Command string   `json:"command"`
	Needs   []string `json:"needs"` // ids of jobs that come first

	light bool // it only talks to registries
}

// What jobs do.
const (
	StageBuild   = "build"
	StageTest    = "test"
	StagePromote = "promote"
)

// Everything are statuses of images of which nothing is known, so that everything is to be done.
func Everything(images []*Image) []*Status {
	all := make([]*Status, len(images))
	for n, i := range images {
		all[n] = &Status{Image: i, Action: Build}
	}
	return all
}

// Jobs are the jobs that do what is missing. Images come after those that they stand on: their builds, and their tests.
func (p *Pipeline) Jobs(all []*Status) ([]Job, error) {
	g := &graph{pipeline: p, last: make(map[string][]string)}
	for _, st := range all {
		if st.Action == Lock {
			return nil, fmt.Errorf("%s: %w", st.Image.Ref, st.Problem)
		}
		g.add(st)
	}
	for _, j := range g.jobs {
		if strings.Contains(j.ID+j.Command, expression) {
			return nil, fault.Usage(fault.Hint(fmt.Errorf("%s: GitHub's actions replace what is behind %q in a command, before a shell reads it: %s", j.Image, expression, j.Command),
				"give the directory, or the cluster of the test, a name without it"))
		}
	}
	return g.jobs, nil
}

// expression begins what GitHub's actions replace wherever it stands in a job.
const expression = "${{"

// Allowed leaves out the jobs that promote, which would be refused, unless this is the branch that images are promoted from.
func (p *Pipeline) Allowed(ctx context.Context, jobs []Job) []Job {
	promotes := func(j Job) bool { return j.Stage == StagePromote }
	err := p.CheckBranch("jobs that promote are left out")
	if err == nil || !slices.ContainsFunc(jobs, promotes) {
		return jobs
	}
	progress.Notef(ctx, err.Error())
	return slices.DeleteFunc(slices.Clone(jobs), promotes)
}

// graph collects jobs.
type graph struct {
	pipeline *Pipeline
	jobs     []Job
	last     map[string][]string // by Image.Ref: the jobs after which others may stand on it
}

func (g *graph) add(st *Status) {
	i := st.Image
	name := i.Name + ":" + i.Version
	var before []string
	for _, below := range i.Below() {
		before = append(before, g.last[below.Ref]...)
	}
	if st.IsToBuild() {
		before = g.job(Job{ID: "build " + name, Stage: StageBuild, Image: i.Ref, Command: "sconce build " + quote.Word(i.Ref) + " --canonical", Needs: before, light: i.Parts != nil})
		g.last[i.Ref] = before
	}
	if i.Parts == nil && (st.IsToBuild() || st.Action == Test) {
		if tests := g.tests(st, name, before); len(tests) > 0 {
			before = tests
			g.last[i.Ref] = tests
		}
	}
	if len(i.Stable) > 0 && st.Action != Fine && st.Action != Stuck && st.Action != Untested && st.Action != Withdrawn {
		g.job(Job{ID: "promote " + name, Stage: StagePromote, Image: i.Ref, Command: "sconce promote " + quote.Word(i.Ref), Needs: before})
	}
}

// job adds a job and returns what comes after it needs.
func (g *graph) job(j Job) []string {
	j.Needs = append([]string{}, j.Needs...)
	g.jobs = append(g.jobs, j)
	return []string{j.ID}
}

// tests adds a job for each cluster on which the image has a test: all tests of one cluster wait in the queue once.
func (g *graph) tests(st *Status, name string, before []string) []string {
	clusters := make(map[string]bool)
	for _, t := range st.Recipe.Tests {
		for _, c := range g.pipeline.clusters(st.Image, t) {
			clusters[c] = clusters[c] || t.Skip == ""
		}
	}
	var ids []string
	for _, c := range slices.Sorted(maps.Keys(clusters)) {
		if clusters[c] {
			ids = append(ids, g.job(Job{
				ID: "test " + name + " on " + c, Stage: StageTest, Image: st.Image.Ref, Cluster: c,
				Command: "sconce test " + quote.Word(st.Image.Ref) + " --canonical --on " + quote.Word(c), Needs: before,
			})...)
		}
	}
	return ids
}

// Limits of CI systems.
const (
	maxGitlabFile  = 5 << 20   // bytes of a child pipeline's file, which is an artifact
	maxGitlabNeeds = 50        // of a job
	maxGithubFile  = 500 << 10 // bytes of a workflow

	maxGithubMatrix = 256 // jobs
)

// Gitlab writes jobs as a pipeline of GitLab, most often as the child of one that has made this file. What [ci.gitlab] says is copied
// into it; without jobs there is one that does nothing, as a pipeline needs one.
func (p *Pipeline) Gitlab(jobs []Job) ([]byte, error) {
	site := p.CI.Gitlab
	names, stageOf := rounds(jobs, true)
	doc := map[string]any{"stages": names}
	for key, value := range map[string]any{"include": site.Include, "default": site.Default, "variables": site.Variables} {
		if value != nil {
			doc[key] = value
		}
	}
	if len(jobs) == 0 {
		light, err := siteJob("ci.gitlab.light", site.Light, gitlabOwn)
		if err != nil {
			return nil, err
		}
		light["stage"], light["script"] = StageBuild, []string{"echo there is nothing to do"}
		doc["nothing to do"] = light
	}
	for _, j := range jobs {
		if len(j.Needs) > maxGitlabNeeds {
			return nil, fmt.Errorf("%s needs %d jobs, and GitLab allows %d", j.ID, len(j.Needs), maxGitlabNeeds)
		}
		one, err := siteJob("ci.gitlab."+siteKey(j), siteOf(j, site.Build, site.Test, site.Light), gitlabOwn)
		if err != nil {
			return nil, err
		}
		one["stage"], one["needs"], one["script"] = stageOf[j.ID], j.Needs, []string{j.Command}
		if j.Stage == StagePromote {
			one["resource_group"] = j.ID // two pipelines do not promote the same at once
		}
		doc[j.ID] = one
	}
	return p.yaml(doc, "GitLab", maxGitlabFile)
}

// rounds returns the names of stages in their order, and that of each job, so that jobs need those of earlier stages, and of their own where
// that is allowed, as it is in GitLab. What is built on an image that is tested first has stages of its own: build, test, build 2, test 2,
// promote. Jobs come after those that they need.
func rounds(jobs []Job, ownStage bool) (names []string, of map[string]string) {
	of = make(map[string]string)
	round := make(map[string]int) // by job: how often it was tested below
	tests := make(map[string]bool)
	last := 0
	for _, j := range jobs {
		tests[j.ID] = j.Stage == StageTest
		for _, need := range j.Needs {
			n := round[need]
			if j.Stage == StageBuild && (tests[need] || !ownStage) {
				n++
			}
			round[j.ID] = max(round[j.ID], n)
		}
		last = max(last, round[j.ID])
		of[j.ID] = j.Stage
		if n := round[j.ID]; n > 0 && j.Stage != StagePromote {
			of[j.ID] = fmt.Sprintf("%s %d", j.Stage, n+1)
		}
	}
	names = []string{StageBuild, StageTest}
	for n := range last {
		names = append(names, fmt.Sprintf("%s %d", StageBuild, n+2), fmt.Sprintf("%s %d", StageTest, n+2))
	}
	return append(names, StagePromote), of
}

// gitlabOwn are keys of jobs that are not the site's to say.
var gitlabOwn = []string{"stage", "needs", "script", "resource_group"}

// githubOwn are those of GitHub.
var githubOwn = []string{"name", "needs", "steps"}

// Github writes jobs as a workflow of GitHub's actions. What [ci.github] says is copied into its jobs.
func (p *Pipeline) Github(jobs []Job) ([]byte, error) {
	site := p.CI.Github
	all, ids := make(map[string]any), make(map[string]string)
	for _, j := range jobs {
		ids[j.ID] = githubID(j.ID)
	}
	for _, j := range jobs {
		one, err := siteJob("ci.github."+siteKey(j), siteOf(j, site.Build, site.Test, site.Light), githubOwn)
		if err != nil {
			return nil, err
		}
		if one["runs-on"] == nil {
			one["runs-on"] = "ubuntu-latest"
		}
		one["name"] = j.ID
		if len(j.Needs) > 0 { // GitHub takes no empty list
			needs := make([]string, len(j.Needs))
			for n, id := range j.Needs {
				needs[n] = ids[id]
			}
			one["needs"] = needs
		}
		one["steps"] = []map[string]any{{"uses": "actions/checkout@v4"}, {"run": j.Command}}
		if _, twice := all[ids[j.ID]]; twice {
			return nil, fmt.Errorf("two jobs are called %s as GitHub writes it: %s", ids[j.ID], j.ID)
		}
		all[ids[j.ID]] = one
	}
	doc := map[string]any{
		"name": "images", "jobs": all,
		"on": map[string]any{"push": map[string]any{"branches": []string{p.Branch}}, "workflow_dispatch": map[string]any{}},
	}
	return p.yaml(doc, "GitHub", maxGithubFile)
}

// Matrix writes the jobs of each stage as a matrix that a workflow of GitHub reads by fromJSON: an object by stage, on one line, without
// stages that have no job. Jobs need those of earlier stages alone.
func (p *Pipeline) Matrix(jobs []Job) ([]byte, error) {
	type matrix struct {
		Include []Job `json:"include"`
	}
	_, stageOf := rounds(jobs, false)
	all := make(map[string]matrix)
	for _, j := range jobs {
		stage := stageOf[j.ID]
		m := all[stage]
		if m.Include = append(m.Include, j); len(m.Include) > maxGithubMatrix {
			return nil, fmt.Errorf("the stage %q has more than %d jobs, and GitHub allows no more in a matrix", stage, maxGithubMatrix)
		}
		all[stage] = m
	}
	text, err := quote.JSON(all, "")
	return append(text, '\n'), err
}

var notOfIDs = lazyregexp.New(`[^A-Za-z0-9_]+`)

// githubID is a job's id in the letters that GitHub takes: those that it does not take are dashes.
func githubID(id string) string { return notOfIDs.ReplaceAllString(id, "-") }

// siteKey names what a job has of the site's.
func siteKey(j Job) string {
	if j.light {
		return "light"
	}
	switch j.Stage {
	case StageBuild:
		return "build"
	case StageTest:
		return "test." + j.Cluster
	}
	return "light"
}

func siteOf(j Job, build, test, light any) any {
	if j.light {
		return light
	}
	switch j.Stage {
	case StageBuild:
		return build
	case StageTest:
		byCluster, _ := test.(map[string]any)
		return byCluster[j.Cluster]
	}
	return light
}

// siteJob is a copy of what a site says of a job, without a key that is sconce's own.
func siteJob(name string, said any, own []string) (map[string]any, error) {
	if said == nil {
		return map[string]any{}, nil
	}
	table, ok := said.(map[string]any)
	if !ok {
		return nil, fault.Usage(fmt.Errorf("%s must be a table of keys of a job", name))
	}
	for _, key := range own {
		if _, given := table[key]; given {
			return nil, fault.Usage(fmt.Errorf("%s.%s: that is what sconce writes itself", name, key))
		}
	}
	return maps.Clone(table), nil
}

func (p *Pipeline) yaml(doc map[string]any, system string, limit int) ([]byte, error) {
	text, err := yaml.Marshal(doc)
	if err == nil && len(text) > limit {
		err = fmt.Errorf("the file would have %d bytes, and %s takes %d", len(text), system, limit)
	}
	return append([]byte("# Written by `sconce pipeline "+strings.ToLower(system)+"` from "+recipeFile+"; what jobs look like is said there.\n"), text...), err
}
