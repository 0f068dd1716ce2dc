package imagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/slurm"
)

// Options says how tests are waited for.
type Options struct {
	Root   string                           // directory of the jobs' directories, absolute, which the nodes see
	Unkept string                           // directory of this user's alone, for results that were collected and may still be lost
	Detach bool                             // submit, and leave it to a later call to collect
	Wait   time.Duration                    // how long to wait for a job; 0: to its end
	Say    func(format string, args ...any) // to the user
}

// settleTime is how long files of a job that has ended may take to be seen here, over a network file system.
const settleTime = 30 * time.Second

// Run runs the tests of a plan and says what came of each. A job that an earlier call has submitted, and nobody has collected, is waited for
// instead of a new one, and what was collected and not kept is taken as it is. With Detach it returns nil.
func (p Plan) Run(ctx context.Context, o Options) (*Collected, error) {
	hashes, err := p.hashes()
	if err != nil {
		return nil, err
	}
	c, err := p.unkept(o, hashes)
	if err != nil {
		return nil, err
	}
	left := p
	left.Tests = nil
	for i, t := range p.Tests {
		if r, ok := c.found[hashes[i]]; !ok {
			left.Tests = append(left.Tests, t)
		} else {
			o.Say("%s has run before, in job %s, and what came of it was not kept", t.Title(), strings.Join(r.Jobs, ", "))
		}
	}
	if len(left.Tests) > 0 {
		if err := left.collectInto(ctx, o, c); err != nil {
			return nil, err
		}
	}
	if o.Detach {
		return nil, nil
	}
	for _, h := range hashes {
		c.Results = append(c.Results, c.found[h])
	}
	return c, nil
}

// collectInto runs the tests of a plan as one job, and those that fail once more, and collects what came of them.
func (p Plan) collectInto(ctx context.Context, o Options, c *Collected) error {
	first, err := newBatch(p, 1, nil, o.Root)
	if err != nil {
		return err
	}
	outcomes, err := first.run(ctx, o)
	if err != nil || o.Detach {
		return err
	}
	results := make([]Result, len(p.Tests))
	for i := range results {
		results[i] = first.result(i, outcomes[i])
	}
	if err := p.again(ctx, o, results); err != nil {
		return err
	}
	for _, r := range results {
		c.found[r.Hash] = r
	}
	if p.Place != Here {
		c.hold(o, first.name, results)
	}
	return first.finish(results)
}

// Left is the result of a test that is not run.
func (p Plan) Left(t Test) (Result, error) {
	hash, err := Hash(p.Recipe, t, p.Cluster)
	return Result{
		Test: t.Title(), Hash: hash, Cluster: p.Cluster.Name, Image: p.Image.Name, ImageDigest: p.ImageDigest, Verdict: Skipped, Reason: t.Skip,
	}, err
}

// again runs the tests that have failed once more on other nodes. It tells the image from the nodes. Tests that failed on the same nodes
// have a job in common, and all jobs are in the queue before the first is waited for.
func (p Plan) again(ctx context.Context, o Options, results []Result) error {
	if p.Place == Here {
		return nil
	}
	groups := map[string]*second{}
	var order []*second
	for i, r := range results {
		if r.Verdict != Failed || len(r.Nodes) == 0 {
			continue
		}
		key := strings.Join(r.Nodes, " ")
		if groups[key] == nil {
			groups[key] = &second{}
			order = append(order, groups[key])
		}
		groups[key].which = append(groups[key].which, i)
	}
	for _, g := range order {
		if err := g.begin(ctx, p, o, results); err != nil {
			return err
		}
	}
	for _, g := range order {
		if err := g.end(ctx, o, results); err != nil {
			return err
		}
	}
	return nil
}

// second is the second run of some tests.
type second struct {
	*batch
	which   []int // of the results
	refused error // by Slurm
}

func (g *second) begin(ctx context.Context, p Plan, o Options, results []Result) error {
	all := p.Tests
	p.Tests = nil
	for _, i := range g.which {
		p.Tests = append(p.Tests, all[i])
	}
	exclude := nodesOf(results[g.which[0]].Nodes)
	var err error
	if g.batch, err = newBatch(p, 2, exclude, o.Root); err != nil {
		return err
	}
	o.Say("%s failed on %s: once more on other nodes", titles(p.Tests), strings.Join(exclude, ", "))
	if p.Place == Submitted {
		_, err = g.submit(ctx, o)
		if errors.As(err, new(refusedError)) {
			g.refused, err = err, nil
		}
	}
	return err
}

func (g *second) end(ctx context.Context, o Options, results []Result) error {
	if g.refused != nil {
		for _, i := range g.which {
			results[i].Reason += fmt.Sprintf(" (on %s; there are no other nodes to try: %v)", strings.Join(results[i].Nodes, ", "), g.refused)
		}
		return nil
	}
	outcomes, err := g.run(ctx, o)
	if err != nil {
		return err
	}
	for k, i := range g.which {
		results[i] = verdictOfTwo(results[i], g.result(k, outcomes[k]), outcomes[k].lacks)
	}
	return g.finish(results)
}

func titles(tests []Test) string {
	var names []string
	for _, t := range tests {
		names = append(names, t.Title())
	}
	return strings.Join(names, ", ")
}

// verdictOfTwo puts together what a test that failed and its second run on other nodes say.
func verdictOfTwo(first, second Result, lacks bool) Result {
	where := strings.Join(first.Nodes, ", ")
	second.Jobs = nodesOf(first.Jobs, second.Jobs)
	switch {
	case lacks:
		first.Reason += fmt.Sprintf(" (on %s; there are no other nodes to try)", where)
		return first
	case second.Verdict == Passed:
		second.Verdict, second.Suspects = Warned, first.Nodes
		second.Reason = fmt.Sprintf("passed on %s, and failed on %s, which may be at fault: %s", strings.Join(second.Nodes, ", "), where, first.Reason)
	case second.Verdict == Failed:
		second.Reason = fmt.Sprintf("%s (on %s, and before on %s)", second.Reason, strings.Join(second.Nodes, ", "), where)
	default:
		second.Reason = fmt.Sprintf("failed on %s (%s), and the second run could not be judged: %s", where, first.Reason, second.Reason)
	}
	second.Nodes = nodesOf(first.Nodes, second.Nodes)
	second.Started = first.Started
	return second
}

// refusedError says that Slurm takes no such job.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// run brings the job about, or finds it, and waits for its end.
func (b *batch) run(ctx context.Context, o Options) ([]outcome, error) {
	if b.Place != Submitted {
		return b.runScript(ctx)
	}
	id, err := b.submit(ctx, o)
	if err != nil || o.Detach {
		return nil, err
	}
	state, err := b.wait(ctx, o, id)
	if err != nil {
		return nil, err
	}
	return b.collect(state, id)
}

// runScript runs the script as a child of this process.
func (b *batch) runScript(ctx context.Context) ([]outcome, error) {
	if err := b.prepare(); err != nil {
		return nil, err
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, bash, filepath.Join(b.dir, scriptFile))
	var said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = ".", &said, &said, killTime
	err = child.Group(cmd, syscall.SIGTERM)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	state := slurm.State{Name: "COMPLETED"}
	if err != nil {
		state = slurm.State{Name: "FAILED", Reason: clipTo(strings.TrimSpace(said.String())+" "+err.Error(), 200)}
	}
	return b.collect(state, os.Getenv("SLURM_JOB_ID"))
}

// submit finds the job or submits it, and returns its number.
func (b *batch) submit(ctx context.Context, o Options) (string, error) {
	if err := os.MkdirAll(filepath.Dir(b.dir), 0o755); err != nil {
		return "", err
	}
	lock, err := filelock.Acquire(ctx, b.dir, "submitting tests", func(note string, _ time.Duration) { o.Say("%s", note) })
	if err != nil {
		return "", err
	}
	defer lock.Release()
	id, err := b.find(ctx)
	if err != nil || id != "" {
		if id != "" && !b.told {
			b.told = true
			o.Say("job %s (%s) was submitted before: collecting what it does", id, b.name)
		}
		return id, err
	}
	b.told = true
	if err := b.prepare(); err != nil {
		return "", err
	}
	r, err := slurm.Submit(ctx, slurm.Record{
		Name: b.name, Cluster: b.Cluster.Name, Image: b.Image.Name, Digest: b.ImageDigest, File: b.Image.File,
		Dir: b.dir, Script: filepath.Join(b.dir, scriptFile), Log: filepath.Join(b.dir, b.name+"-"+slurm.Number+".log"),
	}, nil)
	if err != nil {
		if b.attempt > 1 && ctx.Err() == nil {
			err = refusedError{err}
		}
		return "", err
	}
	if err := b.put("job", []byte(r.ID+"\n")); err != nil {
		return "", err
	}
	o.Say("submitted job %s (%s) with %s", r.ID, b.name, titles(b.Tests))
	return r.ID, nil
}

// find finds a job of this name that nobody has collected: by the user's own records of jobs, which name the directory that this or another
// checkout has submitted it from, and by Slurm's queue. What a directory says of itself counts for a job that one of these names: others
// may have brought it along.
func (b *batch) find(ctx context.Context) (string, error) {
	records, err := slurm.Records(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range records {
		other := *b
		other.dir = r.Dir
		if r.Name == b.name && other.open() == r.ID {
			b.dir = r.Dir
			return r.ID, nil
		}
	}
	id, dir, err := slurm.Queued(ctx, b.name)
	if err == nil && id != "" && filepath.IsAbs(dir) {
		b.dir = dir
	}
	return id, err
}

// open is the number of the job that the directory is of, unless its results were collected; "" for none.
func (b *batch) open() string {
	if b.has(resultsFile) {
		return ""
	}
	for _, name := range []string{"job", "started"} {
		if text, err := b.readSmall(name); err == nil {
			if id := strings.TrimSpace(text); id != "" {
				return id
			}
		}
	}
	return ""
}

// waitingError says that a job has not come to its end in the time that there was.
type waitingError struct{ text string }

func (e waitingError) Error() string { return e.text }

// Hint is what to do.
func (e waitingError) Hint() string { return "the same command goes on waiting for it" }

// ExitCode says that nothing could be judged.
func (e waitingError) ExitCode() int { return CodeNotJudged }

// CodeNotJudged is the exit code when a test could not be judged, and none has failed.
const CodeNotJudged = 4

// errStuck says that a job waits for what will not come.
var errStuck = errors.New("the job will not start")

// wait waits for the end of a job.
func (b *batch) wait(ctx context.Context, o Options, id string) (slurm.State, error) {
	begun, told := time.Now(), ""
	state, err := slurm.Follow(ctx, id, func(state slurm.State) error {
		now := strings.ToLower(state.Name) + state.Because()
		if !state.Ended() && now != told {
			told = now
			o.Say("job %s is %s", id, now)
		}
		if !state.Ended() && o.Wait > 0 && time.Since(begun) >= o.Wait {
			return waitingError{fmt.Sprintf("job %s has not ended: it is %s", id, now)}
		}
		if state.Stuck() {
			return errStuck
		}
		return nil
	})
	if errors.Is(err, errStuck) {
		return slurm.State{Name: "CANCELLED", Reason: state.Reason}, slurm.Cancel(ctx, id)
	}
	if silent := (*slurm.SilentError)(nil); errors.As(err, &silent) {
		err = waitingError{silent.Error()}
	}
	if err != nil {
		return state, err
	}
	return state, b.settle(ctx, state)
}

// settle waits until the last file of a job that has ended well is seen here.
func (b *batch) settle(ctx context.Context, state slurm.State) error {
	if state.Name != "COMPLETED" {
		return nil
	}
	for end := time.Now().Add(settleTime); time.Now().Before(end) && !b.has("done"); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(slurm.PollTime / 4):
		}
	}
	return nil
}

func (b *batch) has(name string) bool {
	_, err := os.Lstat(filepath.Join(b.dir, name))
	return err == nil
}

// resultsFile is what was made of a job.
const resultsFile = "results.json"

// put writes a file of the directory whole or not at all.
func (b *batch) put(name string, data []byte) error {
	return atomicfile.Write(filepath.Join(b.dir, name), data, 0o600)
}

// finish notes that the job was collected, with its results: nobody waits for it any more.
func (b *batch) finish(results []Result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	err = b.put(resultsFile, append(data, '\n'))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody else has collected them, and begun anew
	}
	return err
}

// Code is the exit code that results mean: 0 when all that ran have passed, 3 when one has failed, else 4 when one could not be judged, or
// none has run.
func Code(results []Result) int {
	has := func(v Verdict) bool {
		return slices.ContainsFunc(results, func(r Result) bool { return r.Verdict == v })
	}
	switch {
	case has(Failed):
		return fault.CodeProblem
	case has(NotJudged), !has(Passed) && !has(Warned):
		return CodeNotJudged
	}
	return 0
}
