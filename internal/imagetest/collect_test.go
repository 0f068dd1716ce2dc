package imagetest

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/slurm"
)

// What a job has left decides, together with how it ended: what is missing or cut has never passed.
func TestCollect(t *testing.T) {
	test := Test{Name: "bench", Run: "bench", Repeat: 2, Expect: map[string]string{"rate": ">= 5 it/s"}}
	good := map[string]string{
		"started": "7\n", "done": "7\n", "1/nodes": "1700000000 n1 n2\n", "1/log": "rate = 5 it/s\nrate = 6 it/s\n", "1/run-1.end": "0 14\n", "1/run-2.end": "0 28\n",
	}
	with := func(changes ...string) map[string]string {
		files := maps.Clone(good)
		for i := 0; i < len(changes); i += 2 {
			files[changes[i]] = changes[i+1]
			if changes[i+1] == "" {
				delete(files, changes[i])
			}
		}
		return files
	}
	for name, c := range map[string]struct {
		files   map[string]string
		state   string
		verdict Verdict
		reason  string
	}{
		"good":                         {good, "COMPLETED", Passed, ""},
		"good and forgotten":           {good, slurm.Gone, Passed, ""},
		"good before it was cancelled": {with("done", ""), "CANCELLED", Passed, ""},
		"vanished":                     {map[string]string{}, slurm.Gone, NotJudged, "is gone"},
		"never started":                {map[string]string{}, "CANCELLED", NotJudged, "ended as CANCELLED"},
		"a node failed":                {with("done", "", "1/run-2.end", ""), "NODE_FAIL", NotJudged, "ended as NODE_FAIL"},
		"srun says a node failed":      {with("1/log", "srun: error: Node failure on n2\n", "1/run-1.end", "1 32\n", "1/run-2.end", ""), "COMPLETED", NotJudged, "the node n2 failed"},
		"failed as it was cancelled":   {with("done", "", "1/run-1.end", "143 14\n", "1/run-2.end", ""), "CANCELLED", NotJudged, "ended as CANCELLED"},
		"slow before it timed out":     {with("done", "", "1/log", "rate = 1 it/s\nrate = 1 it/s\n"), "TIMEOUT", NotJudged, "ended as TIMEOUT"},
		"the job timed out":            {with("done", "", "1/run-2.end", ""), "TIMEOUT", NotJudged, "ended as TIMEOUT"},
		"no word of the end":           {with("done", "", "1/run-2.end", ""), "COMPLETED", NotJudged, "before its last test"},
		"out of memory":                {with("1/run-1.end", "137 14\n", "1/run-2.end", ""), "OUT_OF_MEMORY", Failed, "exit code 137"},
		"a run is missing":             {with("1/run-2.end", ""), "COMPLETED", Failed, "1 of its 2 runs"},
		"a log that is cut":            {with("1/log", "rate = 5 it/s\nrate = 6"), "COMPLETED", Failed, "its log is cut: it has 22 bytes of 28"},
		"no log":                       {with("1/log", ""), "COMPLETED", Failed, "0 of its 2 runs"},
		"an end that is no end":        {with("1/run-2.end", "all good\n"), "COMPLETED", Failed, "not readable"},
		"an end before its start":      {with("1/run-2.end", "0 3\n"), "COMPLETED", Failed, "not readable"},
		"a second run that is silent":  {with("1/log", "rate = 5 it/s\n", "1/run-2.end", "0 14\n"), "COMPLETED", Failed, "run 2 of 2: it printed nothing"},
		"killed for its time":          {with("1/run-1.end", "124 14\n", "1/run-2.end", ""), "COMPLETED", Failed, "longer than"},
		"too few nodes":                {map[string]string{"done": "7\n", "1/lacks": "1\n"}, "COMPLETED", NotJudged, "needs 1 nodes, and the job has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			b, err := newBatch(Plan{Place: Submitted, Image: job.Image{Name: "x:1"}, ImageDigest: "sha256:1", Recipe: root, Tests: []Test{test}}, 1, nil, root)
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range c.files {
				path := filepath.Join(b.dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			outcomes, err := b.collect(slurm.State{Name: c.state}, "7")
			if err != nil {
				t.Fatal(err)
			}
			r := b.result(0, outcomes[0])
			if r.Verdict != c.verdict || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%s (%s), want %s (%s)", r.Verdict, r.Reason, c.verdict, c.reason)
			}
		})
	}
}

// The name of a job is that of what it does, and its script is plain text in which nothing of the user breaks out.
func TestScript(t *testing.T) {
	plan := Plan{
		Place: Submitted, Image: job.Image{Name: "x:1\n#SBATCH --evil", File: "/images/x y.sqsh"}, ImageDigest: "sha256:1", Recipe: t.TempDir(),
		Tests: []Test{{Name: "it", Run: "echo 'a b' \"$HOME\"", Env: map[string]string{"A": "$(touch /evil) `x` ${B}"}, Expect: map[string]string{"a": ">= 1"}}},
	}
	b, err := newBatch(plan, 1, nil, "/shared/a b's")
	if err != nil {
		t.Fatal(err)
	}
	text, err := b.script()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`cd '/shared/a b'\''s/sconce-test-x-1--SBATCH---evil-`, `export A="\$(touch /evil) \` + "`x\\`" + ` ${B}"`, `'a b'`, `'/images/x y.sqsh'`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	if strings.Contains(text, "\n#SBATCH --evil") {
		t.Errorf("a name became a directive:\n%s", text)
	}
	same, _ := newBatch(plan, 1, nil, "/elsewhere")
	again, _ := newBatch(plan, 2, []string{"n1"}, "/elsewhere")
	plan.ImageDigest = "sha256:2"
	other, _ := newBatch(plan, 1, nil, "/elsewhere")
	if same.name != b.name || other.name == b.name || again.name == b.name {
		t.Errorf("names: %s, %s elsewhere, %s of another image, %s on other nodes", b.name, same.name, other.name, again.name)
	}
}
