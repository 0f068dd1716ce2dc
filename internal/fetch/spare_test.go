package fetch

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// hurried is a client that compares speeds often.
func hurried(st *store.Store) *Client {
	return New(st, Options{Backoff: time.Millisecond, Attempts: 4, IdleTimeout: time.Minute, SpeedTime: 20 * time.Millisecond})
}

// crawl sends the beginning of what would be the answer, and then nothing until it is told to go on, or the client hangs up.
func crawl(w http.ResponseWriter, r *http.Request, data []byte, n int, goOn <-chan struct{}) {
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(data[:n])
	w.(http.Flusher).Flush()
	select {
	case <-goOn:
		_, _ = w.Write(data[n:])
	case <-r.Context().Done():
	}
}

// The rest of a file whose connection crawls comes on a second one, from where the first one is.
func TestSecondConnection(t *testing.T) {
	data := randomBytes(3 << 20)
	var parts atomic.Int64
	srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			crawl(w, r, data, 1<<20, nil)
		}
		if r.Header.Get("Range") != "" {
			parts.Add(1)
		}
		return n == 1
	})
	st := storetest.New(t)
	if err := hurried(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
	if gets, parts := srv.gets.Load(), parts.Load(); gets < 2 || gets != parts+1 {
		t.Errorf("asked %d times, %d of them for a part; want once for the whole and at least once for a part", gets, parts)
	}
}

// A second connection that is no better, or is refused, costs the first one nothing.
func TestSecondConnectionIsNoBetter(t *testing.T) {
	data := randomBytes(3 << 20)
	for name, second := range map[string]func(w http.ResponseWriter, r *http.Request){
		"crawls too":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"is refused":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"has no part": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) },
		"is of another file": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 1048576-9999999/10000000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data)
		},
		"breaks": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 1<<20, len(data)-1, len(data)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[1<<20:][:1000])
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
				switch n {
				case 1:
					crawl(w, r, data, 1<<20, goOn)
				case 2:
					go func() {
						time.Sleep(50 * time.Millisecond) // the answer has come by then, or has not: either must do
						close(goOn)
					}()
					second(w, r)
				default:
					w.WriteHeader(http.StatusTooManyRequests)
				}
				return true
			})
			st := storetest.New(t)
			if err := hurried(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
				t.Fatal(err)
			}
			wantBlob(t, st, data)
		})
	}
}

// Wrong bytes of a second connection are found by the hash of the whole, and the file comes once more.
func TestSecondConnectionLies(t *testing.T) {
	data := randomBytes(3 << 20)
	srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		switch n {
		case 1:
			crawl(w, r, data, 1<<20, nil)
		case 2:
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 1<<20, len(data)-1, len(data)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, len(data)-1<<20))
		}
		return n <= 2
	})
	st := storetest.New(t)
	if err := hurried(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
}

// What is slow everywhere does not crawl, unless next to nothing comes.
func TestCrawls(t *testing.T) {
	c := New(storetest.New(t), Options{SpeedTime: 10 * time.Second})
	for i, step := range []struct {
		bytes  int64
		crawls bool
	}{{0, true}, {150 << 10, true}, {200 << 10, false}, {100 << 20, false}, {4 << 20, true}, {6 << 20, false}, {100 << 10, true}} {
		if got := c.crawls(step.bytes); got != step.crawls {
			t.Errorf("step %d: %d bytes in 10 s crawl: %t", i, step.bytes, got)
		}
	}
}
