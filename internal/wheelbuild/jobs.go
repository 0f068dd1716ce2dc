package wheelbuild

import (
	"context"
	"sync"
)

// DefaultMemoryPerJob is what one compiler is taken to need when nobody says, in bytes: that of C++ with many templates.
const DefaultMemoryPerJob = 2 << 30

// maxThreads is how many threads nvcc gets at most, each for one GPU architecture.
const maxThreads = 4

// Jobs shares the cores and the memory of a machine among the builds that run at once.
type Jobs struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something is given back
	cores   int
	memory  int64 // bytes; 0: not known
	wanting int   // builds that run or wait
	used    grant // by those that run
	running int
}

// NewJobs shares so many cores and so many bytes of memory; 0 bytes: nobody knows.
func NewJobs(cores int, memory int64) *Jobs {
	return &Jobs{cores: max(1, cores), memory: max(0, memory), changed: make(chan struct{})}
}

// grant is what one build may use.
type grant struct {
	jobs    int
	threads int   // of each
	memory  int64 // bytes, in all
}

// take waits until there is room for at least one job of p, and returns how many it may run. done gives them back.
func (j *Jobs) take(ctx context.Context, p Package) (grant, func(), error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wanting++
	for {
		if g, ok := j.offer(p); ok {
			j.used.jobs += g.jobs
			j.used.memory += g.memory
			j.running++
			return g, sync.OnceFunc(func() { j.giveBack(g) }), nil
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		j.mu.Lock()
		if ctx.Err() != nil {
			j.wanting--
			return grant{}, nil, context.Cause(ctx)
		}
	}
}

// Take is for builds that are no wheels: it waits until there is room for one compiler of so many bytes, 0 for what is usual, and
// returns how many may run. done gives them back.
func (j *Jobs) Take(ctx context.Context, memoryPerJob int64) (n int, done func(), err error) {
	g, done, err := j.take(ctx, Package{MemoryPerJob: memoryPerJob})
	return g.jobs, done, err
}

func (j *Jobs) giveBack(g grant) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.used.jobs -= g.jobs
	j.used.memory -= g.memory
	j.running--
	j.wanting--
	close(j.changed)
	j.changed = make(chan struct{})
}

// offer says what p may have now. Alone on the machine, it always gets one job: what will not fit cannot be known before.
func (j *Jobs) offer(p Package) (grant, bool) {
	perJob := p.perJob()
	free := j.cores - j.used.jobs
	if p.Jobs > 0 {
		free = p.Jobs // the user's word
		if j.running > 0 && j.used.jobs+p.Jobs > j.cores {
			return grant{}, false
		}
	} else {
		free = min(free, (j.cores+j.wanting-1)/j.wanting) // leave some to the others
		if j.memory > 0 {
			free = min(free, int((j.memory-j.used.memory)/perJob))
		}
	}
	if free < 1 {
		if j.running > 0 {
			return grant{}, false
		}
		free = 1
	}
	g := grant{jobs: free, threads: 1}
	g.threads = max(1, min(maxThreads, len(p.Archs), (j.cores-j.used.jobs)/g.jobs))
	if j.memory > 0 {
		g.threads = max(1, min(g.threads, int((j.memory-j.used.memory)/(perJob*int64(g.jobs)))))
	}
	g.memory = perJob * int64(g.jobs) * int64(g.threads)
	return g, true
}

func (p Package) perJob() int64 {
	if p.MemoryPerJob > 0 {
		return p.MemoryPerJob
	}
	return DefaultMemoryPerJob
}
