package sandbox

import (
	"fmt"
	"sync/atomic"
	"time"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
)

// Nothing of a sandbox may wait for ever and say nothing: not an emulated call, whose answer may need a file server that is away,
// and not init itself. Both are counted in periods, because a process that is stopped lets none pass.

// waitingPeriod is how often one looks. It is shorter in tests.
var waitingPeriod = 15 * time.Second

// patience is how many periods somebody may wait: ten minutes. A file server that comes back before has done no harm.
const patience = 40

// worthSaying reports whether to say, after a number of periods, that somebody waits: after twice as many each time.
func worthSaying(periods int) bool { return periods&(periods-1) == 0 }

func (s *spec) after(periods int) time.Duration { return time.Duration(periods) * s.Period }

// waiting tells the caller of an emulated call that has no answer, and in the end to give up.
func (in *initProcess) waiting(w rootemu.Waiting) {
	text := fmt.Sprintf("%v has had no answer for %v", w, in.spec.after(w.Periods))
	switch {
	case w.Periods >= patience:
		_ = in.tell(message{Failure: &Error{What: text + ", and the command was ended", Fix: fixWaiting, Code: codeNotMade}})
	case worthSaying(w.Periods):
		_ = in.tell(message{Waiting: text})
	}
}

const fixWaiting = "does the file system answer that the file is on? Look at it on the host: a network file system may be away"

// beat tells the caller that this process runs.
func (in *initProcess) beat() {
	for range time.Tick(in.spec.Period) {
		if in.tell(message{}) != nil {
			return
		}
	}
}

// attention is the caller's watch over init.
type attention struct {
	heard   atomic.Int64 // messages
	ready   atomic.Bool  // the command was started
	failure atomic.Pointer[Error]
}

// attend watches init until done is closed.
func (s *session) attend(done <-chan struct{}) {
	ticker := time.NewTicker(s.spec.Period)
	defer ticker.Stop()
	var heard int64
	silent, starting := 0, 0
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		silent++
		if now := s.attention.heard.Load(); now != heard {
			heard, silent = now, 0
		}
		if silent > 1 && !s.endure(silent) {
			return
		}
		if !s.attention.ready.Load() {
			if starting++; worthSaying(starting) {
				progress.Warn(s.ctx, fmt.Sprintf("the sandbox is not ready after %v: a file system of this machine may not answer", s.spec.after(starting)), fixWaiting)
			}
		}
	}
}

// endure says that init has been silent, and ends the sandbox when it was for too long. It reports whether it goes on.
func (s *session) endure(periods int) bool {
	text := fmt.Sprintf("the first process of the sandbox (%d) has not run for %v", s.cmd.Process.Pid, s.spec.after(periods))
	if periods < patience {
		if worthSaying(periods) {
			progress.Warn(s.ctx, text, "has somebody stopped it, or is the machine out of memory?")
		}
		return true
	}
	s.giveUp(&Error{What: text + ", and the command was ended", Code: codeNotMade})
	return false
}

// giveUp ends the sandbox, and remembers why. The serving ends first: a process that waits for a file cannot be killed.
func (s *session) giveUp(why *Error) {
	s.attention.failure.CompareAndSwap(nil, why)
	if s.server != nil {
		s.server.cancel()
	}
	s.kill()
}

// givenUp returns why the sandbox was ended, nil if it was not.
func (s *session) givenUp() error {
	if e := s.attention.failure.Load(); e != nil {
		return e
	}
	return nil
}
