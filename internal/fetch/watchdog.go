package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// watchdog cancels a request when nothing moves for a time, whatever the connection pretends: it counts from the beginning
// (connecting, TLS), while the request's body is sent, until the answer begins, and while the answer is read.
type watchdog struct {
	timer  *time.Timer
	idle   time.Duration
	cancel context.CancelCauseFunc
	ctx    context.Context
	phase  atomic.Pointer[silence] // what the clock runs for now
}

// silence is what one waits for, and how long.
type silence struct {
	sending bool  // for the server to take more of the request's body; else for it to send something
	slow    bool  // the answer as a whole has had its time
	got     int64 // how much of it that brought, in bytes
	limit   time.Duration
}

// silentError says that a server was silent for so long that the connection counts as cut.
type silentError struct{ silence }

func (e *silentError) Error() string {
	switch {
	case e.slow:
		return fmt.Sprintf("the server sends its answer too slowly: %d bytes in %s", e.got, e.limit)
	case e.sending:
		return fmt.Sprintf("the server took nothing of what it is sent for too long (%s)", e.limit)
	}
	return fmt.Sprintf("the server sent nothing for too long (%s)", e.limit)
}

// Transient implements what [transient] asks for.
func (*silentError) Transient() bool { return true }

// newWatchdog returns the context to send the request with. The clock runs already: no answer at all counts too.
func newWatchdog(ctx context.Context, idle time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{idle: idle, cancel: cancel, ctx: ctx}
	w.phase.Store(&silence{limit: idle})
	w.timer = time.AfterFunc(idle, func() { cancel(&silentError{*w.phase.Load()}) })
	return ctx, w
}

// start gives the server the whole time again.
func (w *watchdog) start() { w.expect(silence{limit: w.idle}) }

func (w *watchdog) expect(s silence) {
	w.phase.Store(&s)
	w.timer.Reset(s.limit)
}

// pause stops the clock.
func (w *watchdog) pause() { w.timer.Stop() }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause returns what really ended the request: the watchdog, if it barked, else err.
func (w *watchdog) cause(err error) error {
	var silent *silentError
	if errors.As(context.Cause(w.ctx), &silent) {
		return silent
	}
	return err
}

// bufferedUpload is about as much of a request's body as the kernel keeps for a connection, in bytes. What is there counts as
// sent, and takes its time on a slow line.
const bufferedUpload = 4 << 20

// watchUpload has req, and every repetition of it after a redirect or a refusal, sent under the watchdog. extra is how much
// longer than usual the server may take for its answer once it has everything.
func watchUpload(req *http.Request, watch *watchdog, extra time.Duration) error {
	answer := silence{limit: watch.idle + extra + 2*watch.idle*time.Duration(min(max(0, req.ContentLength), bufferedUpload))/bufferedUpload}
	if req.GetBody == nil || req.Body == nil || req.Body == http.NoBody {
		watch.expect(answer)
		return nil
	}
	open, size := req.GetBody, req.ContentLength
	req.GetBody = func() (io.ReadCloser, error) {
		body, err := open()
		return &watchedUpload{ReadCloser: body, watch: watch, left: size, answer: answer}, err
	}
	var err error
	req.Body, err = req.GetBody()
	return err
}

// watchedUpload gives the server its time again with every piece of the request's body that it takes.
type watchedUpload struct {
	io.ReadCloser
	watch  *watchdog
	left   int64 // bytes of the body to come
	answer silence
}

func (b *watchedUpload) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left <= 0 || err != nil {
		b.watch.expect(b.answer)
	} else {
		b.watch.expect(silence{sending: true, limit: b.watch.idle})
	}
	return n, err
}

// slowest is the pace, in bytes a second, at which an answer may arrive however long it is. Without one, a server that sends a byte now and
// then is never silent, and never done.
const slowest = 4 << 10

// watchedBody reads an answer under a watchdog, and not for ever: twice the time that the server may be silent, and more for what arrives.
type watchedBody struct {
	body  io.ReadCloser
	watch *watchdog
	got   int64         // bytes
	took  time.Duration // all the waiting for them
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.start()
	whole := 2*b.watch.idle + time.Duration(b.got/slowest)*time.Second
	if left := whole - b.took; left < b.watch.idle {
		b.watch.phase.Store(&silence{slow: true, got: b.got, limit: whole})
		b.watch.timer.Reset(max(0, left))
	}
	began := time.Now()
	n, err := b.body.Read(p)
	b.watch.pause()
	b.took += time.Since(began)
	b.got += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.watch.cause(err)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.watch.stop()
	return b.body.Close()
}
