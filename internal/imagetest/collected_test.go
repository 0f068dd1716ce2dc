package imagetest

import (
	"testing"

	"sconce.dev/sconce/internal/cluster"
)

// What was collected and not kept is taken by whoever asks for some of these tests, of the same image and cluster, and no job is submitted
// for it; once it is kept, nobody finds it. What could not be judged is no result.
func TestUnkept(t *testing.T) {
	p := Plan{
		Place: Submitted, ImageDigest: "sha256:one", Cluster: cluster.Profile{Name: "two"}, Recipe: t.TempDir(),
		Tests: []Test{{Name: "rate", Run: "rate"}, {Name: "word", Run: "word"}, {Name: "lost", Run: "lost"}},
	}
	o := Options{Root: t.TempDir(), Unkept: t.TempDir(), Say: func(string, ...any) {}}
	hashes, err := p.hashes()
	if err != nil {
		t.Fatal(err)
	}
	var results []Result
	for i, verdict := range []Verdict{Passed, Failed, NotJudged} {
		results = append(results, Result{Test: p.Tests[i].Name, Hash: hashes[i], Cluster: "two", ImageDigest: p.ImageDigest, Verdict: verdict, Jobs: []string{"7"}})
	}
	first := &Collected{}
	first.hold(o, jobPrefix+"tiny-1", results)
	found := func(p Plan) int {
		t.Helper()
		c, err := p.unkept(o, hashes)
		if err != nil {
			t.Fatal(err)
		}
		return len(c.found)
	}
	image, machine, here := p, p, p
	image.ImageDigest, machine.Cluster.Name, here.Place = "sha256:two", "other", Here
	for name, n := range map[string]int{"all": found(p) - 2, "another image": found(image), "another cluster": found(machine), "here": found(here)} {
		if n != 0 {
			t.Errorf("%s: %+d results", name, n)
		}
	}

	p.Tests = p.Tests[1:2] // no Slurm is asked
	c, err := p.Run(t.Context(), o)
	if err != nil || len(c.Results) != 1 || c.Results[0].Test != "word" || c.Results[0].Verdict != Failed {
		t.Fatalf("%+v, %v", c, err)
	}
	for range 2 { // the second time somebody else has kept them
		if err := c.Kept(); err != nil {
			t.Fatal(err)
		}
	}
	if n := found(p); n != 0 {
		t.Errorf("%d results are found once they are kept", n)
	}
}
