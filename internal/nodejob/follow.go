package nodejob

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/slurm"
)

// lookTime is how often the events of a job are looked for.
const lookTime = 200 * time.Millisecond

// settleTime is how long files of a job that has ended may take to be seen here, over a network file system.
const settleTime = 30 * time.Second

// cancelTime is how long a job that was cancelled may take to end.
const cancelTime = time.Minute

// errStuck says that a job waits for what will not come.
var errStuck = errors.New("the job will not start")

// follow shows what the job does, to its end, and says what came of it.
func (f *follower) follow(ctx context.Context) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var state slurm.State
	var lost error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		state, lost = slurm.Follow(asking, f.id, f.tellState())
	}()
	for ended := false; !ended; {
		select {
		case <-asked:
			ended = true
		case <-time.After(lookTime):
		}
		if err := f.show(); err != nil {
			stop()
			<-asked
			return errors.Join(err, f.cancel())
		}
		if e, err := f.end(); err == nil && e.Code != fault.CodeInterrupted {
			stop() // Slurm takes a while to see it
			<-asked
			return f.finish(e)
		}
	}
	switch {
	case ctx.Err() != nil:
		f.Say("cancelling job %s", f.id)
		return errors.Join(ctx.Err(), f.cancel())
	case errors.Is(lost, errStuck):
		return fault.Hint(errors.Join(fmt.Errorf("job %s will not start: Slurm says %s", f.id, state.Reason), f.cancel()),
			"look at [slurm] of the profile of "+f.clusterName()+", or give --time")
	case lost != nil:
		return fault.Hint(lost, "the job may go on: the same command follows it again")
	}
	return f.ended(ctx, state)
}

// tellState tells of a job that waits, and why. That it runs says the command itself.
func (f *follower) tellState() func(slurm.State) error {
	tell := slurm.Telling(f.id, f.Say)
	return func(s slurm.State) error {
		if s.Stuck() {
			return errStuck
		}
		if s.Name != "RUNNING" {
			tell(s)
		}
		return nil
	}
}

// maxLine bounds a line of the events, in bytes.
const maxLine = 16 << 20

// show shows the events that came since. A line without an end is left for the next time.
func (f *follower) show() error {
	if node, err := os.ReadFile(filepath.Join(f.dir, startFile)); err == nil && !f.told {
		f.told = true
		f.Say("job %s runs on %s", f.id, strings.TrimSpace(string(node)))
	}
	file, err := os.Open(filepath.Join(f.dir, eventsFile))
	if err != nil {
		return nil // it is not there yet, or no more
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, f.read, maxLine))
	if err != nil {
		return nil // a network file system is in trouble, and may come back
	}
	end := bytes.LastIndexByte(data, '\n')
	if end < 0 && len(data) == maxLine {
		return fmt.Errorf("job %s: its events have a line of more than %d MiB", f.id, maxLine>>20)
	}
	for line := range bytes.Lines(data[:end+1]) {
		f.event(line)
	}
	f.read += int64(end + 1)
	return nil
}

// Said is the kind of an event that is a line of what the command says to its user beside its progress.
const Said progress.Kind = "said"

// failure is the last event of a command that failed: see package ui.
type failure struct {
	Text string `json:"error"`
	Tip  string `json:"hint"`
	Code int    `json:"code"`
}

func (e *failure) Error() string { return e.Text }

// Hint is the command's own.
func (e *failure) Hint() string { return e.Tip }

// ExitCode is read by [fault.CodeOf].
func (e *failure) ExitCode() int { return e.Code }

func (f *follower) event(line []byte) {
	var e progress.Event
	if json.Unmarshal(line, &e) != nil {
		f.Say("%s", bytes.TrimRight(line, "\n"))
		return
	}
	switch e.Kind {
	case Said:
		f.Said(e.Text)
	case "error":
		f.failed = &failure{}
		if json.Unmarshal(line, f.failed) != nil {
			f.failed = nil
		}
	default:
		if e.Task != "" {
			e.Task = f.id + "." + e.Task // tasks of here have numbers, too
		}
		f.Events.Emit(e)
	}
}

func (f *follower) end() (e end, err error) {
	data, err := os.ReadFile(filepath.Join(f.dir, endFile))
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	return e, err
}

// taken reports whether somebody else has followed the same job to its end and removed its directory.
func (f *follower) taken() bool {
	_, err := os.Stat(f.dir)
	return f.failed == nil && !f.done && errors.Is(err, os.ErrNotExist)
}

// finish hands on what the command has printed, and removes the directory.
func (f *follower) finish(e end) error {
	if err := f.show(); err != nil { // the end is written last
		return err
	}
	out, err := os.Open(filepath.Join(f.dir, stdoutFile))
	if err != nil {
		return err
	}
	defer out.Close()
	f.done = true
	if _, err := io.Copy(f.Stdout, out); err != nil {
		return err
	}
	if err := os.RemoveAll(f.dir); err != nil {
		return err
	}
	if e.Code == 0 {
		return nil
	}
	if f.failed == nil {
		f.failed = &failure{Text: fmt.Sprintf("it ended with %d", e.Code)}
	}
	f.failed.Code = e.Code
	return f.failed
}

// ended says why a job has ended without a word of its command, or with one that it was interrupted.
func (f *follower) ended(ctx context.Context, state slurm.State) error {
	for end := time.Now().Add(settleTime); state.Name == "COMPLETED" && time.Now().Before(end); time.Sleep(lookTime) {
		if e, err := f.end(); err == nil {
			return f.finish(e)
		}
		if ctx.Err() != nil || f.taken() {
			return ctx.Err()
		}
	}
	err := fmt.Errorf("job %s (%s) ended as %s%s", f.id, f.name, state.Name, state.Because())
	hint := "the same command goes on: what was made is in the store"
	switch {
	case state.Name == "TIMEOUT":
		err = fmt.Errorf("job %s ran out of its time", f.id)
		hint = "--time gives it more; what was made until then is in the store, so that it goes on from there"
	case state.Name == "NODE_FAIL":
		err = fmt.Errorf("the node of job %s failed", f.id)
	case state.Name == "CANCELLED":
		err = fmt.Errorf("job %s was cancelled%s", f.id, state.Because())
	case !f.has(startFile):
		err = fmt.Errorf("job %s ended as %s before sconce began: the nodes of %s may not see %s, or could not run it", f.id, state.Name, f.clusterName(), f.dir)
		hint = "paths.scratch of the profile names a directory that all nodes see"
	}
	if log := f.tail(); log != "" {
		err = fmt.Errorf("%w; its log ends with:\n%s", err, log)
	}
	f.done = true
	os.RemoveAll(f.dir) // nobody needs it now
	return fault.Hint(err, hint)
}

// tailSize is how much of a log is shown, in bytes.
const tailSize = 2000

// tail is the end of what Slurm and the operating system say of the job.
func (f *follower) tail() string {
	data, err := os.ReadFile(f.log(f.id))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data[max(0, len(data)-tailSize):]))
}

// cancel ends the job, and what it has left unread is removed once it can read no more.
func (f *follower) cancel() error {
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	os.Remove(filepath.Join(f.dir, taskFile))
	if err := slurm.Cancel(ctx, f.id); err != nil && !strings.Contains(err.Error(), "Invalid job id") {
		return err
	}
	if _, err := slurm.Follow(ctx, f.id, func(slurm.State) error { return nil }); err != nil {
		return fmt.Errorf("job %s was told to end, and has not yet: %w", f.id, err)
	}
	f.done = true
	return os.RemoveAll(f.dir)
}
