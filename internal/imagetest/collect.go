package imagetest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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
	dir := strconv.Itoa(i + 1)
	o := outcome{unknown: ended}
	if text, err := b.readSmall(dir + "/lacks"); err == nil {
		o.lacks = true
		o.unknown = fmt.Sprintf("it needs %d nodes, and the job has %s", t.NodeCount(), strings.TrimSpace(text))
		return o, nil
	}
	if text, err := b.readSmall(dir + "/nodes"); err == nil {
		words := strings.Fields(text)
		if len(words) > 0 {
			if began, err := strconv.ParseInt(words[0], 10, 64); err == nil {
				o.started = time.Unix(began, 0).UTC()
			}
			o.nodes = words[1:]
		}
	}
	return o, b.readLog(dir, t, &o)
}

// readLog reads the log of a test, run by run. What is cut or damaged is said in the outcome.
func (b *batch) readLog(dir string, t Test, o *outcome) error {
	f, err := b.openFile(dir + "/log")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		o.broken = fmt.Sprintf("its log is not readable: %v", err)
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLog+1))
	if err != nil {
		return err
	}
	o.log = Log{File: filepath.Join(b.dir, dir, "log"), Size: int64(len(data))}
	if len(data) > maxLog {
		info, err := f.Stat()
		if err == nil {
			o.log.Size, o.broken = info.Size(), fmt.Sprintf("it printed more than %d MiB", maxLog>>20)
		}
		return err
	}
	sum := sha256.Sum256(data)
	o.log.SHA256 = hex.EncodeToString(sum[:])
	if m := nodeFailure.FindSubmatch(data); m != nil {
		o.unknown = fmt.Sprintf("the node %s failed while it ran", m[1])
	}
	at := 0
	for k := 1; k <= t.Runs(); k++ {
		text, err := b.readSmall(fmt.Sprintf("%s/run-%d.end", dir, k))
		if err != nil {
			return nil // a run that has no end is missing, which is judged
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

// openFile opens a file of the job's directory, which others may have written in: a link, a pipe or a device there is an error, and leads
// nowhere and waits for nobody.
func (b *batch) openFile(name string) (*os.File, error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	before, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Join(b.dir, name))
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(before, now) {
		f.Close()
		return nil, cmp.Or(err, fmt.Errorf("%s was replaced while it was opened", filepath.Join(b.dir, name)))
	}
	return f, nil
}

func (b *batch) readSmall(name string) (string, error) {
	f, err := b.openFile(name)
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
