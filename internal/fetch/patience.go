package fetch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
)

// retry counts failures in a row, waits longer after each, and knows when it has been patient enough.
type retry struct {
	client   *Client
	failures int
	since    time.Time // of the last progress
}

func (c *Client) newRetry() *retry { return &retry{client: c, since: time.Now()} }

func (r *retry) reset() { r.failures, r.since = 0, time.Now() }

// unknownServerError marks the failure of a request to a server that never answered this client.
type unknownServerError struct{ err error }

func (e *unknownServerError) Error() string { return e.err.Error() }
func (e *unknownServerError) Unwrap() error { return e.err }

// NeverAnswered marks err, with which another program's request failed, as that of a server that never answered it: [Client.Retry] is patient
// with it for as long as with such a server of its own.
func NeverAnswered(err error) error { return &unknownServerError{err} }

// Unreached reports whether err is that of a request that never came to its server: there was no connection, to it or to the proxy
// before it, or nobody knew the name.
func Unreached(err error) bool {
	var conn *net.OpError
	var name *net.DNSError
	return errors.As(err, &conn) && (conn.Op == "dial" || conn.Op == "proxyconnect") || errors.As(err, &name)
}

// unknown marks err, with which a request to host failed, if nothing ever came from there.
func (c *Client) unknown(host string, err error) error {
	if _, ok := c.answered.Load(host); ok {
		return err
	}
	return &unknownServerError{err}
}

// patience is how long it is tried again after err.
func (r *retry) patience(err error) time.Duration {
	var first *unknownServerError
	switch {
	case r.client.opts.Patience > 0:
		return r.client.opts.Patience
	case errors.As(err, &first):
		return firstPatience
	}
	return usualPatience
}

// wait says why and for how long it waits, and sleeps before the next attempt. It returns err, saying how often it was tried,
// when there shall be none: there is always a second. Whoever tries the same later may find it mended, which is an exit code of its own.
func (r *retry) wait(ctx context.Context, err error) error {
	r.failures++
	o, limit := r.client.opts, r.patience(err)
	left := limit - time.Since(r.since)
	if o.Attempts > 0 && r.failures >= o.Attempts {
		return tryAgain(err, fmt.Errorf("%w (gave up after %d attempts)", plain(err), r.failures))
	}
	if r.failures > 1 && left <= 0 {
		gaveUp := tryAgain(err, fmt.Errorf("%w (gave up after %d attempts in %s)", plain(err), r.failures, time.Since(r.since).Round(time.Second)))
		if Unreached(err) {
			return gaveUp // the way there is a likelier cause than the server, and has a hint of its own
		}
		return fault.Hint(gaveUp, "a longer --patience, or SCONCE_PATIENCE, has sconce wait longer for servers in trouble")
	}
	delay := r.delay(err)
	if left > 0 {
		delay = min(delay, left)
	}
	r.client.say(ctx, err, delay, max(left, 0), time.Since(r.since))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// tryAgain marks gaveUp as trouble of today, unless the last attempt failed with err for another reason: a file with a wrong hash.
func tryAgain(err, gaveUp error) error {
	if !transient(err) {
		return gaveUp
	}
	return fault.TryAgain(gaveUp)
}

// delay is what the server asks for, else exponential with jitter: many nodes of a cluster that failed together should
// not come back together.
func (r *retry) delay(err error) time.Duration {
	var status *StatusError
	if errors.As(err, &status) && status.RetryAfter > 0 {
		return min(status.RetryAfter, r.client.opts.MaxWait)
	}
	base := min(r.client.opts.Backoff<<min(r.failures-1, 20), longestBackoff, r.client.opts.MaxWait)
	return base/2 + rand.N(base/2+1)
}

// longestBackoff is the longest wait before a server is asked again that does not say itself when: it should be noticed soon that
// it is back.
const longestBackoff = 15 * time.Second

// sayings are what a client said lately, so that many downloads from a server in trouble do not all say it.
type sayings struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// What is worth a word: a wait of a second or more, and once in so long.
const (
	waitWorth = time.Second
	sayEvery  = 5 * time.Second
)

// say reports a wait, of one who has waited before.
func (c *Client) say(ctx context.Context, err error, delay, left, waited time.Duration) {
	if delay < waitWorth {
		return
	}
	text := plain(err).Error()
	c.said.mu.Lock()
	again := time.Since(c.said.last[text]) >= sayEvery
	if again {
		if c.said.last == nil {
			c.said.last = map[string]time.Time{}
		}
		c.said.last[text] = time.Now()
	}
	c.said.mu.Unlock()
	if again {
		text := fmt.Sprintf("%s; trying again in %s, giving up in %s", text, delay.Round(time.Second), left.Round(time.Second))
		progress.Wait(ctx, text, waited+delay)
	}
}
