package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/joblog"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/slurm"
)

// LogFindings is what is known of a log.
type LogFindings struct {
	Log      string           `json:"log"`
	Findings []joblog.Finding `json:"findings"`
}

// ExplainLog looks into a file, "-" for stdin, or the logs of a job that was submitted from here, for what is known to make jobs fail.
func ExplainLog(ctx context.Context, arg string, stdin io.Reader) ([]LogFindings, error) {
	if arg == "-" {
		found, err := joblog.Explain(stdin)
		if err != nil {
			return nil, fmt.Errorf("stdin: %w", err)
		}
		return []LogFindings{{"stdin", found}}, nil
	}
	if _, err := os.Stat(arg); err == nil {
		return explainFiles(arg)
	} else if strings.ContainsRune(arg, '/') || !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Usage(err)
	}
	r, err := slurm.Find(ctx, arg)
	if err != nil {
		if arg != "" {
			err = fault.Usage(fault.Hint(fmt.Errorf("%s: there is no such file, and no such job was submitted from here", arg), "name a log, or a job that `sconce jobs` lists"))
		}
		return nil, err
	}
	state := askState(ctx, r.ID)
	files, err := logsOf(r)
	if _, known := joblog.OfState(state.Name); err != nil && !known {
		return nil, err
	}
	logs, err := explainFiles(files...)
	return withState(logs, r, state), err
}

func explainFiles(files ...string) ([]LogFindings, error) {
	var all []LogFindings
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		found, err := joblog.Explain(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		all = append(all, LogFindings{file, found})
	}
	return all, nil
}

// logsOf returns the log of a job, or the logs of an array.
func logsOf(r slurm.Record) ([]string, error) {
	files, err := filepath.Glob(r.Log)
	if err == nil && len(files) == 0 {
		err = fault.Hint(fmt.Errorf("job %s has no log yet: %s", r.ID, r.Log), "`sconce jobs` shows whether it has begun")
	}
	return files, err
}

// withState puts what Slurm's state of a job says before what its logs do, unless they say it too.
func withState(logs []LogFindings, r slurm.Record, state slurm.State) []LogFindings {
	f, ok := joblog.OfState(state.Name)
	if !ok {
		return logs
	}
	for _, e := range logs {
		if slices.ContainsFunc(e.Findings, func(x joblog.Finding) bool { return x.ID == f.ID }) {
			return logs
		}
	}
	return append([]LogFindings{{"job " + r.ID, []joblog.Finding{f}}}, logs...)
}

// askTime bounds how long Slurm is asked about a job whose log is there already.
const askTime = 5 * time.Second

// askState asks Slurm for a job, if Slurm is here.
func askState(ctx context.Context, id string) slurm.State {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	state, err := slurm.StateOf(ctx, id)
	if err != nil {
		return slurm.State{Name: slurm.Gone}
	}
	return state
}

// ExplainEnd says of a job that has ended why it failed, or what made it slow, as its log and Slurm tell. It does not matter when the log
// cannot be read.
func ExplainEnd(r slurm.Record, state slurm.State) []LogFindings {
	files, err := filepath.Glob(r.Log)
	if err != nil {
		return nil
	}
	all, _ := explainFiles(files...)
	all = withState(all, r, state)
	if state.Failed() {
		return all
	}
	for i, e := range all {
		all[i].Findings = slices.DeleteFunc(e.Findings, func(f joblog.Finding) bool { return f.Role != joblog.Slowness })
	}
	return all
}

// ExplainFailed says why a job failed, if Slurm is here and says that it did.
func ExplainFailed(ctx context.Context, r slurm.Record) []LogFindings {
	if state := askState(ctx, r.ID); state.Failed() {
		return ExplainEnd(r, state)
	}
	return nil
}

// arrayLog is what stands in the name of a log for the number of an array's part.
var arrayLog = lazyregexp.New(`_\*\.log$`)

// FollowJob tells of a job's state until the job has ended, and shows its log on the way as it grows, unless log is nil. It returns what is
// known of its end, also beside the error that it failed.
func FollowJob(ctx context.Context, r slurm.Record, log io.Writer, say func(format string, args ...any)) ([]LogFindings, error) {
	if log != nil && arrayLog.MatchString(r.Log) {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("job %s is an array, and has several logs", r.ID), "look at one of "+r.Log))
	}
	var at int64
	tell := slurm.Telling(r.ID, say)
	state, err := slurm.Follow(ctx, r.ID, func(s slurm.State) error {
		tell(s)
		if log == nil {
			return nil
		}
		n, err := copyFrom(log, r.Log, at)
		at += n
		return err
	})
	if err != nil {
		return nil, err
	}
	why := ExplainEnd(r, state)
	if state.Failed() {
		return why, fault.Hint(fmt.Errorf("job %s (%s) ended as %s", r.ID, r.Name, state.Name), "its log is "+r.Log)
	}
	return why, nil
}

// CopyLogs writes the log of a job, or the logs of an array.
func CopyLogs(to io.Writer, r slurm.Record) error {
	files, err := logsOf(r)
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := copyFrom(to, file, 0); err != nil {
			return err
		}
	}
	return nil
}

// copyFrom writes a file from a byte on, and returns how much there was. A file that is not there yet is empty.
func copyFrom(to io.Writer, file string, at int64) (int64, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(to, f)
}
