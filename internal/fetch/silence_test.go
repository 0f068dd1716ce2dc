package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// muteServer serves with HTTP/1.1, or HTTP/2 over TLS. Its handlers may hang until the channel is closed, which happens at the
// end of the test.
func muteServer(t *testing.T, http2 bool, h func(w http.ResponseWriter, r *http.Request, over <-chan struct{})) (url string, transport *http.Transport) {
	t.Helper()
	over := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(w, r, over) }))
	srv.EnableHTTP2 = http2
	transport = DefaultTransport()
	if http2 {
		srv.StartTLS()
		transport.TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(over) })
	return srv.URL, transport
}

// impatient gives up soon.
func impatient(st *store.Store, transport http.RoundTripper) *Client {
	return New(st, Options{Backoff: time.Millisecond, Attempts: 3, IdleTimeout: 200 * time.Millisecond, Transport: transport})
}

// askedFor counts the requests that a client makes, of which a server may not learn before the client has given up.
type askedFor struct {
	http.RoundTripper
	asked atomic.Int64
}

func (c *askedFor) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

func wantSilence(t *testing.T, err error, sending bool) {
	t.Helper()
	var silent *silentError
	if !errors.As(err, &silent) || silent.sending != sending {
		t.Errorf("error %v, want one that says that the server was silent (while it was sent something: %t)", err, sending)
	}
}

// A server may stop at any moment of a request, and none of them may last for ever. Each is tried again.
func TestServerFallsSilent(t *testing.T) {
	data := randomBytes(1 << 20)
	for _, http2 := range []bool{false, true} {
		for name, answer := range map[string]func(http.ResponseWriter){
			"before the answer": func(http.ResponseWriter) {},
			"after the headers": func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
			"within the answer": func(w http.ResponseWriter) {
				_, _ = w.Write(data[:1000])
				w.(http.Flusher).Flush()
			},
		} {
			t.Run(name+map[bool]string{true: ", HTTP/2"}[http2], func(t *testing.T) {
				url, direct := muteServer(t, http2, func(w http.ResponseWriter, _ *http.Request, over <-chan struct{}) {
					answer(w)
					<-over
				})
				transport := &askedFor{RoundTripper: direct}
				st := storetest.New(t)
				wantSilence(t, impatient(st, transport).Blob(t.Context(), Request{URL: url, Digest: store.DigestOf(data)}), false)
				if n := transport.asked.Load(); n != 3 {
					t.Errorf("a pinned file was asked for %d times, want 3", n)
				}
				_, err := impatient(st, transport).Unpinned(t.Context(), Request{URL: url})
				wantSilence(t, err, false)
				if n := transport.asked.Load(); n != 6 {
					t.Errorf("an unpinned file was asked for %d times, want 3", n-3)
				}
			})
		}
	}
}

func TestServerNeverConnects(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // the kernel connects, nobody speaks TLS
	r := Request{URL: "https://" + silent.Addr().String(), Digest: store.DigestOf(nil)}
	wantSilence(t, impatient(storetest.New(t), nil).Blob(t.Context(), r), false)
	far := DefaultTransport()
	far.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done() // packets that are dropped
		return nil, ctx.Err()
	}
	wantSilence(t, impatient(storetest.New(t), far).Blob(t.Context(), r), false)
}

func upload(t *testing.T, url string, data []byte) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestServerStopsReading(t *testing.T) {
	data := make([]byte, 64<<20) // more than the kernel buffers
	for _, http2 := range []bool{false, true} {
		url, direct := muteServer(t, http2, func(_ http.ResponseWriter, r *http.Request, over <-chan struct{}) {
			_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			<-over
		})
		transport := &askedFor{RoundTripper: direct}
		c := impatient(storetest.New(t), transport)
		resp, err := c.Do(&http.Client{Transport: transport}, upload(t, url, data))
		if err == nil {
			resp.Body.Close()
		}
		wantSilence(t, err, true)
		// That its answer may take long is no reason to wait longer for it to read.
		resp, err = c.Once(&http.Client{Transport: transport}, upload(t, url, data), time.Hour)
		if err == nil {
			resp.Body.Close()
		}
		wantSilence(t, err, true)
		if n := transport.asked.Load(); n != 4 {
			t.Errorf("HTTP/2 %t: asked %d times, want 3 and 1", http2, n)
		}
	}
}

// The body that is sent again after a redirect takes longer than the limit for silence, but moves.
func TestSlowUploadAfterRedirect(t *testing.T) {
	url, transport := muteServer(t, false, func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
			return
		}
		for range 50 {
			_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			time.Sleep(50 * time.Millisecond)
		}
	})
	c := New(storetest.New(t), Options{Backoff: time.Millisecond, Attempts: 20, IdleTimeout: 2 * time.Second, Transport: transport})
	resp, err := c.Do(&http.Client{Transport: transport}, upload(t, url+"/", make([]byte, 50<<20)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestAttemptsDoNotMultiply(t *testing.T) {
	var asked atomic.Int64
	url, transport := muteServer(t, false, func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	c := New(storetest.New(t), Options{Backoff: time.Millisecond, Attempts: 3, Transport: transport})
	err := c.Retry(t.Context(), func(ctx context.Context, _ bool) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := c.Do(nil, req)
		if err == nil {
			resp.Body.Close()
		}
		return false, err
	})
	var status *StatusError
	if !errors.As(err, &status) || asked.Load() != 3 {
		t.Errorf("asked %d times, error %v; want 3 attempts", asked.Load(), err)
	}
}

// A server that sends a byte now and then is never silent. Its answer ends all the same, with patience or without, and what is slow and
// large is not cut off for it.
func TestDribbledAnswer(t *testing.T) {
	url, transport := muteServer(t, false, func(w http.ResponseWriter, r *http.Request, over <-chan struct{}) {
		piece := []byte("{")
		if r.URL.Path == "/slow" {
			piece = make([]byte, 2*slowest)
		}
		for i := 0; piece[0] == '{' || i < 12; i++ {
			if _, err := w.Write(piece); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-over:
				return
			case <-time.After(30 * time.Millisecond):
			}
		}
	})
	c := New(storetest.New(t), Options{Backoff: time.Millisecond, Attempts: 2, IdleTimeout: 150 * time.Millisecond, Patience: time.Hour, Transport: transport})
	read := func(path string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = c.Retry(t.Context(), func(ctx context.Context, _ bool) (bool, error) {
			resp, err := c.Once(http.DefaultClient, req.WithContext(ctx), 0)
			if err != nil {
				return false, err
			}
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			n = len(data)
			return false, err
		})
		return n, err
	}
	var silent *silentError
	if n, err := read("/dribble"); !errors.As(err, &silent) || !silent.slow || n > 1000 {
		t.Errorf("%d bytes, %v; want an error that says how slow the server is", n, err)
	}
	if n, err := read("/slow"); err != nil || n != 12*2*slowest {
		t.Errorf("%d bytes, %v; want all %d", n, err, 12*2*slowest)
	}
}
