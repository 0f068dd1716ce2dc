package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sconce.dev/sconce/internal/progress"
)

// A download crawls when it brings less than a twentieth of what any download of this client has brought in an equal time, or hardly
// anything at all. It need not be the line: one of a mirror's machines may be at its end, or a path to it.
const (
	crawlPart  = 20
	crawlLeast = 16 << 10 // bytes in a second
)

// maxSpares is how many further connections one attempt may open, one after the other.
const maxSpares = 3

// stream is an answer that is being read.
type stream struct {
	body  io.Reader
	at    int64  // the position in the file of what is read next
	close func() // may be called again
	watch *watchdog
}

func newStream(resp *http.Response, at int64, watch *watchdog) *stream {
	return &stream{body: resp.Body, at: at, watch: watch, close: func() {
		resp.Body.Close()
		watch.stop()
	}}
}

// read reads what comes next, and drops of it what lies before have: another stream has brought that.
func (s *stream) read(buf []byte, have int64) ([]byte, error) {
	s.watch.start()
	n, err := s.body.Read(buf)
	s.watch.pause() // a slow disk is not a silent server
	seen := min(max(have-s.at, 0), int64(n))
	s.at += int64(n)
	return buf[seen:n], err
}

// spare watches how fast a download goes. When it crawls, the rest is asked for on a second connection beside the first. The one that has
// brought [progressWorth] bytes more first goes on, and the other is closed. Whose bytes are right is decided by the hash of the whole.
type spare struct {
	d       *download
	ctx     context.Context // of the attempt that it serves
	cancel  context.CancelFunc
	size    int64        // of the whole file, in bytes
	arrived atomic.Int64 // bytes that are here
	running sync.WaitGroup

	mu     sync.Mutex
	using  *stream
	better *stream // is to be used instead
}

// watchSpeed begins to watch a stream that is to bring the rest of a file of size bytes.
func (d *download) watchSpeed(ctx context.Context, s *stream, size int64) *spare {
	sp := &spare{d: d, size: size, using: s}
	sp.arrived.Store(s.at)
	sp.ctx, sp.cancel = context.WithCancel(ctx)
	if size > s.at {
		sp.running.Go(sp.watch)
	}
	return sp
}

// close ends what is under way.
func (s *spare) close() {
	s.cancel()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.using.close()
	if s.better != nil {
		s.better.close()
	}
}

// current is the stream to be read from now on.
func (s *spare) current() *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.better != nil {
		s.using.close()
		s.using, s.better = s.better, nil
	}
	return s.using
}

// replaced reports whether another stream is to be used than the one that was just read.
func (s *spare) replaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.better != nil
}

func (s *spare) watch() {
	tick := time.NewTicker(s.d.client.opts.SpeedTime)
	defer tick.Stop()
	before := s.arrived.Load()
	for opened := 0; opened < maxSpares; {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		now := s.arrived.Load()
		if s.d.client.crawls(now-before) && now > 0 && s.size-now > progressWorth {
			opened++
			if errors.Is(s.try(now), errNoParts) {
				return
			}
			tick.Reset(s.d.client.opts.SpeedTime)
		}
		before = s.arrived.Load()
	}
}

// crawls reports whether a download that brought n bytes in SpeedTime crawls.
func (c *Client) crawls(n int64) bool {
	best := c.best.Load()
	for n > best && !c.best.CompareAndSwap(best, n) {
		best = c.best.Load()
	}
	return n < max(best/crawlPart, int64(crawlLeast*c.opts.SpeedTime.Seconds()))
}

// try opens a second connection, and has it used if it is faster.
func (s *spare) try(at int64) error {
	progress.Notef(s.ctx, fmt.Sprintf("%s hardly comes on: the rest is asked for on a second connection", s.d.request.label()))
	second, err := s.open(at)
	if err != nil {
		return err
	}
	if s.arrived.Load()-at >= progressWorth { // the first one has recovered
		second.close()
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.better = second
	s.using.watch.cancel(errReplaced)
	return nil
}

// errReplaced ends the reading of a stream whose place another one takes.
var errReplaced = errors.New("a second connection is faster")

var errNoParts = errors.New("the server does not send parts of the file")

// open asks for the file from the position at on, and returns when the beginning is here.
func (s *spare) open(at int64) (*stream, error) {
	ctx, watch := newWatchdog(s.ctx, s.d.client.opts.IdleTimeout)
	resp, err := s.d.ask(ctx, at) //nolint:bodyclose // by the stream
	if err != nil {
		watch.stop()
		return nil, err
	}
	second := newStream(resp, at, watch)
	start, total, ok := parseContentRange(resp.Header.Get("Content-Range"))
	if resp.StatusCode != http.StatusPartialContent || !ok || start != at || total != s.size {
		second.close()
		return nil, errNoParts
	}
	beginning := make([]byte, progressWorth)
	if _, err := io.ReadFull(&watchedBody{body: resp.Body, watch: watch}, beginning); err != nil {
		second.close()
		return nil, err
	}
	second.body = io.MultiReader(bytes.NewReader(beginning), resp.Body)
	return second, nil
}
