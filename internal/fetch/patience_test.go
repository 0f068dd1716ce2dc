package fetch

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// A server that is in trouble for longer than a few attempts is still asked.
func TestPatience(t *testing.T) {
	data := randomBytes(1000)
	srv := serve(t, data, func(n int64, w http.ResponseWriter, _ *http.Request) bool {
		if n <= 30 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return n <= 30
	})
	st := storetest.New(t)
	c := New(st, Options{Backoff: time.Millisecond, MaxWait: time.Millisecond})
	if err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
		t.Fatal(err)
	}
}

func TestPatienceEnds(t *testing.T) {
	srv := serve(t, nil, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	c := New(storetest.New(t), Options{Patience: 300 * time.Millisecond})
	err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(nil)})
	if err == nil || !strings.Contains(err.Error(), "gave up after 2 attempts") {
		t.Errorf("error %v, want one after the second attempt", err)
	}
}

// A server that never answered may be a slip, one that did is worth waiting for; what the user says counts for both.
func TestPatienceWithStrangers(t *testing.T) {
	srv := serve(t, nil, nil)
	host := hostOf(srv.URL)
	c := New(storetest.New(t), Options{})
	r := c.newRetry()
	if got := r.patience(c.unknown(host, errBadRange)); got != firstPatience {
		t.Errorf("patience with a stranger is %s", got)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := r.patience(c.unknown(host, errBadRange)); got != usualPatience {
		t.Errorf("patience with a server that answered is %s", got)
	}
	c.opts.Patience = time.Hour
	if got := r.patience(c.unknown("other", errBadRange)); got != time.Hour {
		t.Errorf("patience is %s, want what the user says", got)
	}
}

// Within another attempt, whose error says no address any more, a stranger stays one.
func TestPatienceWithNestedStrangers(t *testing.T) {
	c := New(storetest.New(t), Options{})
	err := c.Retry(context.WithValue(t.Context(), retrying{}, true), func(context.Context, bool) (bool, error) {
		return false, c.unknown("away", &url.Error{Op: "Get", URL: "http://away/x", Err: syscall.ECONNREFUSED})
	})
	if got := c.newRetry().patience(err); got != firstPatience || strings.Contains(err.Error(), "away/x") {
		t.Errorf("patience is %s after %v", got, err)
	}
}

type notes struct {
	mu   sync.Mutex
	text []string
}

func (n *notes) Emit(e progress.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Kind == progress.Note {
		n.text = append(n.text, e.Text)
	}
}

func TestWaitIsTold(t *testing.T) {
	srv := serve(t, nil, func(n int64, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
		return n == 1
	})
	var told notes
	req, err := http.NewRequestWithContext(progress.With(t.Context(), &told), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := New(storetest.New(t), Options{}).Do(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(told.text) != 1 || !strings.Contains(told.text[0], "429 Too Many Requests; trying again in 1s") {
		t.Errorf("told %q", told.text)
	}
}
