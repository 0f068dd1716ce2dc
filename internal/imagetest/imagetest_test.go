package imagetest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
)

func mustHash(t *testing.T, dir string, test Test, p cluster.Profile) string {
	t.Helper()
	h, err := Hash(dir, test, p)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A hash is another one when what decides a verdict is, and only then.
func TestHash(t *testing.T) {
	write := func(t *testing.T, dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fresh := func(t *testing.T) (string, Test, cluster.Profile) {
		dir := t.TempDir()
		write(t, dir, "tests/a.py", "print(1)\n")
		write(t, dir, "README.md", "hello\n")
		if err := os.Symlink("a.py", filepath.Join(dir, "tests/b.py")); err != nil {
			t.Fatal(err)
		}
		test := Test{
			Name: "bench", Run: "python tests/a.py", Files: []string{"tests"}, Env: map[string]string{"A": "1"},
			Expect: map[string]string{"rate": ">= 90%", "time": "<= 5 us"},
		}
		p := cluster.Profile{Name: "two", Reference: map[string]string{"bench.rate": "10 GB/s", "other.rate": "1 GB/s", "bench.time": "4 us"}}
		return dir, test, p
	}
	for name, c := range map[string]struct {
		change func(dir string, test *Test, p *cluster.Profile)
		other  bool
	}{
		"nothing":       {func(string, *Test, *cluster.Profile) {}, false},
		"a threshold":   {func(_ string, test *Test, _ *cluster.Profile) { test.Expect["time"] = "<= 6 us" }, true},
		"a variable":    {func(_ string, test *Test, _ *cluster.Profile) { test.Env["A"] = "2" }, true},
		"a file's text": {func(dir string, _ *Test, _ *cluster.Profile) { write(t, dir, "tests/a.py", "print(2)\n") }, true},
		"a new file":    {func(dir string, _ *Test, _ *cluster.Profile) { write(t, dir, "tests/c.py", "") }, true},
		"a mode":        {func(dir string, _ *Test, _ *cluster.Profile) { _ = os.Chmod(filepath.Join(dir, "tests/a.py"), 0o755) }, true},
		"a link": {func(dir string, _ *Test, _ *cluster.Profile) {
			_ = os.Remove(filepath.Join(dir, "tests/b.py"))
			_ = os.Symlink("./a.py", filepath.Join(dir, "tests/b.py"))
		}, true},
		"a file of no test":   {func(dir string, _ *Test, _ *cluster.Profile) { write(t, dir, "README.md", "other\n") }, false},
		"the cluster":         {func(_ string, _ *Test, p *cluster.Profile) { p.Name = "three" }, true},
		"a reference":         {func(_ string, _ *Test, p *cluster.Profile) { p.Reference["bench.rate"] = "11 GB/s" }, true},
		"another's reference": {func(_ string, _ *Test, p *cluster.Profile) { p.Reference["other.rate"] = "2 GB/s" }, false},
		"an unused reference": {func(_ string, _ *Test, p *cluster.Profile) { p.Reference["bench.time"] = "2 us" }, false},
		"the account":         {func(_ string, _ *Test, p *cluster.Profile) { p.Slurm.Account = "g1" }, false},
		"where else it runs":  {func(_ string, test *Test, _ *cluster.Profile) { test.Clusters = []string{"two", "four"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, test, p := fresh(t)
			before := mustHash(t, dir, test, p)
			test.Env, test.Expect, p.Reference = maps.Clone(test.Env), maps.Clone(test.Expect), maps.Clone(p.Reference)
			c.change(dir, &test, &p)
			if after := mustHash(t, dir, test, p); (after != before) != c.other {
				t.Errorf("another hash: %v", after != before)
			}
		})
	}
	dir, test, p := fresh(t)
	elsewhere, _, _ := fresh(t)
	if mustHash(t, dir, test, p) != mustHash(t, elsewhere, test, p) {
		t.Error("the hash depends on where the recipe lies")
	}
	_ = os.Symlink(filepath.Join(elsewhere, "tests"), filepath.Join(dir, "way"))
	outside := test
	outside.Files = []string{"way/a.py"}
	if _, err := Hash(dir, outside, p); err == nil || !strings.Contains(err.Error(), "leads out") {
		t.Errorf("a file behind a link that leads out: %v", err)
	}
	_ = os.Symlink("../../etc/passwd", filepath.Join(dir, "tests/out"))
	if _, err := Hash(dir, test, p); err == nil || !strings.Contains(err.Error(), "leads out") {
		t.Errorf("a link that leads out: %v", err)
	}
}

func TestExpectations(t *testing.T) {
	for _, c := range []struct {
		text, reference string
		number          Number
		met             bool
	}{
		{">= 135 GB/s", "", Number{135, "GB/s"}, true},
		{">= 135 GB/s", "", Number{134.9, "GB/s"}, false},
		{">= 135 GB/s", "", Number{134, "GiB/s"}, true}, // 143.9
		{">= 1 GiB/s", "", Number{1, "GB/s"}, false},
		{">=24GB/s", "", Number{24123.4, "MB/s"}, true},
		{"≥ 8 GB/s", "", Number{64, "Gbit/s"}, true},
		{"<= 5 us", "", Number{4.9e-6, "s"}, true},
		{"<= 5 µs", "", Number{0.0051, "ms"}, false},
		{"24 GB/s ± 5%", "", Number{25.2, "GB/s"}, true},
		{"24 GB/s +- 5%", "", Number{22.7, "GB/s"}, false},
		{"2.31 ± 2%", "", Number{2.3, ""}, true},
		{">= 90%", "150 GB/s", Number{135, "GB/s"}, true},
		{">= 90%", "150 GB/s", Number{134, "GB/s"}, false},
		{"<= 110%", "10 us", Number{11.1, "us"}, false},
		{">= 100 tokens/s", "", Number{100, "tokens/s"}, true},
		{"<= 0", "", Number{0, ""}, true},
	} {
		e, err := ParseExpectation(c.text)
		if err == nil {
			e, err = e.against(c.reference)
		}
		if err != nil {
			t.Errorf("%s of %q: %v", c.text, c.reference, err)
			continue
		}
		if got, err := e.met(c.number); err != nil || got != c.met {
			t.Errorf("%s is met by %s: %v, %v", c.text, c.number, got, err)
		}
	}
	for _, text := range []string{"", "90%", "> 5", ">= ", ">= x", ">= 5 Gb/s", ">= 5 gb/s", ">= 5 GBps", "5 ± 200%", "5 GB/s", ">= 1e999", ">= -5%", ">= NaN", ">= 5 GB /s"} {
		if e, err := ParseExpectation(text); err == nil {
			t.Errorf("%q is read as %v", text, e)
		}
	}
	for _, c := range [][2]string{{">= 5 GB/s", "us"}, {">= 5 GB/s", ""}, {">= 5", "GB/s"}, {">= 5 tokens/s", "samples/s"}, {">= 5 GB/s", "Gb/s"}} {
		e, err := ParseExpectation(c[0])
		if err != nil {
			t.Fatal(err)
		}
		if met, err := e.met(Number{1e9, c[1]}); err == nil {
			t.Errorf("%s is compared with %q: %v", c[0], c[1], met)
		}
	}
}

func TestReference(t *testing.T) {
	p := cluster.Profile{Reference: map[string]string{"all-reduce@2.busbw": "2 GB/s", "all-reduce.busbw": "1 GB/s", "big@2.busbw": "3 GB/s"}}
	for _, c := range []struct {
		test Test
		want string
	}{
		{Test{Use: AllReduce, Nodes: 2}, "2 GB/s"},
		{Test{Use: AllReduce, Nodes: 4}, "1 GB/s"},
		{Test{Name: "big", Use: AllReduce, Nodes: 2}, "3 GB/s"},
		{Test{Name: "big", Use: AllReduce, Nodes: 3}, "1 GB/s"},
		{Test{Use: SendRecv, Nodes: 2}, ""},
	} {
		if got := Reference(p, c.test, "busbw"); got != c.want {
			t.Errorf("%s on %d nodes: %q, want %q", c.test.Title(), c.test.NodeCount(), got, c.want)
		}
	}
}

func TestPredicate(t *testing.T) {
	for verdict, list := range map[Verdict]func(Predicate) []string{
		Passed: func(p Predicate) []string { return p.PassedTests },
		Warned: func(p Predicate) []string { return p.WarnedTests },
		Failed: func(p Predicate) []string { return p.FailedTests },
	} {
		p, err := Result{Test: "a", Hash: "12", Verdict: verdict, Log: Log{SHA256: "34"}}.Predicate()
		if err != nil || !slices.Equal(list(p), []string{"a"}) || p.Result != verdict || p.Configuration[0].Digest["sha256"] != "12" || p.Log.Digest["sha256"] != "34" {
			t.Errorf("%s: %+v, %v", verdict, p, err)
		}
	}
	for _, verdict := range []Verdict{NotJudged, Skipped} {
		if _, err := (Result{Test: "a", Verdict: verdict}).Predicate(); err == nil {
			t.Errorf("%s is evidence", verdict)
		}
	}
}
