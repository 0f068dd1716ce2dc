package python

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
)

// groupWriter writes the files of a group into a layer. Unpacking, checking and compiling run ahead of the writer on all
// cores, in the order of the layer, holding at most readAhead bytes; the writer only takes what is ready. Where it can, it
// puts a file into the layer as the wheel has compressed it; unpacking it is what proves that this is the file.
type groupWriter struct {
	w        *layer.Writer
	target   Target
	compiler Compiler
	earlier  *earlier // where byte code may be already; nil when there is no compiler
	task     *progress.Task
	ahead    int64
	budget   *semaphore.Weighted
	slots    *semaphore.Weighted // how many jobs work at once
	dirs     map[string]bool     // directories already written
}

// streamFrom is the size, in bytes, from which a file is not held whole in memory but handed on in chunks. A test lowers it.
var streamFrom int64 = 1 << 20

const (
	chunkSize = 256 << 10
	// streamAhead is how many chunks of one large file are unpacked ahead.
	streamAhead = 8
	// maxSource bounds a Python source that is compiled. The largest known are generated tables of a few MB.
	maxSource = 16 << 20
)

func newGroupWriter(w *layer.Writer, t Target, c Compiler, e *earlier, readAhead int64, task *progress.Task) *groupWriter {
	slots := int64(runtime.GOMAXPROCS(0))
	if c != nil {
		slots *= 2 // half of them only wait for byte code
	}
	readAhead = max(readAhead, 2*streamAhead*chunkSize)
	return &groupWriter{
		w: w, target: t, compiler: c, earlier: e, task: task, ahead: readAhead,
		budget: semaphore.NewWeighted(readAhead), slots: semaphore.NewWeighted(slots), dirs: make(map[string]bool),
	}
}

// job is one file of the layer: an installed one, or the byte code of one.
type job struct {
	path     string // in the image
	file     *File  // what is installed, or the source of the byte code
	compiled bool   // the file is byte code

	cost  int64         // bytes of the budget it holds
	ready chan struct{} // closed when data or err is set; nil for a stream
	data  []byte
	skip  bool // there is no byte code: the source does not compile
	err   error
	parts chan part // of a stream

	points []inflate.Point // of a long one; there when its last part is
}

// part is a piece of a streamed file, or the error that ends it.
type part struct {
	data []byte
	err  error
}

// write writes files, which CheckConflicts has passed, in the layer's order.
func (p *groupWriter) write(ctx context.Context, files []*File) error {
	jobs := p.jobs(files)
	var total int64
	for _, j := range jobs {
		if !j.compiled {
			total += j.file.Size
		}
	}
	p.task.SetTotal(total)
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { p.runAhead(ctx, &working, jobs) })
	for _, j := range jobs {
		if err := p.take(ctx, j); err != nil {
			return err
		}
		p.budget.Release(j.cost)
	}
	return nil
}

// jobs lists what is written, in order. Of files that several packages share, one remains.
func (p *groupWriter) jobs(files []*File) []*job {
	jobs := make([]*job, 0, 2*len(files))
	for _, f := range files {
		at := p.target.Root + "/" + f.Path
		jobs = append(jobs, newJob(at, f, false))
		if pyc, ok := p.bytecodePath(f); ok {
			jobs = append(jobs, newJob(pyc, f, true))
		}
	}
	slices.SortStableFunc(jobs, func(a, b *job) int { return layer.Compare(a.path, b.path) })
	return slices.CompactFunc(jobs, func(a, b *job) bool { return a.path == b.path })
}

func newJob(at string, f *File, compiled bool) *job {
	j := &job{path: at, file: f, compiled: compiled, ready: make(chan struct{})}
	switch {
	case compiled:
		j.cost = 2 * f.Size // byte code is about as large as its source
	case f.member != nil && f.Size >= streamFrom:
		j.cost = streamAhead * chunkSize
		j.parts = make(chan part, streamAhead)
	case f.member != nil:
		j.cost = f.Size
	}
	return j
}

// bytecodePath says where the byte code of f goes, if f is a module to be compiled.
func (p *groupWriter) bytecodePath(f *File) (string, bool) {
	if p.compiler == nil || f.Size > maxSource {
		return "", false
	}
	return p.target.bytecodePath(f.Path)
}

// bytecodePath says where in the image the byte code of a file of the environment goes (PEP 3147), if that is a module and has some.
func (t Target) bytecodePath(file string) (string, bool) {
	inSite, installed := strings.CutPrefix(file, t.sitePackages()+"/")
	dir, name := path.Split(file)
	module, isPython := strings.CutSuffix(name, ".py")
	if !isPython || module == "" || !installed || IsTest(inSite) {
		return "", false
	}
	code := module + "." + t.Python.CacheTag() + ".pyc"
	if len(code) > layer.MaxName {
		return "", false
	}
	return t.Root + "/" + dir + "__pycache__/" + code, true
}

// runAhead starts the jobs in order. A job gets its share of the budget before any later one, so the one that the
// writer waits for can always go on.
func (p *groupWriter) runAhead(ctx context.Context, working *sync.WaitGroup, jobs []*job) {
	for _, j := range jobs {
		j.cost = min(j.cost, p.ahead)
		if p.budget.Acquire(ctx, j.cost) != nil {
			return
		}
		if j.parts != nil {
			working.Go(func() { p.stream(ctx, j) })
			continue
		}
		if p.slots.Acquire(ctx, 1) != nil {
			return
		}
		working.Go(func() {
			defer p.slots.Release(1)
			defer close(j.ready)
			p.run(ctx, j)
		})
	}
}

// run makes the whole content of a small file.
func (p *groupWriter) run(ctx context.Context, j *job) {
	if j.data, j.err = j.file.read(); j.err != nil || !j.compiled {
		return
	}
	pyc, ok := p.earlier.bytecode(j.file)
	if ok {
		j.data = pyc
		return
	}
	source := "/" + p.target.Root + "/" + j.file.Path
	j.data, ok, j.err = p.compiler.Compile(ctx, source, j.data)
	j.skip = !ok
}

// read reads the whole file into memory.
func (f *File) read() ([]byte, error) {
	if f.member == nil {
		return f.data, nil
	}
	return f.member.readAll(max(streamFrom, maxSource))
}

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// stream hands the content of a large file on in chunks.
func (p *groupWriter) stream(ctx context.Context, j *job) {
	send := func(x part) bool {
		select {
		case j.parts <- x:
			return true
		case <-ctx.Done():
			return false
		}
	}
	r, inflater, err := j.file.member.open(j.spacing())
	if err != nil {
		send(part{err: err})
		return
	}
	defer r.Close()
	for {
		buf := chunks.Get().(*[chunkSize]byte)
		n, err := ctxio.Fill(r, buf[:])
		if errors.Is(err, io.EOF) && inflater != nil {
			j.points = inflater.r.Points()
		}
		if !send(part{buf[:n], err}) || err != nil {
			return
		}
	}
}

// spacing is how far apart the points of a stream are that becomes a long chunk; 0: it has none.
func (j *job) spacing() int64 {
	if j.file.Size <= layer.ChunkSize {
		return 0
	}
	return layer.SeekSpacing
}

// take writes one file to the layer as soon as it is ready.
func (p *groupWriter) take(ctx context.Context, j *job) error {
	if j.parts == nil {
		select {
		case <-j.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if j.err != nil || j.skip {
			return j.err
		}
	}
	if err := p.makeDirs(path.Dir(j.path)); err != nil {
		return err
	}
	e := layer.Entry{Path: j.path, Type: layer.Regular, Mode: j.file.Mode, Size: j.file.Size}
	if j.compiled {
		e.Mode, e.Size = 0o644, int64(len(j.data))
	}
	content := j.open(ctx)
	open := func() (io.ReadCloser, error) { return io.NopCloser(content), nil }
	if err := p.w.AddDeflated(e, open, j.deflated()); err != nil {
		return err
	}
	if err := atEnd(content); err != nil {
		return err
	}
	j.data = nil
	if !j.compiled {
		p.task.Add(j.file.Size)
	}
	return nil
}

// atEnd reads the end of a file whose bytes are all written: only there does the reader say whether they were right.
func atEnd(r io.Reader) error {
	var more [1]byte
	switch n, err := r.Read(more[:]); {
	case n > 0:
		return errors.New("a file is longer than it should be")
	case err == io.EOF:
		return nil
	default:
		return err
	}
}

func (j *job) open(ctx context.Context) io.Reader {
	if j.parts == nil {
		return bytes.NewReader(j.data)
	}
	return &partReader{ctx: ctx, parts: j.parts}
}

// deflated is the file as the wheel has it, if that is deflated. It is read from the wheel a second time, after the content
// was found to be right.
func (j *job) deflated() layer.Deflated {
	m := j.file.member
	if m == nil || j.compiled || !m.deflated() {
		return layer.Deflated{}
	}
	return layer.Deflated{Size: m.Packed, Open: m.openPacked, Points: func() []inflate.Point { return j.points }}
}

// makeDirs writes the directories of path that are not there yet. Since files come in the layer's order, so do they.
func (p *groupWriter) makeDirs(dir string) error {
	if dir == "." || p.dirs[dir] {
		return nil
	}
	if err := p.makeDirs(path.Dir(dir)); err != nil {
		return err
	}
	p.dirs[dir] = true
	return p.w.Add(layer.Entry{Path: dir, Type: layer.Dir, Mode: 0o755}, nil)
}

// partReader reads a stream.
type partReader struct {
	ctx   context.Context
	parts chan part
	part  part
	at    int
}

func (r *partReader) Read(p []byte) (int, error) {
	for r.at == len(r.part.data) {
		if r.part.err != nil {
			return 0, r.part.err
		}
		r.recycle()
		select {
		case r.part = <-r.parts:
			r.at = 0
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
	n := copy(p, r.part.data[r.at:])
	r.at += n
	return n, nil
}

func (r *partReader) recycle() {
	if cap(r.part.data) == chunkSize {
		chunks.Put((*[chunkSize]byte)(r.part.data[:chunkSize]))
	}
	r.part.data, r.at = nil, 0
}
