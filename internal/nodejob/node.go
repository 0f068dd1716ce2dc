package nodejob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tempdir"
)

// Node is a command as it runs on a node.
type Node struct {
	Args           []string
	Secrets        map[string][]byte
	Host           string
	Stdout, Events io.Writer
}

// maxTask bounds the file of a command, in bytes.
const maxTask = 64 << 20

// OnNode is the job's side: it takes the command that dir has, gives it to run with everything about it as it is where it comes from,
// and writes down how it ended. What run returns is an exit code.
func OnNode(ctx context.Context, dir string, run func(context.Context, Node) int) (err error) {
	t, err := take(dir)
	if err != nil {
		return err
	}
	n := Node{Args: t.Args, Secrets: t.Secrets}
	if n.Host, err = os.Hostname(); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, startFile), []byte(n.Host+"\n"), 0o600); err != nil {
		return err
	}
	var outputs [2]*os.File
	for i, name := range []string{stdoutFile, eventsFile} {
		if outputs[i], err = os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return err
		}
		defer outputs[i].Close()
	}
	n.Stdout, n.Events = outputs[0], outputs[1]
	remove, err := t.settle()
	code := 0
	if err == nil {
		defer remove()
		code = run(ctx, n)
	} else {
		code = fault.CodeOf(err)
		err = writeFailure(outputs[1], err, code)
	}
	if err := errors.Join(err, outputs[0].Sync(), outputs[1].Sync()); err != nil {
		return err
	}
	data, err := json.Marshal(end{code})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, endFile), data, 0o600)
}

// writeFailure is the last event of a command that could not begin.
func writeFailure(w io.Writer, failed error, code int) error {
	data, err := json.Marshal(map[string]any{"kind": "error", "error": failed.Error(), "hint": fault.HintOf(failed), "code": code})
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
}

// take reads a command and removes its file: from now on this process alone knows it.
func take(dir string) (*task, error) {
	path := filepath.Join(dir, taskFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTask))
	if err != nil {
		return nil, err
	}
	t := &task{}
	return t, json.Unmarshal(data, t)
}

// settle makes this process one that is where the command comes from: variables, the directory, and a scratch directory on the node's
// own disk, which remove takes away.
func (t *task) settle() (remove func(), err error) {
	for _, p := range t.Places {
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	if err := setVariables(t.Env); err != nil {
		return nil, err
	}
	local := os.TempDir()
	if t.Local != "" {
		if local, err = cluster.Expand(t.Local, os.LookupEnv); err != nil {
			return nil, fmt.Errorf("paths.local: %w", err)
		}
		if err := os.MkdirAll(local, 0o700); err != nil {
			return nil, fmt.Errorf("paths.local: %w", err)
		}
	}
	scratch, remove, err := tempdir.MakeIn(local, "node")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.Setenv("SCONCE_SCRATCH", filepath.Join(scratch, "store")), t.writeLogin(scratch), os.Chdir(t.Dir))
	if err != nil {
		remove()
	}
	return remove, err
}

// setVariables sets variables for this process, of which nothing else can see them; those of Slurm stay, all others go.
func setVariables(env []string) error {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "SLURM") && !slices.Contains(ofMachine, name) {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeLogin puts podman's credentials where they are looked for.
func (t *task) writeLogin(scratch string) error {
	if t.Login == nil {
		return nil
	}
	dir := filepath.Join(scratch, "run", "containers")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "auth.json"), t.Login, 0o600); err != nil {
		return err
	}
	return os.Setenv("XDG_RUNTIME_DIR", filepath.Join(scratch, "run"))
}
