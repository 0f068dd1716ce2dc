package build

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/sandbox"
)

// compilers is the pool of Python processes that make byte code: the image's own Python, in sandboxes over base and
// system packages. It is started when the first source is to be compiled: until those are there, layers are made as far as they go without.
// Where the image's Python cannot run, one of this machine takes its place: byte code depends on the version, not on the processor.
type compilers struct {
	start func() (*python.CompilerPool, error) // once
	pool  *python.CompilerPool                 // nil until started
}

// newCompilers returns a pool of processes of a Python that ground has, or of this machine's.
func (b *builder) newCompilers(ctx context.Context, ground func(context.Context) (*made, error), executable string) *compilers {
	n := max(1, b.opts.Cores)
	if b.opts.Python != "" {
		c := &compilers{pool: python.NewCompilerPool(n, startHere(b.opts.Python))}
		c.start = func() (*python.CompilerPool, error) { return c.pool, nil }
		return c
	}
	c := &compilers{}
	c.start = sync.OnceValues(func() (*python.CompilerPool, error) {
		m, err := ground(ctx)
		if err != nil {
			return nil, err
		}
		if err := sandbox.Check(); err != nil {
			return nil, fmt.Errorf("compile byte code: %w", err)
		}
		layers, err := sandbox.Layers(ctx, b.opts.Store, m.layers())
		if err != nil {
			return nil, err
		}
		c.pool = python.NewCompilerPool(n, func(ctx context.Context) (io.WriteCloser, io.ReadCloser, func() error, error) {
			return startCompiler(ctx, layers, executable)
		})
		return c.pool, nil
	})
	return c
}

// Compile implements [python.Compiler].
func (c *compilers) Compile(ctx context.Context, path string, source []byte) (pyc []byte, ok bool, err error) {
	pool, err := c.start()
	if err != nil {
		return nil, false, err
	}
	return pool.Compile(ctx, path, source)
}

func startCompiler(ctx context.Context, layers []string, executable string) (io.WriteCloser, io.ReadCloser, func() error, error) {
	var stderr head
	p, err := sandbox.Start(ctx, sandbox.Options{
		Layers: layers, Args: python.WorkerArgs(executable), Env: python.WorkerEnv(),
		Stderr: &stderr, ReadOnly: true, NoNetwork: true, NoMounts: true, MaxProcesses: sandbox.DefaultProcesses(),
	})
	if err != nil {
		return nil, nil, nil, err
	}
	wait := func() error {
		code, err := p.Wait()
		if err == nil && code != 0 {
			err = fmt.Errorf("%s ended with code %d: %s", executable, code, strings.TrimSpace(string(stderr.text)))
		}
		return err
	}
	return p.Stdin, p.Stdout, wait, nil
}

// startHere starts processes of a Python of this machine. They compile and run nothing of what they compile, as those of pip do
// here, and end with their standard input when this process is killed.
func startHere(executable string) python.StartWorker {
	return func(ctx context.Context) (io.WriteCloser, io.ReadCloser, func() error, error) {
		args := python.WorkerArgs(executable)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = "/", python.WorkerEnv()
		var stderr head
		cmd.Stderr = &stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		wait := func() error {
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("%s: %w: %s", executable, err, strings.TrimSpace(string(stderr.text)))
			}
			return nil
		}
		return stdin, stdout, wait, cmd.Start() //nolint:forbidigo // it ends with its standard input
	}
}

// head keeps the beginning of what a process prints, which may be any amount.
type head struct{ text []byte }

// maxHead is how much of it, in bytes.
const maxHead = 16 << 10

func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), maxHead-len(h.text))]...)
	return len(p), nil
}

// close ends the processes. No Compile may be running.
func (c *compilers) close() {
	if c.pool != nil {
		c.pool.Close()
	}
}
