package python

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fault"
)

// Compiler makes byte code. Its methods may be called from many goroutines.
type Compiler interface {
	// Compile compiles the source of the module that will be at path, which is absolute. ok is false when the source
	// does not compile: templates, and files for another version of Python, are installed without byte code.
	Compile(ctx context.Context, path string, source []byte) (pyc []byte, ok bool, err error)
}

// IsTest reports whether a module is a test of its package, given the path in site-packages of its source or its byte code: its name
// begins with test_, and it lies in a directory tests, or below one. What else lies there may be imported by anybody, as
// astropy/tests/runner.py is.
//
// Tests have no byte code. In packages that bring theirs they are half of all there is to compile, programs do not import them, and pytest takes
// no byte code but its own, in which it has rewritten assertions.
func IsTest(file string) bool {
	dir, name := path.Split(file)
	return strings.HasPrefix(name, "test_") && slices.Contains(strings.Split(dir, "/"), "tests")
}

//go:embed compile_worker.py
var compileWorker string

// WorkerArgs returns the command line of a process that compiles for a [CompilerPool]. It runs in the image, on the
// image's Python, and needs no file besides it.
//
// Not -I: that would also ignore PYTHONHASHSEED, which [WorkerEnv] sets.
func WorkerArgs(python string) []string {
	return []string{python, "-s", "-S", "-B", "-c", compileWorker}
}

// WorkerEnv returns the whole environment of such a process. Before Python 3.11 the order of a constant set in byte
// code follows the hashes of strings, which are random unless a seed is given.
func WorkerEnv() []string {
	return []string{"PYTHONHASHSEED=0", "PYTHONUTF8=1", "LC_ALL=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin"}
}

// StartWorker starts one process with [WorkerArgs]. wait returns after it has ended, with the reason if it did not end
// well; closing stdin makes it end. Cancelling ctx kills it.
type StartWorker func(ctx context.Context) (stdin io.WriteCloser, stdout io.ReadCloser, wait func() error, err error)

// CompilerPool is a [Compiler] over several worker processes, started when first needed.
type CompilerPool struct {
	start  StartWorker
	ctx    context.Context // ends with the pool; workers outlive the call that started them
	cancel context.CancelFunc
	free   chan *worker // nil: a worker that is not started yet

	mu      sync.Mutex
	started []*worker
}

// NewCompilerPool returns a pool of n workers. Close ends them.
func NewCompilerPool(n int, start StartWorker) *CompilerPool {
	n = max(n, 1)
	p := &CompilerPool{start: start, free: make(chan *worker, n)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for range n {
		p.free <- nil
	}
	return p
}

// Compile implements [Compiler].
func (p *CompilerPool) Compile(ctx context.Context, path string, source []byte) ([]byte, bool, error) {
	var w *worker
	select {
	case w = <-p.free:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if w == nil {
		var err error
		if w, err = p.startWorker(); err != nil {
			p.free <- nil
			return nil, false, fmt.Errorf("compile %s: start a Python process: %w", path, err)
		}
	}
	// A worker whose conversation was broken off cannot be talked to again.
	stop := context.AfterFunc(ctx, w.kill)
	pyc, ok, err := w.compile(path, source)
	if !stop() || err != nil {
		w.kill()
		err = errors.Join(err, w.end())
		w = nil
	}
	p.free <- w
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	if err != nil {
		return nil, false, compileError(path, err)
	}
	return pyc, ok, nil
}

func compileError(path string, err error) error {
	err = fmt.Errorf("compile %s to byte code: %w", path, err)
	return fault.Hint(err, "set python.bytecode = false in the recipe to go on without byte code")
}

func (p *CompilerPool) startWorker() (*worker, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	stdin, stdout, wait, err := p.start(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &worker{stdin: stdin, stdout: stdout, end: sync.OnceValue(wait), cancel: cancel}
	p.mu.Lock()
	p.started = append(p.started, w)
	p.mu.Unlock()
	return w, nil
}

// Close ends the workers, which may be anybody's Python and need not end by themselves. No Compile may be running.
func (p *CompilerPool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.started {
		w.kill()
	}
	for _, w := range p.started {
		_ = w.end() // one that ended badly was reported by the Compile that it failed
	}
	p.cancel()
	return nil
}

// worker is one process and the conversation with it.
type worker struct {
	stdin  io.WriteCloser
	stdout io.ReadCloser
	end    func() error // waits for the process, once
	cancel context.CancelFunc
}

func (w *worker) kill() {
	w.cancel()
	w.stdin.Close()
	w.stdout.Close()
}

// The first byte of an answer.
const (
	statusCompiled = iota
	statusNoCode   // the source does not compile
	statusFailed
)

// maxBytecode bounds an answer in bytes, given the size of the source.
func maxBytecode(source int) int64 { return 64<<20 + 32*int64(source) }

func (w *worker) compile(path string, source []byte) ([]byte, bool, error) {
	var request bytes.Buffer
	for _, field := range [][]byte{[]byte(path), source} {
		_ = binary.Write(&request, binary.LittleEndian, uint32(len(field))) // a bytes.Buffer does not fail
		request.Write(field)
	}
	if _, err := w.stdin.Write(request.Bytes()); err != nil {
		return nil, false, fmt.Errorf("the Python process ended: %w", err)
	}
	var head [5]byte
	if _, err := io.ReadFull(w.stdout, head[:]); err != nil {
		return nil, false, fmt.Errorf("the Python process ended without an answer: %w", err)
	}
	size := int64(binary.LittleEndian.Uint32(head[1:]))
	if limit := maxBytecode(len(source)); size > limit {
		return nil, false, fmt.Errorf("the Python process answers with %d bytes; more than %d are not believed", size, limit)
	}
	var answer bytes.Buffer
	if _, err := io.CopyN(&answer, w.stdout, size); err != nil {
		return nil, false, fmt.Errorf("the Python process ended in its answer: %w", err)
	}
	switch head[0] {
	case statusCompiled:
		return answer.Bytes(), true, nil
	case statusNoCode:
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("the Python process failed: %.500q", answer.String())
	}
}
