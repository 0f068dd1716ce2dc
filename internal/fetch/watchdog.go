package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// watchdog cancels a request when nothing arrives for a time, whatever the connection pretends.
type watchdog struct {
	timer  *time.Timer
	idle   time.Duration
	cancel context.CancelCauseFunc
	ctx    context.Context
}

// newWatchdog returns the context to send the request with. The clock runs already: no answer at all counts too.
func newWatchdog(ctx context.Context, idle time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{idle: idle, cancel: cancel, ctx: ctx}
	w.timer = time.AfterFunc(idle, func() { cancel(fmt.Errorf("%w (%s)", errIdle, idle)) })
	return ctx, w
}

// start gives the server the whole time again.
func (w *watchdog) start() { w.timer.Reset(w.idle) }

// pause stops the clock.
func (w *watchdog) pause() { w.timer.Stop() }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause returns what really ended the request: the watchdog, if it barked, else err.
func (w *watchdog) cause(err error) error {
	if c := context.Cause(w.ctx); errors.Is(c, errIdle) {
		return c
	}
	return err
}
