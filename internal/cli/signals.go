package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/fault"
)

// errInterrupted is the error of a command that the user interrupted.
var errInterrupted error = interrupted{errors.New("interrupted")}

type interrupted struct{ error }

// ExitCode is read by [fault.CodeOf].
func (interrupted) ExitCode() int { return fault.CodeInterrupted }

// signals ends the context at the first SIGINT, SIGTERM or SIGHUP, so that everything stops in good order, and the process at
// the second that is no [echo] of it.
type signals struct {
	ch     chan os.Signal
	once   sync.Once
	mu     sync.Mutex // guards last
	last   func()
	cancel context.CancelFunc
	exit   func(code int)
}

func catchSignals(ctx context.Context) (context.Context, *signals) {
	ctx, cancel := context.WithCancel(ctx)
	s := &signals{ch: make(chan os.Signal, 2), cancel: cancel, exit: os.Exit}
	signal.Notify(s.ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // under nohup(1) it is, and stays so
		signal.Notify(s.ch, syscall.SIGHUP)
	}
	go s.watch()
	return ctx, s
}

func (s *signals) watch() {
	if _, ok := <-s.ch; !ok {
		return
	}
	first := time.Now()
	s.cancel()
	for second := range s.ch {
		if time.Since(first) > echo(second) {
			s.finish()
			s.exit(fault.CodeInterrupted)
		}
	}
}

// echo is for how long after the first signal another one is no second wish: timeout(1) signals the process and then its group, batch
// systems and service managers a job's processes and whoever started them. Nobody wants the end at once that way. A second Ctrl-C does,
// and fingers take longer for it than timeout(1).
func echo(s os.Signal) time.Duration {
	if s == syscall.SIGINT {
		return 100 * time.Millisecond
	}
	return time.Second
}

func (s *signals) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		s.last()
	}
}

// atOnce sets what is done before the process ends at the second signal.
func (s *signals) atOnce(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = f
}

// release stops listening, for a command that passes signals on to the program it runs.
func (s *signals) release() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		signal.Stop(s.ch)
		close(s.ch)
	})
}
