package imagetest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/quote"
)

// run is what one run of a test left: it came to its end.
type run struct {
	code     int // exit code
	timedOut bool
	log      []byte
}

// judgement is what the runs of a test say of the image on the nodes that they ran on.
type judgement struct {
	verdict      Verdict // Passed, Failed or NotJudged
	reason       string
	measurements []Measurement
}

func failed(format string, args ...any) judgement {
	return judgement{verdict: Failed, reason: fmt.Sprintf(format, args...)}
}

// judge looks at all runs of a test. Every run must have ended well, and printed what it should; of numbers the median counts.
func judge(t Test, p cluster.Profile, runs []run) judgement {
	var readings []reading
	for i, r := range runs {
		which := ""
		if len(runs) > 1 {
			which = fmt.Sprintf("run %d of %d: ", i+1, len(runs))
		}
		numbers, err := look(t, r)
		if err != nil {
			return failed("%s%v", which, err)
		}
		readings = append(readings, numbers)
	}
	if len(readings) == 0 {
		return failed("it did not run")
	}
	return measure(t, p, readings)
}

// look says what is wrong with a run, and returns its numbers.
func look(t Test, r run) (reading, error) {
	switch {
	case r.timedOut:
		return nil, fmt.Errorf("it took longer than %s", t.Limit())
	case r.code != 0:
		return nil, fmt.Errorf("it ended with exit code %d%s", r.code, lastWords(r.log))
	case len(strings.TrimSpace(string(r.log))) == 0:
		return nil, fmt.Errorf("it printed nothing")
	}
	for _, text := range t.Log {
		if found, err := matches(text, r.log); err != nil || !found {
			return nil, cmp.Or(err, fmt.Errorf("its log has no line with %q", text))
		}
	}
	for _, text := range t.NotLog {
		if found, err := matches(text, r.log); err != nil || found {
			return nil, cmp.Or(err, fmt.Errorf("its log has a line with %q", text))
		}
	}
	if t.Use == "" && len(t.Expect) == 0 {
		return reading{}, nil // its log is what is looked at
	}
	return read(readerOf(t), r.log)
}

func matches(text string, log []byte) (bool, error) {
	re, err := regexp.Compile("(?m)" + text)
	return err == nil && re.Match(log), err
}

// readerOf is what reads the numbers of a test.
func readerOf(t Test) string {
	if t.Use == MPIPingPong {
		return Table
	}
	return t.Reader
}

// lastWords is the last line that a program printed, which mostly says why it ended. What Slurm says behind it is known already.
func lastWords(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "srun: ") && !strings.HasPrefix(line, "slurmstepd: ") {
			return ": " + clipTo(line, 160)
		}
	}
	return ""
}

func clipTo(text string, n int) string {
	text = quote.Clean(text)
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// measure compares the medians of numbers with what is expected of them.
func measure(t Test, p cluster.Profile, readings []reading) judgement {
	j := judgement{verdict: Passed}
	var missed, open []string
	for _, name := range wanted(t, readings[0]) {
		m, err := measureOne(t, p, name, readings)
		text, expected := t.Expect[name]
		switch {
		case err != nil && expected:
			missed = append(missed, fmt.Sprintf("%s: %v", name, err))
			continue
		case err != nil:
			continue // nobody asked for it
		case expected && m.Met == nil:
			open = append(open, fmt.Sprintf("%s is %s, and the profile of %s has no reference for %q", name, m.Number, cmp.Or(p.Name, "this machine"), text))
		case expected && !*m.Met:
			missed = append(missed, fmt.Sprintf("%s is %s, expected %s", name, m.Number, ofReference(text, m.Reference)))
		}
		j.measurements = append(j.measurements, m)
	}
	switch {
	case len(missed) > 0:
		j.verdict, j.reason = Failed, strings.Join(missed, "; ")
	case len(open) > 0:
		j.verdict, j.reason = NotJudged, strings.Join(open, "; ")
	}
	return j
}

func ofReference(text, reference string) string {
	if reference == "" {
		return text
	}
	return text + " of " + reference
}

// wanted lists the numbers that a result has: those that something is expected of, and besides, of a table, the last row.
func wanted(t Test, r reading) []string {
	names := map[string]bool{}
	for name := range t.Expect {
		names[name] = true
	}
	for name := range r {
		if !strings.Contains(name, "@") && !wrongCount(name) && len(names) < maxMeasurements {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// maxMeasurements is how many numbers a result has, besides those that something is expected of.
const maxMeasurements = 100

func measureOne(t Test, p cluster.Profile, name string, readings []reading) (Measurement, error) {
	m := Measurement{Name: name, Expected: t.Expect[name]}
	var e Expectation
	known := false
	if m.Expected != "" {
		var err error
		if e, err = ParseExpectation(m.Expected); err != nil {
			return m, err
		}
		known = true
		if e.relative {
			if m.Reference = Reference(p, t, name); m.Reference == "" {
				known = false
			} else if e, err = e.against(m.Reference); err != nil {
				return m, err
			}
		}
	}
	for _, r := range readings {
		all := r[name]
		if len(all) == 0 {
			return m, fmt.Errorf("it printed no such number%s", alike(name, r))
		}
		n := all[len(all)-1]
		if known {
			var err error
			if n, err = e.worst(all); err != nil {
				return m, err
			}
		}
		if len(m.Runs) == 0 {
			m.Unit = n.Unit
		}
		v, err := n.in(m.Unit)
		if err != nil && n.Unit != m.Unit {
			return m, err
		} else if err != nil {
			v = n.Value // nobody compares it
		}
		m.Runs = append(m.Runs, v)
	}
	m.Value = median(m.Runs)
	if len(m.Runs) == 1 {
		m.Runs = nil
	}
	if !known {
		return m, nil
	}
	met, err := e.met(m.Number)
	m.Met = &met
	return m, err
}

// alike names the numbers that there are.
func alike(name string, r reading) string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(r)) {
		if !strings.Contains(n, "@") || strings.Contains(name, "@") && len(names) < 8 {
			names = append(names, n)
		}
	}
	return "; it printed " + clipTo(strings.Join(names, ", "), 160)
}

// median is the middle one of the values; of an even number, halfway between the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return sorted[(n-1)/2]/2 + sorted[n/2]/2
}
