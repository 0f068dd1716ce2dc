// Package imagetest tests images on clusters: what a recipe says under [[test]] becomes one job, and what the job leaves becomes a
// [Result] for each test.
//
// Nothing counts as good because nobody said otherwise. A test that prints no number, a job that vanished, a log that is cut, a test
// that was left out: none of them has passed. A test that fails once runs again on other nodes, which tells a bad image from a bad node.
//
// A test is data, and its [Hash] is over all that decides its verdict, besides the image: whoever keeps results asks for a new one when
// the hash is another.
package imagetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
)

// Test is a test as a recipe describes it, and its JSON is that table. What each field may hold is said by the recipe's table of keys.
type Test struct {
	Name         string            `toml:"name" json:"name,omitempty"` // "": see Test.Title
	Use          string            `toml:"use" json:"use,omitempty"`   // one of Kit
	Run          string            `toml:"run" json:"run,omitempty"`   // of the shell, by each task
	Files        []string          `toml:"files" json:"files,omitempty"`
	Modules      []string          `toml:"modules" json:"modules,omitempty"` // that use = "import" imports
	Nodes        int               `toml:"nodes" json:"nodes,omitempty"`     // 0: 1
	TasksPerNode int               `toml:"tasks-per-node" json:"tasksPerNode,omitempty"`
	Clusters     []string          `toml:"clusters" json:"clusters,omitempty"` // where it runs; empty: everywhere
	Time         string            `toml:"time" json:"time,omitempty"`         // of one run: "10m"
	Env          map[string]string `toml:"env" json:"env,omitempty"`
	Expect       map[string]string `toml:"expect" json:"expect,omitempty"` // by the name of a measurement; see ParseExpectation
	Log          []string          `toml:"log" json:"log,omitempty"`       // regular expressions that the log must match
	NotLog       []string          `toml:"not-log" json:"notLog,omitempty"`
	Reader       string            `toml:"reader" json:"reader,omitempty"` // one of Readers
	Repeat       int               `toml:"repeat" json:"repeat,omitempty"` // 0: 1
	Skip         string            `toml:"skip" json:"skip,omitempty"`     // why it is left out
}

// The kit: tests that are there for every image with a Python, and for most of them a PyTorch.
const (
	Env         = "env"
	Import      = "import"
	GPU         = "gpu"
	AllReduce   = "all-reduce"
	AllToAll    = "all-to-all"
	SendRecv    = "sendrecv"
	MPIPingPong = "mpi-pingpong"
)

// Kit lists the tests of the kit.
var Kit = []string{Env, Import, GPU, AllReduce, AllToAll, SendRecv, MPIPingPong}

// DefaultTime is how long one run of a test may take that does not say so.
const DefaultTime = 10 * time.Minute

// Title is the name of a test: its own, else that of the kit's test.
func (t Test) Title() string { return cmp.Or(t.Name, t.Use) }

// NodeCount is on how many nodes the test runs.
func (t Test) NodeCount() int { return max(1, t.Nodes) }

// Runs is how often the test runs.
func (t Test) Runs() int { return max(1, t.Repeat) }

// Limit is how long one run may take.
func (t Test) Limit() time.Duration {
	d, err := job.ParseTime(t.Time)
	if err != nil || d <= 0 {
		return DefaultTime
	}
	return d
}

// On reports whether the test is for a cluster of this name; "" is this machine.
func (t Test) On(cluster string) bool {
	return len(t.Clusters) == 0 || slices.Contains(t.Clusters, cluster)
}

// Problem is what is wrong with a test, under a key of its table.
type Problem struct {
	Key  string // "expect", "run", ...; "" for the table itself
	Item int    // of a list, from 0; -1 for none
	Name string // of a table's entry; "" for none
	Err  error  // which may have a hint
}

// Problems says what is wrong with a test that no single value of it shows.
func (t Test) Problems() []Problem {
	var all []Problem
	add := func(key string, item int, name string, err error) {
		if err != nil {
			all = append(all, Problem{key, item, name, err})
		}
	}
	add("", -1, "", t.checkWhat())
	for i, f := range t.Files {
		if !filepath.IsLocal(f) {
			add("files", i, "", fault.Hint(fmt.Errorf("%q leads out of the recipe's directory", f), "what a test needs lies beside the recipe"))
		}
	}
	for key, list := range map[string][]string{"log": t.Log, "not-log": t.NotLog} {
		for i, text := range list {
			if _, err := regexp.Compile(text); err != nil {
				add(key, i, "", fmt.Errorf("%q is no regular expression: %s", text, strings.TrimPrefix(err.Error(), "error parsing regexp: ")))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		add("env", -1, name, cluster.CheckVariable(name))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Expect)) {
		_, err := ParseExpectation(t.Expect[name])
		add("expect", -1, name, err)
	}
	return all
}

// checkWhat wants to know what runs, and by what it is judged.
func (t Test) checkWhat() error {
	switch {
	case t.Use == "" && t.Run == "":
		return fault.Hint(errors.New(`it has neither "use" nor "run"`), `add use = "all-reduce", or run = "python tests/bench.py" with files = ["tests"]`)
	case t.Use != "" && t.Run != "":
		return fault.Hint(errors.New(`it has both "use" and "run"`), "keep one of them")
	case t.Run != "" && t.Name == "":
		return fault.Hint(errors.New("it has no name"), `add name = "bench"`)
	case t.Run != "" && len(t.Expect)+len(t.Log) == 0:
		return fault.Hint(errors.New("nothing says when it is passed: that a command ends well says little"), `add expect = { rate = ">= 100 it/s" } for a number that it prints, or log = ["all 12 good"]`)
	case t.Use != "" && (len(t.Files) > 0 || t.Reader != ""):
		return fault.Hint(errors.New("files and reader are for a command of one's own"), `the kit brings its program along; write run = "…" for another`)
	case t.Use != Import && len(t.Modules) > 0:
		return fault.Hint(errors.New(`modules are for use = "import"`), "")
	case t.Use == SendRecv && t.NodeCount()*t.TasksPerNode == 1, t.Use == MPIPingPong && t.NodeCount()*t.TasksPerNode == 1:
		return fault.Hint(fmt.Errorf("%s needs two tasks", t.Use), "add nodes = 2, or tasks-per-node = 2")
	}
	return nil
}
