package imagetest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Number is a number with its unit, as a program prints it or a recipe writes it.
type Number struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

func (n Number) String() string {
	return strings.TrimSpace(strconv.FormatFloat(n.Value, 'g', 6, 64) + " " + n.Unit)
}

// unit is what a unit counts, and how many of the first unit of its kind it is.
type unit struct {
	kind   string
	factor float64
}

// units are those that are converted into each other. Prefixes of bytes are of 1000, as nccl-tests and OSU have them, and those of 1024
// say so. All other units are what they are: "tokens/s" is compared with "tokens/s".
var units = map[string]unit{
	"": {"", 1},

	"B/s": {"B/s", 1}, "kB/s": {"B/s", 1e3}, "MB/s": {"B/s", 1e6}, "GB/s": {"B/s", 1e9}, "TB/s": {"B/s", 1e12},
	"KiB/s": {"B/s", 1 << 10}, "MiB/s": {"B/s", 1 << 20}, "GiB/s": {"B/s", 1 << 30}, "TiB/s": {"B/s", 1 << 40},
	"Mbit/s": {"B/s", 1e6 / 8}, "Gbit/s": {"B/s", 1e9 / 8},

	"B": {"B", 1}, "kB": {"B", 1e3}, "MB": {"B", 1e6}, "GB": {"B", 1e9}, "TB": {"B", 1e12},
	"KiB": {"B", 1 << 10}, "MiB": {"B", 1 << 20}, "GiB": {"B", 1 << 30}, "TiB": {"B", 1 << 40},

	"ns": {"s", 1e-9}, "us": {"s", 1e-6}, "µs": {"s", 1e-6}, "μs": {"s", 1e-6}, "ms": {"s", 1e-3}, "s": {"s", 1},

	"GFLOP/s": {"FLOP/s", 1e9}, "TFLOP/s": {"FLOP/s", 1e12}, "PFLOP/s": {"FLOP/s", 1e15},
}

// misleading are spellings that people mean different things by.
var misleading = lazyregexp.New(`^(?i:[kmgt]i?b(it)?(/s|ps)?|[kmgtp]?flop/?s)$`)

// unitOf says what a unit counts. One that is only like a known one is an error: Gb/s may be bits.
func unitOf(text string) (unit, error) {
	if u, ok := units[text]; ok {
		return u, nil
	}
	if misleading.MatchString(text) {
		return unit{}, fault.Hint(fmt.Errorf("the unit %q may mean several things", text), "write B/s, kB/s, MB/s, GB/s, GiB/s, Gbit/s (and B, kB, …) or GFLOP/s, TFLOP/s")
	}
	return unit{text, 1}, nil
}

// in converts a number to another unit of the same kind.
func (n Number) in(other string) (float64, error) {
	from, err := unitOf(n.Unit)
	if err != nil {
		return 0, err
	}
	to, err := unitOf(other)
	if err != nil {
		return 0, err
	}
	if from.kind != to.kind {
		return 0, fmt.Errorf("%s cannot be compared with %s", inWords(n.Unit), inWords(other))
	}
	return n.Value * from.factor / to.factor, nil
}

func inWords(unit string) string {
	if unit == "" {
		return "a number without a unit"
	}
	return strconv.Quote(unit)
}

// The ways to expect a number.
const (
	atLeast = ">="
	atMost  = "<="
	around  = "±"
)

// Expectation is what a number must be: at least or at most another one, or around it.
type Expectation struct {
	how      string
	bound    Number  // of a relative one, the percentage
	within   float64 // of around, in percent of bound
	relative bool    // bound is a percentage of the cluster's reference
}

const (
	numberForm = `-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?`
	unitForm   = `[^\s\pC\pZ±+0-9%-][^\s\pC\pZ±%]{0,31}` // nothing that cannot be seen
)

var (
	boundForm  = lazyregexp.New(`^(>=|<=)\s*(` + numberForm + `)\s*(%|` + unitForm + `)?$`)
	aroundForm = lazyregexp.New(`^(` + numberForm + `)\s*(` + unitForm + `)?\s*(?:±|\+-|\+/-)\s*([0-9]+(?:\.[0-9]+)?)\s*%$`)
	numberText = lazyregexp.New(`^(` + numberForm + `)\s*(` + unitForm + `)?$`)
)

// ParseExpectation reads ">= 135 GB/s", "<= 5 us", "24 GB/s ± 5%" or, relative to a reference, ">= 90%". ± may be written +-.
func ParseExpectation(text string) (Expectation, error) {
	text = strings.NewReplacer("≥", ">=", "≤", "<=").Replace(strings.TrimSpace(text))
	if m := boundForm.FindStringSubmatch(text); m != nil {
		e := Expectation{how: m[1], relative: m[3] == "%"}
		var err error
		if e.bound, err = parseNumber(m[2], m[3]); err == nil && e.relative && e.bound.Value <= 0 {
			err = fmt.Errorf("%q is no part of a reference", text)
		}
		return e, err
	}
	if m := aroundForm.FindStringSubmatch(text); m != nil {
		bound, err := parseNumber(m[1], m[2])
		within, _ := strconv.ParseFloat(m[3], 64) // by the expression
		if err == nil && within > 100 {
			err = fmt.Errorf("%q lets everything pass", text)
		}
		return Expectation{how: around, bound: bound, within: within}, err
	}
	return Expectation{}, fault.Hint(fmt.Errorf("%q is not what a number can be expected to be", text), `write ">= 135 GB/s", "<= 5 us", "24 GB/s ± 5%", or ">= 90%" of the cluster's reference`)
}

func parseNumber(value, unit string) (Number, error) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsInf(v, 0) {
		return Number{}, fmt.Errorf("the number %s is out of range", value)
	}
	if unit == "%" {
		return Number{v, unit}, nil
	}
	_, err = unitOf(unit)
	return Number{v, unit}, err
}

// against returns the expectation of a reference, "150 GB/s", for one that is relative.
func (e Expectation) against(reference string) (Expectation, error) {
	if !e.relative {
		return e, nil
	}
	m := numberText.FindStringSubmatch(strings.TrimSpace(reference))
	if m == nil {
		return e, fmt.Errorf("the reference %q is not a number with a unit", reference)
	}
	bound, err := parseNumber(m[1], m[2])
	bound.Value *= e.bound.Value / 100
	return Expectation{how: e.how, bound: bound}, err
}

// met reports whether a number is what was expected.
func (e Expectation) met(n Number) (bool, error) {
	v, err := n.in(e.bound.Unit)
	if err != nil {
		return false, err
	}
	switch e.how {
	case atLeast:
		return v >= e.bound.Value, nil
	case atMost:
		return v <= e.bound.Value, nil
	}
	return math.Abs(v-e.bound.Value) <= math.Abs(e.bound.Value)*e.within/100, nil
}

// worst returns of several numbers the one that is hardest to accept. They must have units of one kind.
func (e Expectation) worst(all []Number) (Number, error) {
	var values []float64
	for _, n := range all {
		v, err := n.in(e.bound.Unit)
		if err != nil {
			return n, err
		}
		values = append(values, v)
	}
	distance := func(v float64) float64 {
		switch e.how {
		case atLeast:
			return -v
		case atMost:
			return v
		}
		return math.Abs(v - e.bound.Value)
	}
	at := 0
	for i, v := range values {
		if distance(v) > distance(values[at]) {
			at = i
		}
	}
	return all[at], nil
}

func (e Expectation) String() string {
	if e.how == around {
		return fmt.Sprintf("%s ± %g%%", e.bound, e.within)
	}
	return e.how + " " + e.bound.String()
}

// Reference finds what a cluster's profile has as the reference for a measurement of a test: under the test's name or the kit's, for this
// number of nodes or any. An empty text means that there is none.
func Reference(p cluster.Profile, t Test, measurement string) string {
	for _, name := range slices.Compact([]string{t.Title(), t.Use}) {
		for _, key := range []string{fmt.Sprintf("%s@%d.%s", name, t.NodeCount(), measurement), name + "." + measurement} {
			if text := p.Reference[key]; text != "" {
				return text
			}
		}
	}
	return ""
}

// references are those that the test's expectations refer to, by the measurement. A reference that is not there is left out.
func references(p cluster.Profile, t Test) map[string]string {
	used := map[string]string{}
	for name, text := range t.Expect {
		if e, err := ParseExpectation(text); err == nil && e.relative {
			if ref := Reference(p, t, name); ref != "" {
				used[name] = ref
			}
		}
	}
	return used
}
