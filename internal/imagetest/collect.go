package imagetest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/slurm"
)

// outcome is what a job has left of a test.
type outcome struct {
	runs    []run
	nodes   []string
	started time.Time
	log     Log
	lacks   bool   // there were not enough nodes
	unknown string // why it cannot be judged; "" when it can
	broken  string // what is wrong with what it left, which is a failure; "" for nothing
	job     string
}

// maxLog bounds what a test may print, in bytes.
const maxLog = 64 << 20

// maxSmall bounds the small files of a job's directory.
const maxSmall = 64 << 10

// collect reads what a job has left. state is how it ended: only one that ended by itself has failed tests.
func (b *batch) collect(state slurm.State, id string) ([]outcome, error) {
	ended := ""
	switch {
	case state.Failed() && state.Name != "OUT_OF_MEMORY": // which it is when any part of it is
		ended = fmt.Sprintf("job %s ended as %s%s", id, state.Name, state.Because())
	case !b.has("done") && state.Name == slurm.Gone:
		ended = fmt.Sprintf("job %s is gone, and has not come to its end", id)
	case !b.has("done"):
		ended = fmt.Sprintf("job %s ended as %s before its last test", id, state.Name)
	}
	outcomes := make([]outcome, len(b.Tests))
	for i, t := range b.Tests {
		o, err := b.outcomeOf(i, t, ended)
		if err != nil {
			return nil, fmt.Errorf("test %s: %w", t.Title(), err)
		}
		o.job = id
		outcomes[i] = o
	}
	return outcomes, nil
}

func (b *batch) outcomeOf(i int, t Test, ended string) (outcome, error) {
	dir := filepath.Join(b.dir, strconv.Itoa(i+1))
	o := outcome{unknown: ended}
	if text, err := readSmall(filepath.Join(dir, "lacks")); err == nil {
		o.lacks = true
		o.unknown = fmt.Sprintf("it needs %d nodes, and the job has %s", t.NodeCount(), strings.TrimSpace(text))
		return o, nil
	}
	if text, err := readSmall(filepath.Join(dir, "nodes")); err == nil {
		words := strings.Fields(text)
		if len(words) > 0 {
			if began, err := strconv.ParseInt(words[0], 10, 64); err == nil {
				o.started = time.Unix(began, 0).UTC()
			}
			o.nodes = words[1:]
		}
	}
	return o, o.readLog(dir, t)
}

// readLog reads the log of a test, run by run. What is cut or damaged is said in the outcome.
func (o *outcome) readLog(dir string, t Test) error {
	path := filepath.Join(dir, "log")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLog+1))
	if err != nil {
		return err
	}
	o.log = Log{File: path, Size: int64(len(data))}
	if o.log.SHA256, err = hashFile(path); err != nil {
		return err
	}
	if len(data) > maxLog {
		o.broken = fmt.Sprintf("it printed more than %d MiB", maxLog>>20)
		return nil
	}
	if m := nodeFailure.FindSubmatch(data); m != nil {
		o.unknown = fmt.Sprintf("the node %s failed while it ran", m[1])
	}
	at := 0
	for k := 1; k <= t.Runs(); k++ {
		text, err := readSmall(filepath.Join(dir, fmt.Sprintf("run-%d.end", k)))
		if err != nil {
			return nil //nolint:nilerr // a run that has no end is missing, which is judged
		}
		var code, end int
		if n, err := fmt.Sscan(text, &code, &end); n != 2 || err != nil || end < at {
			o.broken = fmt.Sprintf("the end of run %d is not readable", k)
			return nil
		}
		if end > len(data) {
			o.broken = fmt.Sprintf("its log is cut: it has %d bytes of %d", len(data), end)
			return nil
		}
		o.runs = append(o.runs, run{code: code, timedOut: code == timedOutCode, log: data[at:end]})
		at = end
	}
	return nil
}

// timedOutCode is how timeout(1) ends when it had to end the program.
const timedOutCode = 124

// nodeFailure is what srun says when a node fails under it.
var nodeFailure = lazyregexp.New(`(?m)^srun: error: Node failure on (\S+)`)

func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSmall))
	return string(data), err
}

// result judges one test by what its job has left.
func (b *batch) result(i int, o outcome) Result {
	t := b.Tests[i]
	r := Result{
		Test: t.Title(), Hash: b.hashes[i], Cluster: b.Cluster.Name, Image: b.Image.Name, ImageDigest: b.ImageDigest,
		Nodes: o.nodes, Started: o.started, Log: o.log,
	}
	if o.job != "" {
		r.Jobs = []string{o.job}
	}
	j := b.judgeOutcome(t, o)
	r.Verdict, r.Reason, r.Measurements = j.verdict, j.reason, j.measurements
	return r
}

// judgeOutcome judges what can be judged: all runs that there should be, up to one that fails.
func (b *batch) judgeOutcome(t Test, o outcome) judgement {
	whole := len(o.runs) == t.Runs()
	if len(o.runs) > 0 && o.runs[len(o.runs)-1].code != 0 {
		whole = true // none follows
	}
	switch {
	case o.unknown != "" && !whole:
		return judgement{verdict: NotJudged, reason: o.unknown}
	case o.broken != "":
		return failed("%s", o.broken)
	case !whole:
		return failed("%d of its %d runs came to their end", len(o.runs), t.Runs())
	}
	j := judge(t, b.Cluster, o.runs)
	if j.verdict == Failed && o.unknown != "" {
		return judgement{verdict: NotJudged, reason: fmt.Sprintf("%s, and %s", j.reason, o.unknown)}
	}
	return j
}
