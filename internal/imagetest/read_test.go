package imagetest

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
)

func sample(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		reader, log, name string
		want              Number
	}{
		{Table, sample(t, "nccl-tests.txt"), "busbw", Number{150, "GB/s"}},
		{Table, sample(t, "nccl-tests.txt"), "busbw-in-place", Number{148.94, "GB/s"}},
		{Table, sample(t, "nccl-tests.txt"), "time@32", Number{12.3, "us"}},
		{Table, sample(t, "nccl-tests.txt"), "avg-busbw", Number{49.8233, "GB/s"}},
		{JSON, sample(t, "nccl-tests.json"), "busbw", Number{150, "GB/s"}},
		{JSON, sample(t, "nccl-tests.json"), "time-in-place@8", Number{11.9, "us"}},
		{JSON, sample(t, "nccl-tests.json"), "avg-busbw", Number{74.735, "GB/s"}},
		{Table, sample(t, "osu-bw.txt"), "bandwidth", Number{24123.44, "MB/s"}},
		{Table, sample(t, "osu-bw.txt"), "bandwidth@2", Number{1.05, "MB/s"}},
		{Table, sample(t, "osu-allreduce.txt"), "max-latency@4", Number{3.31, "us"}},
		{Table, sample(t, "osu-allreduce.txt"), "avg-latency", Number{812.77, "us"}},
		{Table, sample(t, "mpi4py-pingpong.txt"), "samples@1024", Number{10000, ""}},
		{Lines, "NCCL INFO x = 3\n  busbw = 12.5 GB/s\nloss = -1.5e-3\n", "busbw", Number{12.5, "GB/s"}},
		{Lines, "loss = -1.5e-3", "loss", Number{-1.5e-3, ""}},
		{Lines, `{"epoch": 3}` + "\n" + `{"name": "rate", "value": 7, "unit": "it/s"}` + "\n{broken", "rate", Number{7, "it/s"}},
	} {
		r, err := read(c.reader, []byte(c.log))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := r[c.name]; len(got) != 1 || got[0] != c.want {
			t.Errorf("%s is %v, want %v", c.name, got, c.want)
		}
	}
	r, err := read(Table, []byte(sample(t, "mpi4py-pingpong.txt")))
	if err != nil || r["bandwidth@1"][0].Unit != "MB/s" || r["time-mean@1"][0].Unit != "s" || r["stddev@1"][0].Unit != "s" {
		t.Errorf("mpi4py: %v, %v", r, err)
	}
}

// before is what stands before a text.
func before(t *testing.T, text, until string) string {
	t.Helper()
	head, _, found := strings.Cut(text, until)
	if !found {
		t.Fatalf("no %q", until)
	}
	return head
}

// swapper returns a function that replaces a text, which must be there, once.
func swapper(t *testing.T) func(in, old, by string) string {
	return func(in, old, by string) string {
		t.Helper()
		out := strings.Replace(in, old, by, 1)
		if out == in {
			t.Fatalf("no %q", old)
		}
		return out
	}
}

// Each release of nccl-tests writes its file a little differently, and its table with more columns when it is asked to.
func TestReadReleases(t *testing.T) {
	swap := swapper(t)
	text, report := sample(t, "nccl-tests.txt"), sample(t, "nccl-tests.json")
	misspelt := swap(swap(report, `"average_bus_bandwidth"`, `"average_bus_bandwidith"`), `"bandwidth"`, `"bandwidith"`)
	for name, c := range map[string]struct{ reader, log string }{
		"2.17.3":                {JSON, swap(misspelt, `"version": 3`, `"version": 1`)},
		"2.17.9":                {JSON, swap(report, `"version": 3`, `"version": 1`)},
		"2.19.2":                {JSON, swap(report, `"version": 3`, `"version": 2`)},
		"booleans":              {JSON, swap(report, `"okay": "true"`, `"okay": true`)},
		"bandwidth good enough": {JSON, swap(report, `"okay": "unchecked"`, `"okay": "true"`)},
		"table, good enough":    {Table, swap(text, "Avg bus bandwidth    : 49.8233", "Avg bus bandwidth    : 49.8233 OK")},
		"table, time stamps": {Table, strings.NewReplacer("#wrong \n", "#wrong           timestamp\n", "       0\n", "       0  2026-11-22 12:00:00\n").
			Replace(text)},
		"table, iterations": {Table, strings.NewReplacer("#wrong     time", "#wrong    i_min   i_cv%     time", "#wrong \n", "#wrong    i_min   i_cv% \n",
			"       0  ", "       0    12.00    0.10  ", "       0\n", "       0    12.00    0.10\n").Replace(text)},
	} {
		r, err := read(c.reader, []byte(c.log))
		if err != nil || len(r["busbw"]) != 1 || r["busbw"][0] != (Number{150, "GB/s"}) || r["busbw-in-place"][0] != (Number{148.94, "GB/s"}) || len(r["avg-busbw"]) != 1 {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// What is wrong, cut or missing is an error, and never a result.
func TestReadRefuses(t *testing.T) {
	text, report, osu := sample(t, "nccl-tests.txt"), sample(t, "nccl-tests.json"), sample(t, "osu-bw.txt")
	swap := swapper(t)
	for _, c := range []struct{ reader, log, want string }{
		{Lines, "", "no number"},
		{Lines, "all good\nrate: 5\n", "no number"},
		{Lines, "rate = nan it/s\n", "NaN"},
		{Lines, "rate = -inf\n", "Inf"},
		{Lines, "rate = 1e999\n", "out of range"},
		{Lines, "nwrong = 3\nbusbw = 5 GB/s\n", "3 values were wrong"},
		{Lines, `{"name": "rate", "value": "fast"}`, "no number"},
		{Lines, `{"name": "rate", "value": null}`, "no number"},
		{Table, "", "no table"},
		{Table, "1 2 3\n", "no table"},
		{Table, swap(text, "1073741824     268435456     float     sum      -1  7158.30  150.00  150.00       0", "1073741824     268435456     float     sum      -1  7158.30  150.00  150.00       7"), "7 values were wrong"},
		{Table, swap(text, ": 0 OK", ": 12 FAILED"), "12 values were out of bounds"},
		{Table, swap(text, "Avg bus bandwidth    : 49.8233", "Avg bus bandwidth    : 49.8233 FAILED"), "49.8233 GB/s, is too low"},
		{Table, swap(text, "150.00  150.00", "150.00     nan"), "NaN"},
		{Table, before(t, text, "# Out of bounds"), "is cut"},
		{Table, before(t, text, "150.00  150.00"), "is it cut?"},
		{Table, text + text, "two tables"},
		{Table, swap(osu, "24123.44", "-"), "no number"},
		{Table, swap(osu, "\n2    ", "\n1    "), "two rows for 1"},
		{Table, swap(sample(t, "osu-allreduce.txt"), "Pass", "Fail"), "Fail"},
		{JSON, "no JSON", "no number"},
		{JSON, report[:len(report)/2], "damaged or cut"},
		{JSON, swap(report, `"version": 3`, `"version": 4`), "version 4"},
		{JSON, swap(report, `"count": 0`, `"count": 5`), "5 values were out of bounds"},
		{JSON, swap(report, `"version": 3`, `"version": 0`), "version 0"},
		{JSON, swap(report, `"okay": "true"`, `"okay": "false"`), "out of bounds"},
		{JSON, swap(report, `"okay": "true"`, `"okay": false`), "out of bounds"},
		{JSON, swap(report, `"okay": "true"`, `"okay": "perhaps"`), "out of bounds"},
		{JSON, swap(report, `"okay": "unchecked"`, `"okay": "false"`), "74.735 GB/s, is too low"},
		{JSON, swap(report, `"bandwidth": 74.735000`, `"bandwidth": "nan"`), "damaged"},
		{JSON, swap(report, `"nwrong": 0`, `"nwrong": 2`), "2 values were wrong"},
		{JSON, swap(report, `"bus_bw": 150.000000`, `"bus_bw": null`), "no busbw"},
		{JSON, swap(report, `"out_of_bounds"`, `"bounds"`), "no summary"},
		{"other", "a = 1", "no reader"},
	} {
		if r, err := read(c.reader, []byte(c.log)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %.60q: %v, want %q; read %v", c.reader, c.log, err, c.want, r)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"nccl-tests.txt", "nccl-tests.json", "osu-bw.txt", "osu-allreduce.txt", "mpi4py-pingpong.txt"} {
		f.Add(sample(f, name))
	}
	f.Add("busbw = 12.5 GB/s\n{\"name\": \"a\", \"value\": 1}\n")
	f.Fuzz(func(t *testing.T, log string) {
		for _, reader := range Readers {
			r, err := read(reader, []byte(log))
			if err != nil {
				continue
			}
			if len(r) == 0 {
				t.Errorf("%s read nothing without an error", reader)
			}
			for name, all := range r {
				for _, n := range all {
					if math.IsNaN(n.Value) || math.IsInf(n.Value, 0) || wrongCount(name) && n.Value != 0 {
						t.Errorf("%s let %s = %v pass", reader, name, n)
					}
				}
			}
		}
	})
}

func FuzzParseExpectation(f *testing.F) {
	for _, text := range []string{">= 135 GB/s", "<= 5 us", "24 GB/s ± 5%", ">= 90%", "2.31 +- 2%", "24 GB/s\v± 5%"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseExpectation(text)
		if err != nil || e.relative {
			return
		}
		again, err := ParseExpectation(e.String())
		if err != nil || again.how != e.how || again.bound.Unit != e.bound.Unit {
			t.Errorf("%q is %q, which is %v, %v", text, e, again, err)
		}
		if _, err := e.met(e.bound); err != nil {
			t.Errorf("%q cannot be compared with its own bound: %v", text, err)
		}
	})
}

func TestJudge(t *testing.T) {
	p := cluster.Profile{Name: "two", Reference: map[string]string{"bench.busbw": "10 GB/s"}}
	good := func(log string) run { return run{log: []byte(log)} }
	atLeast5 := map[string]string{"busbw": ">= 5 GB/s"}
	for name, c := range map[string]struct {
		test    Test
		runs    []run
		verdict Verdict
		reason  string
	}{
		"good":                  {Test{Expect: atLeast5}, []run{good("busbw = 5 GB/s")}, Passed, ""},
		"slow":                  {Test{Expect: atLeast5}, []run{good("busbw = 4.9 GB/s")}, Failed, "busbw is 4.9 GB/s, expected >= 5 GB/s"},
		"other unit":            {Test{Expect: atLeast5}, []run{good("busbw = 5000 MB/s")}, Passed, ""},
		"wrong unit":            {Test{Expect: atLeast5}, []run{good("busbw = 5000 us")}, Failed, "cannot be compared"},
		"bits or bytes":         {Test{Expect: atLeast5}, []run{good("busbw = 50 Gb/s")}, Failed, "several things"},
		"median":                {Test{Expect: atLeast5}, []run{good("busbw = 1 GB/s"), good("busbw = 6 GB/s"), good("busbw = 7 GB/s")}, Passed, ""},
		"median slow":           {Test{Expect: atLeast5}, []run{good("busbw = 1 GB/s"), good("busbw = 9 GB/s"), good("busbw = 2 GB/s")}, Failed, "busbw is 2 GB/s"},
		"one run fails":         {Test{Expect: atLeast5}, []run{good("busbw = 6 GB/s"), {code: 1, log: []byte("Killed\n")}}, Failed, "run 2 of 2: it ended with exit code 1: Killed"},
		"worst rank":            {Test{Expect: atLeast5}, []run{good("busbw = 6 GB/s\nbusbw = 4 GB/s\nbusbw = 7 GB/s")}, Failed, "busbw is 4 GB/s"},
		"what Slurm says":       {Test{Expect: atLeast5}, []run{{code: 1, log: []byte("No such module\nsrun: error: n1: task 0: Exited with exit code 1\n")}}, Failed, "exit code 1: No such module"},
		"number and exit code":  {Test{Expect: atLeast5}, []run{{code: 3, log: []byte("busbw = 9 GB/s")}}, Failed, "exit code 3"},
		"time":                  {Test{Expect: atLeast5, Time: "5m"}, []run{{code: 124, timedOut: true, log: []byte("busbw = 9 GB/s")}}, Failed, "longer than 5m"},
		"no number":             {Test{Expect: atLeast5}, []run{good("done")}, Failed, "printed no number"},
		"another number":        {Test{Expect: atLeast5}, []run{good("algbw = 5 GB/s")}, Failed, "no such number; it printed algbw"},
		"nothing":               {Test{Log: []string{"x"}}, []run{good(" \n")}, Failed, "printed nothing"},
		"no run":                {Test{Expect: atLeast5}, nil, Failed, "did not run"},
		"NaN":                   {Test{Expect: atLeast5}, []run{good("busbw = NaN GB/s")}, Failed, "NaN"},
		"of the reference":      {Test{Name: "bench", Expect: map[string]string{"busbw": ">= 90%"}}, []run{good("busbw = 9 GB/s")}, Passed, ""},
		"below the reference":   {Test{Name: "bench", Expect: map[string]string{"busbw": ">= 90%"}}, []run{good("busbw = 8 GB/s")}, Failed, ">= 90% of 10 GB/s"},
		"no reference":          {Test{Name: "else", Expect: map[string]string{"busbw": ">= 90%"}}, []run{good("busbw = 8 GB/s")}, NotJudged, "no reference"},
		"log":                   {Test{Log: []string{"^provider is cxi$"}}, []run{good("a\nprovider is cxi\nb")}, Passed, ""},
		"log lacks":             {Test{Log: []string{"provider is cxi"}}, []run{good("provider is tcp")}, Failed, "no line with"},
		"log in every run":      {Test{Log: []string{"cxi"}}, []run{good("cxi"), good("tcp")}, Failed, "run 2 of 2"},
		"not in the log":        {Test{Expect: atLeast5, NotLog: []string{"NET/Socket"}}, []run{good("busbw = 5 GB/s\nusing NET/Socket")}, Failed, "has a line with"},
		"the kit needs numbers": {Test{Use: AllReduce}, []run{good("ok")}, Failed, "printed no number"},
		"kit":                   {Test{Use: AllReduce}, []run{good("nwrong = 0\nbusbw = 1 GB/s")}, Passed, ""},
		"kit, wrong values":     {Test{Use: AllReduce}, []run{good("nwrong = 8\nbusbw = 1 GB/s")}, Failed, "8 values were wrong"},
	} {
		if c.test.Use == "" {
			c.test.Run = "x"
		}
		j := judge(c.test, p, c.runs)
		if j.verdict != c.verdict || !strings.Contains(j.reason, c.reason) {
			t.Errorf("%s: %s, %q; want %s, %q", name, j.verdict, j.reason, c.verdict, c.reason)
		}
	}
}
