package lock

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
)

// tellsSearch makes uv write, on its standard error, what it is looking for.
const tellsSearch = "RUST_LOG=uv_resolver=debug"

// searchInterval is how long uv may be silent before the user is told what it is looking for, and how often from then on.
const searchInterval = 10 * time.Second

// searching is what uv writes when it begins to look for a version of a package.
var searching = lazyregexp.New(`^DEBUG Searching for a compatible version of ([A-Za-z0-9._-]+)`)

// maxSearchLine bounds what is kept of a line that is not complete.
const maxSearchLine = 1 << 20

// searchLog takes what uv writes on its standard error: of the lines about its search it keeps the package, of all others the text.
type searchLog struct {
	mu      sync.Mutex
	line    []byte
	text    bytes.Buffer
	name    string         // of the package that is looked for
	tried   map[string]int // how often each was looked for
	stopped chan struct{}
	done    sync.WaitGroup
}

// newSearchLog begins to tell, in the lines of task, what a long search is about.
func newSearchLog(ctx context.Context, task *progress.Task) *searchLog {
	s := &searchLog{tried: make(map[string]int), stopped: make(chan struct{})}
	s.done.Go(func() {
		ticker := time.NewTicker(searchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.stopped:
				return
			case <-ticker.C:
				if text := s.status(); text != "" && task != nil {
					task.Log(text)
				}
			}
		}
	})
	return s
}

// status says what uv is looking for, "" when that is not known.
func (s *searchLog) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name == "" {
		return ""
	}
	text := "looking for a version of " + s.name
	if n := s.tried[s.name]; n > 1 {
		text += fmt.Sprintf(", %d times so far", n)
	}
	return text
}

// Write takes a piece of uv's output.
func (s *searchLog) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, p...)
	for {
		i := bytes.IndexByte(s.line, '\n')
		if i < 0 && len(s.line) <= maxSearchLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(s.line) - 1
		}
		s.take(s.line[:i+1])
		s.line = s.line[i+1:]
	}
}

func (s *searchLog) take(line []byte) {
	if !bytes.HasPrefix(line, []byte("DEBUG ")) {
		s.text.Write(line)
		return
	}
	if m := searching.FindSubmatch(line); m != nil {
		s.name = string(m[1])
		s.tried[s.name]++
	}
}

// found is how many packages uv has chosen a version of: it says so once it knows which there are.
func (s *searchLog) found() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tried)
}

// Close stops telling.
func (s *searchLog) Close() {
	close(s.stopped)
	s.done.Wait()
}

// String returns what uv wrote besides.
func (s *searchLog) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String() + string(s.line)
}
