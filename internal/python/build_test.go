package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// testPython returns an interpreter and its version: of 3.11, which the compiled test wheels are for, if there is one.
func testPython(t testing.TB) (path, version string) {
	t.Helper()
	path, err := exec.LookPath("python3.11")
	if err != nil || exec.Command(path, "-c", "").Run() != nil {
		path = tooltest.Path(t, "python3")
	}
	out, err := exec.Command(path, "-I", "-c", "import os, sys; print(os.path.realpath(sys.executable)); print('%d.%d.%d' % sys.version_info[:3])").Output()
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Fields(string(out))
	return said[0], said[1]
}

// localPython starts worker processes on this machine's Python, after they ran the statements in extra.
func localPython(t testing.TB, extra ...string) (StartWorker, string) {
	t.Helper()
	path, version := testPython(t)
	return startPython(path, extra...), version
}

// startPython starts workers that first run the statements in extra.
func startPython(python string, extra ...string) StartWorker {
	return func(ctx context.Context) (io.WriteCloser, io.ReadCloser, func() error, error) {
		args := WorkerArgs(python)
		last := len(args) - 1
		args[last] = strings.Join(append(extra, args[last]), "\n")
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = WorkerEnv()
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		return stdin, stdout, cmd.Wait, cmd.Start()
	}
}

func newPool(t testing.TB, n int, start StartWorker) *CompilerPool {
	t.Helper()
	p := NewCompilerPool(n, start)
	t.Cleanup(func() { p.Close() })
	return p
}

type source struct {
	path string
	text []byte
}

// realSources returns the Python files of the test wheels, at most limit.
func realSources(t testing.TB, limit int) []source {
	t.Helper()
	var all []*Member
	for _, path := range allWheels(t) {
		for _, m := range openWheelFile(t, path).Members {
			if strings.HasSuffix(m.Name, ".py") {
				all = append(all, m)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var sources []source
	for _, m := range all[:min(limit, len(all))] {
		text, err := m.readAll(maxSource)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source{"/opt/venv/lib/python3.11/site-packages/" + m.Name, text})
	}
	return sources
}

// pythons are the interpreters of this machine that can be tried: the newest with -short, which is not about them.
func pythons(t testing.TB) []string {
	t.Helper()
	var found []string
	for minor := 8; minor <= 15; minor++ {
		path, err := exec.LookPath(fmt.Sprintf("python3.%d", minor))
		if err != nil || exec.Command(path, "-c", "").Run() != nil {
			continue
		}
		found = append(found, path)
	}
	if len(found) == 0 {
		return []string{tooltest.Path(t, "python3")}
	}
	if tooltest.Less(t) {
		return found[len(found)-1:]
	}
	return found
}

// A Python that does not end is ended.
func TestPoolOfEndless(t *testing.T) {
	p := NewCompilerPool(1, startPython(pythons(t)[0], "import atexit, time", "atexit.register(time.sleep, 600)"))
	if _, ok, err := p.Compile(t.Context(), "x.py", []byte("x = 1\n")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	closed := make(chan struct{})
	go func() {
		p.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Minute):
		t.Error("the pool waits for a process that does not end")
	}
}

// TestBytecodeDependsOnSourceAlone compiles thousands of real files in two orders, in processes with different pasts,
// one of which has run half the standard library. Interned strings, reference counts and addresses must not show.
func TestBytecodeDependsOnSourceAlone(t *testing.T) {
	all := pythons(t)
	limit := 4000 / len(all)
	if tooltest.Less(t) {
		limit = 300
	}
	sources := append(realSources(t, limit), tricky...)
	for _, python := range all {
		t.Run(filepath.Base(python), func(t *testing.T) { compileTwice(t, python, sources) })
	}
}

// tricky are sources whose constants lie in sets, some in an order that follows addresses.
var tricky = []source{
	{"/x/none.py", []byte("def f(x): return x in {None, 'a', 'b', ..., 1.5, 2j, b'z', (None, 'q'), 1 << 70, -(1 << 70), -1, True, '\u20ac'}\n")},
	{"/x/large.py", []byte("s = {" + strings.Repeat("'k', ", 1) + keys(2000) + "}\nt = 1 in {3, 2, 1}\n")},
	{"/x/characters.py", []byte("operators = ['{', '}', '+', '-', '~', '']\n")},
	{"/x/once.py", []byte("payload = foo.get_payload(attach=1, zork=2)\ndef is_multipart(x): return x.get_content_maintype\n")},
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "'key %d', ", i)
	}
	return b.String()
}

func compileTwice(t *testing.T, python string, sources []source) {
	busy := startPython(python, "import sys, asyncio, email.message, http.client, json, typing, unittest, xml.dom.minidom",
		"kept = [sys.intern('key%d' % i) for i in range(20000)]", "import ast", "kept1 = [sys.intern(c) for c in '{}+-~[]()']", "kept2 = ast.parse('self = cls = args = kwargs = x = y = name = value = path = data = result = None')")
	a, b := newPool(t, 1, startPython(python)), newPool(t, 2, busy)
	first := make(map[string][]byte)
	for _, s := range sources {
		first[s.path], _ = compileOne(t, a, s)
	}
	compiled := 0
	for i := len(sources) - 1; i >= 0; i-- {
		pyc, ok := compileOne(t, b, sources[i])
		if !bytes.Equal(pyc, first[sources[i].path]) {
			t.Errorf("%s: byte code differs between processes", sources[i].path)
		}
		if ok {
			compiled++
		}
	}
	if compiled < len(sources)/2 { // old Pythons do not know all of the syntax
		t.Errorf("only %d of %d files compile", compiled, len(sources))
	}
}

// TestBytecodeIsWhatPythonCompiles compares the code in our files with what Python itself makes of the sources.
func TestBytecodeIsWhatPythonCompiles(t *testing.T) {
	sources := append(realSources(t, 200), tricky...)
	const check = `
import marshal, sys, warnings
warnings.simplefilter("ignore")
for number in range(int(sys.argv[1])):
    path = open("%d.path" % number, encoding="utf-8").read()
    ours = marshal.loads(open("%d.pyc" % number, "rb").read()[16:])
    theirs = compile(open("%d.py" % number, "rb").read(), path, "exec", dont_inherit=True)
    if ours != theirs or ours.co_filename != path:
        sys.exit("not the same: " + path)
`
	for _, python := range pythons(t) {
		pool := newPool(t, 1, startPython(python))
		dir := t.TempDir()
		n := 0
		for _, s := range sources {
			pyc, ok := compileOne(t, pool, s)
			if !ok {
				continue
			}
			at := filepath.Join(dir, strconv.Itoa(n))
			writeTestFile(t, at+".pyc", pyc)
			writeTestFile(t, at+".py", s.text)
			writeTestFile(t, at+".path", []byte(s.path))
			n++
		}
		cmd := exec.Command(python, "-I", "-c", check, strconv.Itoa(n))
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || n < 100 {
			t.Errorf("%s, %d files: %v\n%s", filepath.Base(python), n, err, out)
		}
	}
}

func compileOne(t testing.TB, c Compiler, s source) ([]byte, bool) {
	t.Helper()
	pyc, ok, err := c.Compile(t.Context(), s.path, s.text)
	if err != nil {
		t.Fatal(err)
	}
	return pyc, ok
}

// TestBytecodeRuns lets Python import a module from our byte code, with its source changed behind it: an unchecked
// hash-based .pyc is believed without looking.
func TestBytecodeRuns(t *testing.T) {
	start, _ := localPython(t)
	pool := newPool(t, 1, start)
	dir := t.TempDir()
	module := filepath.Join(dir, "m.py")
	pyc, ok := compileOne(t, pool, source{module, []byte("import inspect\ndef f():\n    return inspect.currentframe().f_code.co_filename\n")})
	if !ok {
		t.Fatal("it does not compile")
	}
	python, version := testPython(t)
	writeTestFile(t, filepath.Join(dir, "__pycache__", "m."+Interpreter{Version: version}.CacheTag()+".pyc"), pyc)
	writeTestFile(t, module, []byte("raise SystemExit('the source was compiled again')"))
	cmd := exec.Command(python, "-B", "-c", "import m; print(m.f(), end='')")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != module {
		t.Errorf("got %s, %v; want %s", out, err, module)
	}
}

func writeTestFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSourceThatDoesNotCompileIsSkipped(t *testing.T) {
	start, _ := localPython(t)
	pool := newPool(t, 1, start)
	for _, text := range []string{"def {{ name }}(): pass", "print 'two'", "\x00", "\xff\xfe", "# coding: klingon\n", "x = " + strings.Repeat("(", 5000), "a" + strings.Repeat("+a", 100000)} {
		pyc, ok := compileOne(t, pool, source{"/x/template.py", []byte(text)})
		if ok && len(text) < 5000 {
			t.Errorf("%.40q compiles to %d bytes", text, len(pyc))
		}
	}
	if _, ok := compileOne(t, pool, source{"/x/good.py", []byte("x = 1")}); !ok {
		t.Error("the worker is of no use after a source that does not compile")
	}
}

func TestDeadWorkerIsReported(t *testing.T) {
	// The worker dies in the middle of its work, as one that runs out of memory does.
	start, _ := localPython(t, "import builtins, os", "compile_ = compile", "def dying(source, path, *a, **k):\n    if path.endswith('bomb.py'): os.kill(os.getpid(), 9)\n    return compile_(source, path, *a, **k)", "builtins.compile = dying")
	pool := newPool(t, 1, start)
	_, _, err := pool.Compile(t.Context(), "/opt/venv/bomb.py", []byte("x = 1"))
	if err == nil || !strings.Contains(err.Error(), "/opt/venv/bomb.py") || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v; want an error that names the file and the signal", err)
	}
	if fault.HintOf(err) == "" {
		t.Error("the error has no hint")
	}
	if _, ok := compileOne(t, pool, source{"/opt/venv/good.py", []byte("x = 1")}); !ok {
		t.Error("the pool does not start another worker")
	}
}

func TestHangingWorkerIsGivenUp(t *testing.T) {
	start, _ := localPython(t, "import builtins, time", "compile_ = compile", "def slow(source, path, *a, **k):\n    if path == '/x/slow.py': time.sleep(1000)\n    return compile_(source, path, *a, **k)", "builtins.compile = slow")
	pool := newPool(t, 1, start)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := pool.Compile(ctx, "/x/slow.py", []byte("x"))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestLayerIsTheSameWhateverTheWorkers(t *testing.T) {
	start, version := localPython(t)
	var got []layer.Descriptor
	for _, workers := range []int{1, 3} {
		st := storetest.New(t)
		var items []Item
		for _, name := range []string{"jinja2", "markupsafe", "psutil", "pygments", "tqdm", "zope-interface"} {
			items = append(items, putWheel(t, st, wheelFor(t, name)))
		}
		if workers == 3 { // the order in which they are named must not matter either
			items[0], items[4] = items[4], items[0]
		}
		o := LayerOptions{ReadAhead: int64(workers) << 20}
		o.Workers = workers
		groups := GroupItems(items, 1)
		if len(groups) != 1 {
			t.Fatalf("%d groups", len(groups))
		}
		d, _, err := BuildLayer(t.Context(), st, groups[0], testTarget(version), newPool(t, workers, start), o)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, d)
	}
	if got[0] != got[1] {
		t.Errorf("two layers of the same wheels: %+v and %+v", got[0], got[1])
	}
}

func TestLayerIsMadeOnce(t *testing.T) {
	st := storetest.New(t)
	item := putWheel(t, st, wheelFor(t, "numpy"))
	g := GroupItems([]Item{item}, 20)[0]
	d1, m1, err := BuildLayer(t.Context(), st, g, testTarget("3.11.2"), nil, LayerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path, err := st.BlobPath(item.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil { // a second build cannot read it
		t.Fatal(err)
	}
	d2, m2, err := BuildLayer(t.Context(), st, g, testTarget("3.11.2"), nil, LayerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d1 != d2 || len(m1.Packages) != 1 || len(m2.Packages[0].Files) != len(m1.Packages[0].Files) {
		t.Error("the layer from the store is another one")
	}
}
