package nodejob

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/slurm"
)

// follower is a command and its job.
type follower struct {
	Command
	Options
	name string // of the job
	dir  string // of the job's files
	id   string // the job's number

	read   int64 // bytes of the events that were shown
	told   bool  // where it runs
	failed *failure
	done   bool // this process has removed the directory, or will not need it any more
}

// send submits the job, unless there is one that has not ended.
func (f *follower) send(ctx context.Context, root string) error {
	lock, err := filelock.Acquire(ctx, f.dir, "submitting "+f.name, func(note string, _ time.Duration) { f.Say("%s", note) })
	if err != nil {
		return err
	}
	defer lock.Release()
	if f.id, err = f.find(ctx); err != nil {
		return err
	}
	if f.id != "" {
		f.Say("job %s (%s) was submitted before: showing what it does", f.id, f.name)
		return nil
	}
	sweep(ctx, root)
	if err := f.prepare(root); err != nil {
		return errors.Join(err, os.RemoveAll(f.dir))
	}
	r, err := slurm.Submit(ctx, slurm.Record{
		Name: f.name, Cluster: f.Cluster.Name, Image: f.Name, Dir: f.dir, Script: filepath.Join(f.dir, scriptFile), Log: f.log(slurm.Number),
	}, nil)
	if err != nil {
		return errors.Join(err, os.RemoveAll(f.dir))
	}
	f.id = r.ID
	if err := f.put(jobFile, []byte(f.id+"\n")); err != nil {
		return errors.Join(err, f.cancel())
	}
	f.Say("submitted job %s (%s)", f.id, f.name)
	return nil
}

// log is what Slurm itself writes of the job with a number.
func (f *follower) log(id string) string { return filepath.Join(f.dir, f.name+"-"+id+".log") }

// find finds a job of this name that has not ended.
func (f *follower) find(ctx context.Context) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.dir, jobFile))
	if err != nil {
		id, dir, err := slurm.Queued(ctx, f.name)
		if err != nil || dir != f.dir {
			return "", err
		}
		return id, nil // it was submitted, and whoever did was killed before writing that down
	}
	id := strings.TrimSpace(string(text))
	state, err := slurm.StateOf(ctx, id)
	if err != nil || state.Ended() || f.has(endFile) {
		return "", err
	}
	return id, nil
}

func (f *follower) has(name string) bool {
	_, err := os.Stat(filepath.Join(f.dir, name))
	return err == nil
}

func (f *follower) put(name string, data []byte) error {
	return atomicfile.Write(filepath.Join(f.dir, name), data, 0o600)
}

// prepare makes the directory of a job anew.
func (f *follower) prepare(root string) error {
	program, err := f.program(root)
	if err != nil {
		return err
	}
	t := task{Args: f.Args, Dir: f.Dir, Env: carried(f.Env), Secrets: f.Secrets, Login: podmanLogin(), Local: f.Cluster.Paths.Local}
	for _, dir := range append([]string{f.Dir}, f.Places...) {
		p, err := placeOf(dir)
		if err != nil {
			return err
		}
		t.Places = append(t.Places, p)
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	text, err := f.script(f.name, program, f.dir)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(f.dir), os.Mkdir(f.dir, 0o700)); err != nil {
		return err
	}
	return errors.Join(f.put(taskFile, data), f.put(scriptFile, []byte(text)))
}

// ofMachine are variables that say something of one machine, or of one session on it.
var ofMachine = []string{"TMPDIR", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "SSH_AUTH_SOCK", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "HOSTNAME", "GOMEMLIMIT", "SCONCE_SCRATCH"}

// carried are the variables that a command takes to a node.
func carried(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(ofMachine, name) || strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SBATCH_")
	})
}

// maxLogin bounds a file of credentials.
const maxLogin = 4 << 20

// podmanLogin is what podman login has written where it does unless told otherwise: in a directory of this machine.
func podmanLogin() []byte {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "containers", "auth.json"))
	if err != nil || len(data) > maxLogin || len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	return data
}

// keptFor is how long the directory of a job stays that nobody has followed to its end.
const keptFor = 7 * 24 * time.Hour

// sweep removes secrets of jobs that have ended without reading them, and what nobody has asked for any more.
func sweep(ctx context.Context, root string) {
	tasks, err := filepath.Glob(filepath.Join(root, jobPrefix+"*", taskFile))
	if err != nil {
		return
	}
	for _, path := range tasks {
		id, err := os.ReadFile(filepath.Join(filepath.Dir(path), jobFile))
		if err != nil {
			continue // it is being submitted
		}
		if state, err := slurm.StateOf(ctx, strings.TrimSpace(string(id))); err == nil && state.Ended() {
			os.Remove(path)
		}
	}
	ended, err := filepath.Glob(filepath.Join(root, jobPrefix+"*", endFile))
	if err != nil {
		return
	}
	for _, path := range ended {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > keptFor {
			os.RemoveAll(filepath.Dir(path))
		}
	}
}
