package cli

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
)

// What comes together is one wish; a second one ends the process at once.
func TestSecondSignal(t *testing.T) {
	const soon = 0
	for name, c := range map[string]struct {
		second os.Signal
		after  time.Duration
		ends   bool
	}{
		"timeout":                 {syscall.SIGTERM, soon, false},
		"timeout -s INT":          {syscall.SIGINT, soon, false},
		"a batch system":          {syscall.SIGHUP, 200 * time.Millisecond, false},
		"a second Ctrl-C":         {syscall.SIGINT, 200 * time.Millisecond, true},
		"kill, and kill again":    {syscall.SIGTERM, 2 * time.Second, true},
		"kill, and Ctrl-C behind": {syscall.SIGINT, 2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			ended := 0
			s := &signals{ch: make(chan os.Signal, 2), cancel: cancel, exit: func(code int) { ended = code }}
			s.ch <- syscall.SIGTERM
			if c.after == soon {
				s.ch <- c.second
			}
			over := make(chan struct{})
			go func() { s.watch(); close(over) }()
			<-ctx.Done() // by the first
			if c.after != soon {
				time.Sleep(c.after)
				s.ch <- c.second
			}
			close(s.ch)
			<-over
			if want := map[bool]int{true: fault.CodeInterrupted}[c.ends]; ended != want {
				t.Errorf("ended with %d, want %d", ended, want)
			}
		})
	}
}
