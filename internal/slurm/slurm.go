// Package slurm submits jobs, and remembers which were submitted from here.
//
// It calls Slurm's own programs, whose output it asks for in a form that is made for programs. A record is a small file for each job, in
// the user's state directory, written whole or not at all, and begun before the job is submitted: one that was killed in between is
// found again by its comment. Slurm itself is asked for what has become of a job.
package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// call runs one of Slurm's programs in a directory and returns what it prints. What it complains of is part of the error.
func call(ctx context.Context, dir, program string, args ...string) (string, error) {
	if _, err := exec.LookPath(program); err != nil {
		return "", fault.Hint(fmt.Errorf("%s: there is no such program on PATH", program), "run this where Slurm's commands are, such as a login node")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = cmp.Or(dir, "."), &errs // a job begins where it was submitted
	out, err := child.Output(cmd)
	if err != nil {
		if said := strings.TrimSpace(errs.String()); said != "" {
			err = errors.New(said)
		}
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return string(out), nil
}

// Test asks Slurm whether it would take a script, and returns what it says.
func Test(ctx context.Context, dir, script string, args []string) (string, error) {
	if _, err := exec.LookPath("sbatch"); err != nil {
		_, err := call(ctx, dir, "sbatch")
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sbatch", append([]string{"--test-only", script}, args...)...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = cmp.Or(dir, "."), &said, &said
	if err := child.Run(cmd); err != nil {
		return "", fmt.Errorf("sbatch: %s", strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(said.String()), "sbatch: ")), nil
}

// Queued finds a job of this user that waits or runs, by its name: its number, and the directory that it was submitted from. The number is
// "" when there is none.
func Queued(ctx context.Context, name string) (id, dir string, err error) {
	out, err := call(ctx, "", "squeue", "--me", "--noheader", "--name="+name, "--format=%A %Z")
	if err != nil {
		return "", "", err
	}
	first, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	id, dir, _ = strings.Cut(first, " ")
	return id, dir, nil
}

// Cancel cancels a job.
func Cancel(ctx context.Context, id string) error {
	_, err := call(ctx, "", "scancel", id)
	return err
}

// Gone is the state of a job of which Slurm knows nothing any more.
const Gone = "GONE"

// State is what has become of a job.
type State struct {
	Name   string `json:"state"`            // Slurm's: "PENDING", "RUNNING", "COMPLETED", ..., or Gone
	Reason string `json:"reason,omitempty"` // why it waits
}

// Ended reports whether the job will not run any more.
func (s State) Ended() bool {
	switch s.Name {
	case "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT":
		return false
	}
	return true
}

// Failed reports whether the job ended, as far as is known, in another way than well.
func (s State) Failed() bool { return s.Ended() && s.Name != "COMPLETED" && s.Name != Gone }

// field is a field of `scontrol show job`.
var field = lazyregexp.New(`(?m)(?:^|\s)(JobState|Reason)=(\S+)`)

// StateOf asks Slurm for a job: the controller, which forgets jobs some minutes after their end, and then the accounting, where there is
// one.
func StateOf(ctx context.Context, id string) (State, error) {
	if _, err := exec.LookPath("scontrol"); err != nil {
		_, err := call(ctx, "", "scontrol")
		return State{}, err
	}
	out, err := call(ctx, "", "scontrol", "--oneliner", "show", "job", id)
	if err == nil {
		return parseState(out), nil
	}
	if ctx.Err() != nil {
		return State{}, ctx.Err()
	}
	if !strings.Contains(err.Error(), "Invalid job id") {
		return State{}, err
	}
	out, err = call(ctx, "", "sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "--jobs="+id)
	name, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if name, _, _ = strings.Cut(name, " "); err != nil || name == "" { // "CANCELLED by 1000"
		return State{Name: Gone}, nil //nolint:nilerr // clusters may have no accounting
	}
	return State{Name: name}, nil
}

// parseState reads what scontrol says of a job. Of an array there is a line for each part: one that has not ended goes first.
func parseState(text string) State {
	var last State
	for line := range strings.Lines(text) {
		var s State
		for _, m := range field.FindAllStringSubmatch(line, -1) {
			switch m[1] {
			case "JobState":
				s.Name = m[2]
			case "Reason":
				s.Reason = strings.TrimPrefix(m[2], "None")
			}
		}
		if s.Name != "" && (last.Name == "" || last.Ended()) {
			last = s
		}
	}
	if last.Name == "" {
		last.Name = Gone
	}
	return last
}
