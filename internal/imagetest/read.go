package imagetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// The readers of what tests print.
const (
	Lines = "lines" // NAME = VALUE UNIT, or JSON objects with name, value and unit
	JSON  = "json"  // the file that nccl-tests write (-J), versions 1 to 3
	Table = "table" // what nccl-tests, OSU's benchmarks and mpi4py.bench print
)

// Readers lists them.
var Readers = []string{Lines, JSON, Table}

// Limits of what is read.
const (
	maxNumbers = 100_000
	maxName    = 200
)

// reading is what one run has printed: numbers by their names, of which there may be several of one name. Of a table, "busbw@8" is the
// number in the column busbw and the row of 8, and "busbw" that of the last row.
type reading map[string][]Number

// read finds the numbers in what a run has printed. That there is none is an error, and so is a number that says that something is wrong.
func read(reader string, log []byte) (reading, error) {
	var r reading
	var err error
	switch reader {
	case "", Lines:
		r, err = readLines(log)
	case JSON:
		r, err = readJSON(log)
	case Table:
		r, err = readTable(log)
	default:
		err = fmt.Errorf("there is no reader %q", reader)
	}
	if err != nil {
		return nil, err
	}
	if len(r) == 0 {
		return nil, errors.New("it printed no number")
	}
	return r, r.check()
}

// check finds numbers that say that a result is wrong.
func (r reading) check() error {
	for name, all := range r {
		for _, n := range all {
			if wrongCount(name) && n.Value != 0 {
				return fmt.Errorf("%g values were wrong (%s)", n.Value, name)
			}
		}
	}
	return nil
}

// wrongCount reports whether a number of this name counts wrong values.
func wrongCount(name string) bool {
	name, _, _ = strings.Cut(name, "@")
	return strings.TrimSuffix(name, inPlace) == "nwrong"
}

func (r reading) add(name string, value float64, unit string) error {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return fmt.Errorf("%s is %v", clip(name), value)
	case len(name) > maxName || len(r) >= maxNumbers || len(r[name]) >= maxNumbers:
		return fmt.Errorf("it printed more than %d numbers, or names longer than %d characters", maxNumbers, maxName)
	}
	r[name] = append(r[name], Number{value, unit})
	return nil
}

func clip(text string) string {
	if len(text) > 60 {
		text = text[:60] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// numberLine is "busbw = 12.3 GB/s".
var numberLine = lazyregexp.New(`^\s*([A-Za-z][A-Za-z0-9._@/-]*)\s*=\s*(` + numberForm + `|[+-]?(?i:nan|inf|infinity))(?:\s+(\S+))?\s*$`)

// readLines reads NAME = VALUE UNIT and {"name": NAME, "value": VALUE, "unit": UNIT}. All other lines are passed over.
func readLines(log []byte) (reading, error) {
	r := reading{}
	for line := range bytes.Lines(log) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("{")) {
			if err := r.addObject(line); err != nil {
				return nil, err
			}
			continue
		}
		m := numberLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, fmt.Errorf("%s is %s, which is out of range", clip(string(m[1])), clip(string(m[2])))
		}
		if err := r.add(string(m[1]), value, string(m[3])); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// addObject adds a line of JSON, if it is a measurement.
func (r reading) addObject(line []byte) error {
	var o struct {
		Name  *string         `json:"name"`
		Value json.RawMessage `json:"value"`
		Unit  string          `json:"unit"`
	}
	if json.Unmarshal(line, &o) != nil || o.Name == nil || o.Value == nil {
		return nil //nolint:nilerr // some other JSON
	}
	var value float64
	if err := json.Unmarshal(o.Value, &value); err != nil || string(o.Value) == "null" {
		return fmt.Errorf("%s is %s, and no number", clip(*o.Name), clip(string(o.Value)))
	}
	return r.add(*o.Name, value, o.Unit)
}

// inPlace ends the names of what nccl-tests measure in place.
const inPlace = "-in-place"

// ncclReport is the file of nccl-tests (src/util.cu there), from release 2.17.3 on. It has version 1, version 2 since 2.19.2 and version 3
// since 2.19.6, which add only the times of each iteration.
type ncclReport struct {
	Version int          `json:"version"`
	Results []ncclResult `json:"results"`
	Bounds  *struct {
		Count float64     `json:"count"`
		Okay  ncclVerdict `json:"okay"`
	} `json:"out_of_bounds"`
	Average  *ncclAverage `json:"average_bus_bandwidth"`
	Misspelt *ncclAverage `json:"average_bus_bandwidith"` // before 2.17.9
}

type ncclAverage struct {
	Bandwidth *float64    `json:"bandwidth"`
	Misspelt  *float64    `json:"bandwidith"` // before 2.17.9
	Okay      ncclVerdict `json:"okay"`
}

// ncclVerdict is "true", "false" or "unchecked". nccl-tests write it as a string; a boolean is read as well.
type ncclVerdict string

// The verdicts that are not failures.
const (
	ncclOkay      ncclVerdict = "true"
	ncclUnchecked ncclVerdict = "unchecked" // nobody has set NCCL_TESTS_MIN_BW
)

// UnmarshalJSON reads a string or a boolean.
func (v *ncclVerdict) UnmarshalJSON(text []byte) error {
	*v = ncclVerdict(strings.Trim(string(text), `"`))
	return nil
}

type ncclResult struct {
	Size       *uint64    `json:"size"`
	OutOfPlace *ncclTimes `json:"out_of_place"`
	InPlace    *ncclTimes `json:"in_place"`
}

type ncclTimes struct {
	Time    *float64 `json:"time"` // us
	CPUTime *float64 `json:"cpu_time"`
	AlgBW   *float64 `json:"alg_bw"` // GB/s
	BusBW   *float64 `json:"bus_bw"`
	NWrong  *float64 `json:"nwrong"` // nil: not looked at
}

// ncclVersion is the newest version of the file that is read.
const ncclVersion = 3

// readJSON reads the file of nccl-tests, which begins with a line that begins with a brace. There may be one such file in the log.
func readJSON(log []byte) (reading, error) {
	report, err := findReport(log)
	if err != nil {
		return nil, err
	}
	average, err := report.summary()
	if err != nil {
		return nil, err
	}
	r := reading{}
	if err := r.add("avg-busbw", average, "GB/s"); err != nil {
		return nil, err
	}
	for _, result := range report.Results {
		if result.Size == nil {
			return nil, errors.New("a result of nccl-tests has no size")
		}
		if err := errors.Join(r.addTimes(*result.Size, "", result.OutOfPlace), r.addTimes(*result.Size, inPlace, result.InPlace)); err != nil {
			return nil, err
		}
	}
	if len(report.Results) == 0 {
		return nil, errors.New("it printed no number: the file of nccl-tests has no results")
	}
	return r, nil
}

// summary returns the average bus bandwidth, in GB/s, if the verdicts of nccl-tests are good.
func (report ncclReport) summary() (float64, error) {
	average := cmp.Or(report.Average, report.Misspelt)
	if report.Bounds == nil || average == nil || cmp.Or(average.Bandwidth, average.Misspelt) == nil {
		return 0, errors.New("the file of nccl-tests is cut: it has no summary")
	}
	if report.Bounds.Count > 0 || report.Bounds.Okay != ncclOkay {
		return 0, fmt.Errorf("%g values were out of bounds", report.Bounds.Count)
	}
	bandwidth := *cmp.Or(average.Bandwidth, average.Misspelt)
	if average.Okay != ncclOkay && average.Okay != ncclUnchecked {
		return 0, tooSlow(fmt.Sprint(bandwidth))
	}
	return bandwidth, nil
}

// tooSlow is what nccl-tests find of an average bus bandwidth below 90 % of $NCCL_TESTS_MIN_BW.
func tooSlow(bandwidth string) error {
	return fmt.Errorf("the average bus bandwidth, %s GB/s, is too low for NCCL_TESTS_MIN_BW", clip(bandwidth))
}

func findReport(log []byte) (ncclReport, error) {
	for rest := log; ; {
		at := bytes.IndexByte(rest, '{')
		if at < 0 {
			return ncclReport{}, errors.New("it printed no number: there is no JSON of nccl-tests")
		}
		begins := at == 0 || rest[at-1] == '\n'
		rest = rest[at:]
		if begins && isReport(rest) {
			var report ncclReport
			if err := json.NewDecoder(bytes.NewReader(rest)).Decode(&report); err != nil {
				return report, fmt.Errorf("the JSON of nccl-tests is damaged or cut: %w", err)
			}
			if report.Version < 1 || report.Version > ncclVersion {
				return report, fmt.Errorf("the JSON of nccl-tests has version %d, and versions 1 to %d are known", report.Version, ncclVersion)
			}
			return report, nil
		}
		rest = rest[1:]
	}
}

// isReport reports whether JSON begins as the file of nccl-tests does.
func isReport(text []byte) bool {
	text = text[:min(len(text), 200)]
	return reportHead.Regexp().Match(text)
}

var reportHead = lazyregexp.New(`^\{\s*"version"\s*:`)

func (r reading) addTimes(size uint64, suffix string, t *ncclTimes) error {
	if t == nil {
		return nil
	}
	if t.Time == nil {
		t.Time = t.CPUTime
	}
	for _, v := range []struct {
		name  string
		value *float64
		unit  string
	}{{"time", t.Time, "us"}, {"algbw", t.AlgBW, "GB/s"}, {"busbw", t.BusBW, "GB/s"}, {"nwrong", t.NWrong, ""}} {
		if v.value == nil && v.name != "nwrong" {
			return fmt.Errorf("the result of nccl-tests for %d bytes has no %s", size, v.name)
		}
		if v.value != nil {
			if err := r.addCell(v.name+suffix, strconv.FormatUint(size, 10), *v.value, v.unit); err != nil {
				return err
			}
		}
	}
	return nil
}

// addCell adds a number of a table, under its row and as the last of its column.
func (r reading) addCell(column, row string, value float64, unit string) error {
	delete(r, column)
	return errors.Join(r.add(column, value, unit), r.add(column+"@"+row, value, unit))
}

// column is a column of a table.
type column struct{ name, unit string }

// table is a table while it is read.
type table struct {
	reading
	columns []column
	nccl    bool
	rows    map[string]bool
}

// outOfBounds is nccl-tests' own verdict.
var outOfBounds = lazyregexp.New(`^#\s*Out of bounds values\s*:\s*(\S+)\s*(\S*)`)

// averageBandwidth is the average over all sizes, with nccl-tests' verdict if NCCL_TESTS_MIN_BW is set.
var averageBandwidth = lazyregexp.New(`^#\s*Avg bus bandwidth\s*:\s*(\S+)\s*(\S*)`)

// readTable reads a table whose header is a comment that begins with the word size. Columns are found by their names, in lower case with
// dashes for blanks, and rows by their first cell.
func readTable(log []byte) (reading, error) {
	t := table{reading: reading{}, rows: map[string]bool{}}
	summary := false
	for raw := range bytes.Lines(log) {
		line := strings.TrimSpace(string(raw))
		if m := outOfBounds.FindStringSubmatch(line); m != nil {
			summary = true
			if m[1] != "0" || m[2] != "OK" {
				return nil, fmt.Errorf("%s values were out of bounds", clip(m[1]))
			}
			continue
		}
		if m := averageBandwidth.FindStringSubmatch(line); m != nil {
			if m[2] != "" && m[2] != "OK" {
				return nil, tooSlow(m[1])
			}
			if err := t.addText(column{"avg-busbw", "GB/s"}, "", m[1]); err != nil {
				return nil, err
			}
			continue
		}
		var err error
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			err = t.header(strings.TrimSpace(rest))
		} else {
			err = t.row(line)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case len(t.rows) == 0:
		return nil, errors.New("it printed no number: there is no table")
	case t.nccl && !summary:
		return nil, errors.New("the table of nccl-tests is cut: it has no line about values out of bounds")
	}
	return t.reading, nil
}

// gap is what stands between two columns of a header.
var gap = lazyregexp.New(`\s{2,}|\t`)

// heading is a column's name with its unit in parentheses or brackets: "Bandwidth (MB/s)", "Avg Latency(us)", "Size [B]".
var heading = lazyregexp.New(`^(.*?)\s*(?:[(\[]([^)\]]*)[)\]])?$`)

// maxColumns is more than any table has.
const maxColumns = 64

// header begins a table, if a comment is the header of one. mpi4py.bench puts further signs between columns.
func (t *table) header(text string) error {
	if first, _, _ := strings.Cut(text, " "); !strings.EqualFold(first, "size") {
		return nil
	}
	if len(t.rows) > 0 {
		return errors.New("it printed two tables, and one is read")
	}
	if words := strings.Fields(text); slices.Contains(words, "redop") {
		return t.headerOfNCCL(words)
	}
	t.columns = nil
	for _, cell := range gap.Regexp().Split(separators.Replace(text), -1) {
		m := heading.FindStringSubmatch(strings.TrimSpace(cell))
		if m == nil || m[1] == "" || len(t.columns) >= maxColumns {
			return fmt.Errorf("the header %q is not understood", clip(text))
		}
		t.columns = append(t.columns, column{strings.ToLower(strings.Join(strings.Fields(m[1]), "-")), m[2]})
	}
	return nil
}

// separators stand between columns of mpi4py.bench.
var separators = strings.NewReplacer("|", "  ", "±", "  ")

// ncclColumns are what nccl-tests measure, out of place first and then in place. The other columns say what was measured.
var ncclColumns = map[string]column{
	"time": {"time", "us"}, "cputime": {"time", "us"}, "algbw": {"algbw", "GB/s"}, "busbw": {"busbw", "GB/s"}, "#wrong": {"nwrong", ""},
}

func (t *table) headerOfNCCL(words []string) error {
	t.nccl, t.columns = true, nil
	seen := map[string]bool{}
	if len(words) > maxColumns {
		return errors.New("the header of nccl-tests is too long")
	}
	for _, word := range words {
		c := ncclColumns[word]
		if seen[c.name] && c.name != "" {
			c.name += inPlace
		}
		seen[c.name] = true
		t.columns = append(t.columns, c)
		if word == "timestamp" { // -S 1: a day and a time, with a blank between them
			t.columns = append(t.columns, column{})
		}
	}
	return nil
}

// row adds a line of a table. Other lines are passed over: a row begins with a number, and stands below the header.
func (t *table) row(line string) error {
	cells := strings.Fields(separators.Replace(line))
	if len(t.columns) == 0 || len(cells) == 0 {
		return nil
	}
	if _, err := strconv.ParseUint(cells[0], 10, 64); err != nil {
		return nil //nolint:nilerr // not a row of the table
	}
	if len(cells) != len(t.columns) {
		return fmt.Errorf("the row %q has %d cells, and the table %d columns: is it cut?", clip(line), len(cells), len(t.columns))
	}
	if t.rows[cells[0]] {
		return fmt.Errorf("the table has two rows for %s", cells[0])
	}
	t.rows[cells[0]] = true
	for i, c := range t.columns {
		if i == 0 || c.name == "" {
			continue
		}
		if err := t.addText(c, cells[0], cells[i]); err != nil {
			return err
		}
	}
	return nil
}

// addText adds the text of a cell. What nccl-tests and OSU write where nothing was looked at, or all was well, is no number.
func (t *table) addText(c column, row, text string) error {
	switch strings.ToLower(text) {
	case "n/a", "pass":
		return nil
	case "fail", "failed":
		return fmt.Errorf("%s of the row %s is %s", c.name, row, text)
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%s of the row %s is %q, and no number", clip(c.name), clip(row), clip(text))
	}
	if row == "" {
		return t.add(c.name, value, c.unit)
	}
	return t.addCell(c.name, row, value, c.unit)
}
