package imagetest

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Verdict is what came of a test.
type Verdict string

// The verdicts. The first three are those of in-toto's test-result predicate; the others are no evidence of anything.
const (
	Passed    Verdict = "PASSED"
	Warned    Verdict = "WARNED"     // it failed on some nodes and passed on others, which the result names
	Failed    Verdict = "FAILED"     // the image is at fault, as far as can be told
	NotJudged Verdict = "NOT_JUDGED" // it did not run, or not to its end: for want of nodes, a node that failed, a job that was cancelled
	Skipped   Verdict = "SKIPPED"    // the recipe says so
)

// Result is what came of one test of an image on a cluster.
type Result struct {
	Test         string        `json:"test"`              // its name
	Hash         string        `json:"hash"`              // see [Hash]
	Cluster      string        `json:"cluster,omitempty"` // "" is the machine that sconce runs on
	Image        string        `json:"image,omitempty"`   // for people: "llm-train:25.11"
	ImageDigest  string        `json:"imageDigest"`       // of its manifest: "sha256:…"
	Verdict      Verdict       `json:"verdict"`
	Reason       string        `json:"reason,omitempty"` // in a line; empty for a test that passed
	Measurements []Measurement `json:"measurements,omitempty"`
	Nodes        []string      `json:"nodes,omitempty"`    // that it ran on
	Suspects     []string      `json:"suspects,omitempty"` // that it failed on, while it passed on others
	Jobs         []string      `json:"jobs,omitempty"`     // their numbers
	Started      time.Time     `json:"started,omitzero"`   // UTC
	Log          Log           `json:"log,omitzero"`
}

// Measurement is a number that a test has printed: of several runs the median.
type Measurement struct {
	Name string `json:"name"`
	Number
	Runs      []float64 `json:"runs,omitempty"`     // of each run, in the same unit
	Expected  string    `json:"expected,omitempty"` // as the recipe has it
	Reference string    `json:"reference,omitempty"`
	Met       *bool     `json:"met,omitempty"` // nil: nothing was expected
}

// Log is what the runs of a test have printed.
type Log struct {
	File   string `json:"file,omitempty"`   // where it lies, absolute
	SHA256 string `json:"sha256,omitempty"` // hexadecimal
	Size   int64  `json:"size,omitempty"`   // bytes
}

// Open opens the log, which must be the one that was judged.
func (l Log) Open() (io.ReadCloser, error) {
	f, err := os.OpenFile(l.File, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != l.Size) {
		err = fmt.Errorf("%s is no longer the log that was judged", l.File)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// there reports whether the log is still there, where there was one.
func (l Log) there() bool {
	if l.File == "" {
		return true
	}
	f, err := l.Open()
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// PredicateType is that of in-toto's test results.
const PredicateType = "https://in-toto.io/attestation/test-result/v0.1"

// Predicate is a result as in-toto's test-result v0.1 has it. What that has no field for follows behind.
type Predicate struct {
	Result        Verdict      `json:"result"`
	Configuration []Descriptor `json:"configuration"` // the test, under its hash
	PassedTests   []string     `json:"passedTests,omitempty"`
	WarnedTests   []string     `json:"warnedTests,omitempty"`
	FailedTests   []string     `json:"failedTests,omitempty"`

	Cluster      string        `json:"cluster,omitempty"`
	Reason       string        `json:"reason,omitempty"`
	Measurements []Measurement `json:"measurements,omitempty"`
	Nodes        []string      `json:"nodes,omitempty"`
	Suspects     []string      `json:"suspects,omitempty"`
	Started      time.Time     `json:"started,omitzero"`
	Log          *Descriptor   `json:"log,omitempty"`
}

// Descriptor is in-toto's ResourceDescriptor.
type Descriptor struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Predicate returns the result as evidence. One that was not judged is none.
func (r Result) Predicate() (Predicate, error) {
	p := Predicate{
		Result: r.Verdict, Configuration: []Descriptor{{r.Test, map[string]string{"sha256": r.Hash}}},
		Cluster: r.Cluster, Reason: r.Reason, Measurements: r.Measurements, Nodes: r.Nodes, Suspects: r.Suspects, Started: r.Started,
	}
	if r.Log.SHA256 != "" {
		p.Log = &Descriptor{r.Test + ".log", map[string]string{"sha256": r.Log.SHA256}}
	}
	switch r.Verdict {
	case Passed:
		p.PassedTests = []string{r.Test}
	case Warned:
		p.WarnedTests = []string{r.Test}
	case Failed:
		p.FailedTests = []string{r.Test}
	case NotJudged, Skipped:
		return p, fmt.Errorf("test %s is %s, which is no evidence", r.Test, r.Verdict)
	}
	return p, nil
}
