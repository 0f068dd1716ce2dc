// Package nodejob runs a command of sconce as a batch job on a node of a cluster, as if it ran here.
//
// The job is this very program. Its command line, its variables and its secrets are in one file of a directory that this user alone may
// read, on a file system that the node sees; the job removes that file before it does anything else, so that nothing of it is in the
// job's script, in Slurm's records, in the environment that the job starts with or in a list of processes. The job writes its events
// into another file, which is read here as it grows (see [Command.Run]); what it prints and how it ended lie beside that.
//
// The store is the one of here: what a step made on one node is taken by all others, and its locks keep two nodes from making the same
// thing. What is unpacked, and where steps run, is on the node's own disk.
package nodejob

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// Command is a command of sconce that runs on a node.
type Command struct {
	Name    string            // of what it is about, for people and in the job's name: "llm:25.11"
	Args    []string          // of sconce; `--progress json` and `--store` are among them
	Dir     string            // where it runs, absolute
	Key     string            // what it does in the form of today: the same command with another key is another job
	Env     []string          // variables, as os.Environ has them; those of Slurm and of this machine are left out
	Secrets map[string][]byte // by id, for --secret
	Places  []string          // directories that the node has to see as they are here, besides Dir; absolute
	Cluster cluster.Profile
	Time    time.Duration // that the job may take; 0: what the profile allows, at most usualTime
}

// AddPlace adds a directory that the node has to see, or the nearest above it that there is.
func (c *Command) AddPlace(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	if !slices.Contains(c.Places, dir) && dir != c.Dir {
		c.Places = append(c.Places, dir)
	}
	return nil
}

// Options say who is told of what happens.
type Options struct {
	Say    func(format string, args ...any) // of the job
	Said   func(text string)                // what the command says to its user, beside its progress
	Events progress.Sink                    // gets the events of the job
	Stdout io.Writer                        // gets what the command prints, when it has ended
}

// usualTime is what a job may take when nobody says, and the profile knows that it may.
const usualTime = 6 * time.Hour

// jobPrefix begins the names of these jobs.
const jobPrefix = "sconce-"

var notInNames = lazyregexp.New(`[^A-Za-z0-9._-]+`)

// jobName names the job: the same command in the same form has the same name, by which its job is found again.
func (c Command) jobName() string {
	data, err := json.Marshal([]any{c.Args, c.Dir, c.Key, c.Cluster.Name})
	if err != nil {
		panic(err) // strings have a form in JSON
	}
	sum := sha256.Sum256(data)
	name := strings.Trim(notInNames.ReplaceAllString(c.Name, "-"), "-")
	return jobPrefix + name[:min(len(name), maxName)] + "-" + hex.EncodeToString(sum[:8])
}

// maxName bounds how much of a command's name is in that of its job.
const maxName = 40

// request is the command as a job of one task, with the whole node's processors.
func (c Command) request(name string) (job.Request, error) {
	r := job.Request{
		Name: name, Image: job.Image{Name: "sconce", File: "sconce"}, Cluster: c.Cluster, Runtime: cluster.Sconce,
		Job: job.Job{TasksPerNode: 1, GPUsPerNode: new(int), CPUsPerTask: c.Cluster.Slurm.CPUsPerNode, Command: "true", Options: []string{"--export=HOME,PATH"}},
	}
	if r.Job.CPUsPerTask == 0 {
		r.Job.Options = append(r.Job.Options, "--exclusive")
	}
	longest, err := job.ParseTime(c.Cluster.Slurm.MaxTime)
	if err != nil {
		return r, fault.Usage(fmt.Errorf("slurm.max-time: %w", err))
	}
	limit := c.Time
	if limit == 0 && longest > 0 {
		limit = min(longest, usualTime)
	}
	if limit > 0 {
		r.Job.Time = fmt.Sprintf("%ds", int(limit/time.Second))
	}
	return r, nil
}

// script is the job. There is nothing of the command in it.
func (c Command) script(name, program, dir string) (string, error) {
	r, err := c.request(name)
	if err != nil {
		return "", err
	}
	step, err := job.StepOf(r)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("#!/bin/bash\n# A command of sconce, which has written this; see package nodejob.\n%s\nulimit -c 0\nexec %s on-node %s\n",
		strings.TrimSuffix(step.Directives, "\n"), quote.Word(program), quote.Word(dir)), nil
}

// The files of a job's directory.
const (
	taskFile   = "task.json" // the command with all that is secret; gone once the job has begun
	scriptFile = "job.sbatch"
	jobFile    = "job"     // the number of the job
	startFile  = "started" // the name of the node
	eventsFile = "events"  // lines of JSON
	stdoutFile = "stdout"
	endFile    = "end.json"
)

// task is a command as the node reads it.
type task struct {
	Args    []string          `json:"args"`
	Dir     string            `json:"dir"`
	Env     []string          `json:"env"`
	Secrets map[string][]byte `json:"secrets,omitempty"`
	Login   []byte            `json:"login,omitempty"` // podman's file of credentials, which is of one machine
	Places  []place           `json:"places"`
	Local   string            `json:"local,omitempty"` // directory of the node's own disk, with variables
}

// end is how a command ended.
type end struct {
	Code int `json:"code"`
}

// root is the directory of the jobs' directories, on a file system that the nodes see; it is made.
func (c Command) root() (string, error) {
	base := c.Cluster.Paths.Scratch
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		base = filepath.Join(cmp.Or(os.Getenv("XDG_STATE_HOME"), filepath.Join(home, ".local", "state")), "sconce")
		if err := os.MkdirAll(base, 0o700); err != nil {
			return "", err
		}
	}
	base, err := cluster.Expand(base, os.LookupEnv)
	if err != nil {
		return "", fmt.Errorf("paths.scratch of %s: %w", c.clusterName(), err)
	}
	if err := c.seen(base); err != nil {
		return "", err
	}
	root := filepath.Join(base, fmt.Sprintf(".sconce-%d", os.Getuid()))
	return root, private(root)
}

func (c Command) clusterName() string { return cmp.Or(c.Cluster.Name, "the cluster") }

// Run runs the command on a node and shows what it does. A job of the same command that waits or runs already is followed instead of
// sending another one. When ctx ends, the job is cancelled. The error of a command that failed there is what it said, with its hint and
// its exit code.
func (c Command) Run(ctx context.Context, o Options) error {
	root, err := c.root()
	if err != nil {
		return err
	}
	for _, dir := range append([]string{c.Dir}, c.Places...) {
		if err := c.seen(dir); err != nil {
			return err
		}
	}
	for {
		f := &follower{Command: c, Options: o, name: c.jobName()}
		f.dir = filepath.Join(root, f.name)
		if err := f.send(ctx, root); err != nil {
			return err
		}
		err := f.follow(ctx)
		if f.taken() && ctx.Err() == nil {
			continue // another sconce has followed the same job to its end, and tidied up
		}
		return err
	}
}
