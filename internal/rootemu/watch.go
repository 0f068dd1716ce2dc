package rootemu

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// pending is a call that is being answered.
type pending struct {
	id   uint64
	call call
	pid  int
	path atomic.Pointer[string] // the last one that was read for it
}

// Waiting is a call that has not been answered for a while.
type Waiting struct {
	Call    string
	Path    string // that it is about, "" if it is about none
	PID     int    // of the thread that waits
	Program string // that it runs, "" if that cannot be found out
	Periods int    // how many of Options.Period it has waited, at least. Those in which this process was stopped do not count
}

func (w Waiting) String() string {
	text := w.Call
	if w.Path != "" {
		text += " of " + strconv.Quote(w.Path)
	}
	return fmt.Sprintf("the call %s of process %d (%s)", text, w.PID, w.Program)
}

// patience counts for how many periods one call has been waiting.
type patience struct {
	last    *pending
	periods int
}

// look takes the call that waits now, nil for none, and returns for how many periods it has: 0 when it is seen the first time.
func (p *patience) look(now *pending) int {
	if now == nil || now != p.last {
		*p = patience{last: now}
		return 0
	}
	p.periods++
	return p.periods
}

// watch tells of calls that are the same from one tick to the next.
func (s *supervisor) watch(ticks <-chan time.Time, tell func(Waiting)) {
	var p patience
	for range ticks {
		now := s.pending.Load()
		if periods := p.look(now); periods > 0 {
			w := Waiting{Call: now.call.String(), PID: now.pid, Program: s.programName(now.pid), Periods: periods}
			if path := now.path.Load(); path != nil {
				w.Path = *path
			}
			tell(w)
		}
	}
}

// programName returns what the kernel calls the program that a thread runs.
func (s *supervisor) programName(tid int) string {
	if s.foreign { // the numbers in it are others
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
