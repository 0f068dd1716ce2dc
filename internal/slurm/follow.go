package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PollTime is how often Slurm is asked for a job: its controller serves all users.
const PollTime = 2 * time.Second

// maxTrouble is how often in a row Slurm may fail to answer.
const maxTrouble = 30

// SilentError says that Slurm does not answer any more.
type SilentError struct {
	ID  string // of the job
	Err error
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("job %s: Slurm does not say what has become of it: %v", e.ID, e.Err)
}

func (e *SilentError) Unwrap() error { return e.Err }

// Follow asks Slurm for a job until it has ended, and calls each with every answer, the last one included; an error of each ends it. It
// bears that Slurm fails to answer for a minute.
func Follow(ctx context.Context, id string, each func(State) error) (State, error) {
	for trouble := 0; ; {
		state, err := StateOf(ctx, id)
		switch {
		case ctx.Err() != nil:
			return state, ctx.Err()
		case err != nil && trouble >= maxTrouble:
			return state, &SilentError{id, err}
		case err != nil:
			trouble++
		default:
			trouble = 0
			if err := each(state); err != nil || state.Ended() {
				return state, err
			}
		}
		select {
		case <-ctx.Done():
			return state, ctx.Err()
		case <-time.After(PollTime):
		}
	}
}

// Telling returns what is called with the states of a job, as by [Follow], and says each that is another than the one before, with the reason
// for which the job waits. Its end is for others to tell.
func Telling(id string, say func(format string, args ...any)) func(State) {
	told := ""
	return func(s State) {
		if now := strings.ToLower(s.Name) + s.Because(); !s.Ended() && s.Name != "COMPLETING" && now != told {
			told = now
			say("job %s is %s", id, now)
		}
	}
}

// never are reasons for which a job would wait until somebody changes it, or the cluster.
var never = []string{"PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"}

// Stuck reports whether the job waits for what will not come by itself.
func (s State) Stuck() bool { return !s.Ended() && slices.Contains(never, s.Reason) }

// Because is the reason in brackets, as behind a state's name: " (Priority)"; "" without one.
func (s State) Because() string {
	if s.Reason == "" {
		return ""
	}
	return " (" + s.Reason + ")"
}
