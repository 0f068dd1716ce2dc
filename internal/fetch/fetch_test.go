package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestMain lets the test binary be the second process of a test: with these variables it downloads one blob and exits.
func TestMain(m *testing.M) {
	if url := os.Getenv("SCONCE_TEST_FETCH_URL"); url != "" {
		os.Exit(helperProcess(url))
	}
	os.Exit(m.Run())
}

func helperProcess(url string) int {
	st, err := store.Open(context.Background(), os.Getenv("SCONCE_TEST_FETCH_STORE"))
	if err == nil {
		c := New(st, Options{Attempts: 6, Backoff: time.Millisecond})
		err = c.Blob(context.Background(), Request{URL: url, Digest: store.Digest(os.Getenv("SCONCE_TEST_FETCH_DIGEST"))})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func helper(t *testing.T, dir, url string, d store.Digest) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SCONCE_TEST_FETCH_URL="+url, "SCONCE_TEST_FETCH_STORE="+dir, "SCONCE_TEST_FETCH_DIGEST="+string(d))
	cmd.Stderr = os.Stderr
	return cmd
}

// randomBytes are the same in every run.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(b) // never fails
	return b
}

// fast is a client whose waits do not slow a test down.
func fast(st *store.Store) *Client {
	return New(st, Options{Backoff: time.Millisecond, MaxWait: 20 * time.Millisecond, Attempts: 4, IdleTimeout: time.Minute})
}

// server serves data and counts. trouble sees every request first; when it returns true the request is done.
type server struct {
	*httptest.Server
	gets atomic.Int64
	sent atomic.Int64
}

func serve(t *testing.T, data []byte, trouble func(n int64, w http.ResponseWriter, r *http.Request) bool) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.gets.Add(1)
		w = &counting{w, &s.sent}
		if trouble != nil && trouble(n, w, r) {
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return s
}

type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

func (c *counting) Flush() { c.ResponseWriter.(http.Flusher).Flush() }

// cut sends the first n bytes of what would be the answer and breaks the connection.
func cut(w http.ResponseWriter, data []byte, n int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(data[:n])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func wantBlob(t *testing.T, st *store.Store, data []byte) {
	t.Helper()
	got, err := st.ReadBlob(store.DigestOf(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatal("the store has other bytes")
	}
}

func TestBlob(t *testing.T) {
	data := randomBytes(1 << 20)
	srv := serve(t, data, nil)
	st := storetest.New(t)
	r := Request{URL: srv.URL + "/x", Digest: store.DigestOf(data), Size: int64(len(data))}
	for range 2 {
		if err := fast(st).Blob(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	wantBlob(t, st, data)
	if n := srv.gets.Load(); n != 1 {
		t.Errorf("asked %d times for a blob the store has, want once", n)
	}
}

func TestResumeAfterCut(t *testing.T) {
	data := randomBytes(3 << 20)
	srv := serve(t, data, func(n int64, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			cut(w, data, 1<<20)
		}
		return false
	})
	st := storetest.New(t)
	err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)})
	if err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
	// Bytes that the broken connection swallowed are sent twice; everything that arrived is not.
	if sent := srv.sent.Load(); sent >= int64(len(data))+1<<20 {
		t.Errorf("the server sent %d bytes of a %d byte file that was cut at 1 MiB: nothing was resumed", sent, len(data))
	}
}

func TestServerCutsEveryConnection(t *testing.T) {
	const piece = 300 << 10
	data := randomBytes(3 << 20) // more pieces than attempts: progress must start the count anew
	srv := serve(t, data, func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		var start int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &start)
		if len(data)-start <= piece {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(data)-1, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(len(data)-start))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[start : start+piece])
		w.(http.Flusher).Flush()
		time.Sleep(5 * time.Millisecond) // the bytes arrive before the cut
		panic(http.ErrAbortHandler)
	})
	st := storetest.New(t)
	// The first answer is 206 to a request without Range, which a client must not take for the whole file: the start fits.
	if err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
}

func TestServerWithoutRange(t *testing.T) {
	data := randomBytes(1 << 20)
	srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			cut(w, data, 600<<10)
		}
		r.Header.Del("Range")
		return false
	})
	st := storetest.New(t)
	if err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
}

func TestCompletePartialNeedsNoBytes(t *testing.T) {
	data := randomBytes(1 << 20)
	for _, size := range []int64{0, int64(len(data))} {
		srv := serve(t, data, nil)
		st := storetest.New(t)
		part, err := st.OpenPartial(store.DigestOf(data))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Write(data); err != nil {
			t.Fatal(err)
		}
		part.Close()
		if err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Size: size}); err != nil {
			t.Fatal(err)
		}
		wantBlob(t, st, data)
		if sent := srv.sent.Load(); sent > 1000 {
			t.Errorf("size %d: %d bytes were sent for a download that was complete", size, sent)
		}
	}
}

func TestDamagedPartialIsReplaced(t *testing.T) {
	data := randomBytes(1 << 20)
	srv := serve(t, data, nil)
	st := storetest.New(t)
	part, err := st.OpenPartial(store.DigestOf(data))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = part.Write(make([]byte, 1000)) // as after a power cut
	part.Close()
	if err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
}

func TestStatuses(t *testing.T) {
	data := randomBytes(1000)
	tests := []struct {
		name     string
		statuses []int // answered in turn, then the file
		gets     int64
		want     string // part of the error; "" for success
	}{
		{"500 then good", []int{500, 502, 503}, 4, ""},
		{"429 then good", []int{429}, 2, ""},
		{"always 500", []int{500, 500, 500, 500, 500}, 4, "500 Internal Server Error: broken (gave up after 4 attempts)"},
		{"401 is final", []int{401}, 1, "401 Unauthorized"},
		{"403 is final", []int{403}, 1, "403 Forbidden"},
		{"404 is final", []int{404}, 1, "404 Not Found"},
		{"410 is final", []int{410}, 1, "410 Gone"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			srv := serve(t, data, func(n int64, w http.ResponseWriter, _ *http.Request) bool {
				if int(n) > len(tc.statuses) {
					return false
				}
				w.Header().Set("Retry-After", "3600") // capped by MaxWait
				http.Error(w, "broken", tc.statuses[n-1])
				return true
			})
			st := storetest.New(t)
			err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Name: "thing.whl"})
			if got := srv.gets.Load(); got != tc.gets {
				t.Errorf("%d requests, want %d", got, tc.gets)
			}
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantBlob(t, st, data)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "thing.whl") || !strings.Contains(err.Error(), srv.URL) {
				t.Errorf("error %v, want it to say %q, the file and the server", err, tc.want)
			}
		})
	}
}

func TestRefusalSaysWhereCredentialsAreLookedFor(t *testing.T) {
	srv := serve(t, nil, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	err := fast(storetest.New(t)).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(nil)})
	if hint := fault.HintOf(err); !strings.Contains(hint, "netrc") {
		t.Errorf("hint %q of %v does not name netrc", hint, err)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	r := &retry{client: New(storetest.New(t), Options{MaxWait: time.Minute}), failures: 1}
	if d := r.delay(&StatusError{Code: 429, RetryAfter: 7 * time.Second}); d != 7*time.Second {
		t.Errorf("wait %s after Retry-After: 7", d)
	}
	if d := r.delay(&StatusError{Code: 429, RetryAfter: time.Hour}); d != time.Minute {
		t.Errorf("wait %s, want it capped at a minute", d)
	}
	now := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Duration{"": 0, "5": 5 * time.Second, "-1": 0, "soon": 0, "Wed, 01 Jan 2025 00:00:09 GMT": 9 * time.Second, "Wed, 01 Jan 2020 00:00:09 GMT": 0} {
		if got := parseRetryAfter(s, now); got != want {
			t.Errorf("Retry-After %q: %s, want %s", s, got, want)
		}
	}
}

func TestHangingServer(t *testing.T) {
	data := randomBytes(1 << 20)
	for _, headers := range []bool{false, true} {
		srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
			if n > 1 {
				return false
			}
			if headers {
				w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				_, _ = w.Write(data[:500<<10])
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done() // until the client goes away
			return true
		})
		st := storetest.New(t)
		c := New(st, Options{Attempts: 6, Backoff: time.Millisecond, IdleTimeout: time.Second})
		if err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
			t.Fatalf("headers first %t: %v", headers, err)
		}
		wantBlob(t, st, data)
		if headers && srv.sent.Load() >= int64(len(data)+500<<10) {
			t.Error("what came before the hang was downloaded again")
		}
	}
}

func TestServerThatAlwaysHangs(t *testing.T) {
	srv := serve(t, nil, func(_ int64, _ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	})
	c := New(storetest.New(t), Options{Backoff: time.Millisecond, Attempts: 2, IdleTimeout: 50 * time.Millisecond})
	err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(nil)})
	var silent *silentError
	if !errors.As(err, &silent) {
		t.Errorf("error %v, want one that says that the server was silent", err)
	}
}

func TestWrongHash(t *testing.T) {
	data, other := randomBytes(1000), make([]byte, 1000)
	t.Run("once", func(t *testing.T) {
		srv := serve(t, data, func(n int64, w http.ResponseWriter, _ *http.Request) bool {
			if n == 1 {
				_, _ = w.Write(other)
			}
			return n == 1
		})
		st := storetest.New(t)
		if err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
			t.Fatal(err)
		}
		wantBlob(t, st, data)
	})
	t.Run("always", func(t *testing.T) {
		srv := serve(t, other, nil)
		st := storetest.New(t)
		err := fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)})
		var mismatch *store.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Got != store.DigestOf(other) {
			t.Errorf("error %v, want a MismatchError with the hash of what came", err)
		}
		if n := srv.gets.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
		if st.HasBlob(store.DigestOf(other)) || st.HasBlob(store.DigestOf(data)) {
			t.Error("something wrong was kept")
		}
	})
	t.Run("size", func(t *testing.T) {
		srv := serve(t, other, nil)
		err := fast(storetest.New(t)).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Size: 999})
		if err == nil || !strings.Contains(err.Error(), "wrong size: expected 999 bytes, the server has 1000") {
			t.Errorf("error %v", err)
		}
	})
}

func TestEndlessBodyIsCut(t *testing.T) {
	srv := serve(t, nil, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
		for { // no Content-Length
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return true
			}
		}
	})
	err := fast(storetest.New(t)).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(nil), Size: 1 << 20})
	var size *SizeError
	if !errors.As(err, &size) {
		t.Errorf("error %v, want a size error", err)
	}
}

// TestKilledProcess kills a download with SIGKILL and lets another process finish it.
func TestKilledProcess(t *testing.T) {
	data := randomBytes(8 << 20)
	const first = 4 << 20
	reached := make(chan struct{})
	srv := serve(t, data, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:first])
		w.(http.Flusher).Flush()
		close(reached)
		<-r.Context().Done()
		return true
	})
	dir := t.TempDir()
	victim := helper(t, dir, srv.URL, store.DigestOf(data))
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	storetest.WaitForPartial(t, dir, first/2)
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed: an error is right
	if err := helper(t, dir, srv.URL, store.DigestOf(data)).Run(); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	wantBlob(t, st, data)
	if again := srv.sent.Load() - first; again > int64(len(data)-first/2) {
		t.Errorf("after the kill %d of %d bytes were sent: nothing was resumed", again, len(data))
	}
}

// TestSingleFlight lets goroutines and processes ask for one blob at once.
func TestSingleFlight(t *testing.T) {
	data := randomBytes(1 << 20)
	srv := serve(t, data, func(_ int64, _ http.ResponseWriter, _ *http.Request) bool {
		time.Sleep(300 * time.Millisecond) // long enough for everybody to arrive
		return false
	})
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := helper(t, dir, srv.URL, store.DigestOf(data)).Run(); err != nil {
				t.Error(err)
			}
		})
	}
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	c := fast(st)
	for range 20 {
		wg.Go(func() {
			if err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantBlob(t, st, data)
	if n := srv.gets.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestBlobsAreBounded(t *testing.T) {
	var now, most atomic.Int64
	blobs := map[string][]byte{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		_, _ = w.Write(blobs[r.URL.Path])
	}))
	defer srv.Close()
	var rs []Request
	for i := range 20 {
		path := fmt.Sprintf("/%d", i)
		blobs[path] = []byte(path)
		rs = append(rs, Request{URL: srv.URL + path, Digest: store.DigestOf([]byte(path))})
	}
	st := storetest.New(t)
	c := New(st, Options{Jobs: 3})
	if err := c.Blobs(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if !st.HasBlob(r.Digest) {
			t.Errorf("%s is missing", r.URL)
		}
	}
	if most.Load() > 3 {
		t.Errorf("%d downloads at once, want at most 3", most.Load())
	}
}

func TestOffline(t *testing.T) {
	srv := serve(t, []byte("x"), nil)
	c := New(storetest.New(t), Options{Offline: true})
	err := c.Blob(t.Context(), Request{URL: srv.URL + "/numpy.whl", Digest: store.DigestOf([]byte("x"))})
	if !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "numpy.whl") {
		t.Errorf("error %v, want one that says offline and which file", err)
	}
	if srv.gets.Load() != 0 {
		t.Error("the network was used")
	}
}

func TestLocalFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "with space.whl")
	if err := os.WriteFile(path, []byte("wheel"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{path, "file://" + strings.ReplaceAll(path, " ", "%20")} {
		st := storetest.New(t)
		c := New(st, Options{Offline: true}) // local files are no network
		if err := c.Blob(t.Context(), Request{URL: url, Digest: store.DigestOf([]byte("wheel")), Size: 5}); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		wantBlob(t, st, []byte("wheel"))
		var mismatch *store.MismatchError
		if err := c.Blob(t.Context(), Request{URL: url, Digest: store.DigestOf([]byte("other"))}); !errors.As(err, &mismatch) {
			t.Errorf("%s with another hash: error %v", url, err)
		}
	}
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	events []progress.Event
}

func (r *recorder) Emit(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func TestCredentialsAreSentAndNeverShown(t *testing.T) {
	data := []byte("secret wheel")
	var refuse atomic.Bool
	srv := serve(t, data, func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if user != "joe" || password != "hunter2" || refuse.Load() {
			http.Error(w, "no", http.StatusForbidden)
			return true
		}
		return false
	})
	netrc := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(netrc, []byte("machine 127.0.0.1 login joe password hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	withUser := strings.Replace(srv.URL, "http://", "http://joe:hunter2@", 1) + "/f?token=hunter2"
	for _, tc := range []struct{ netrc, url string }{{netrc, srv.URL + "/f?token=hunter2"}, {"/nowhere", withUser}} {
		t.Setenv("NETRC", tc.netrc)
		var rec recorder
		ctx := progress.With(t.Context(), &rec)
		refuse.Store(false)
		if err := fast(storetest.New(t)).Blob(ctx, Request{URL: tc.url, Digest: store.DigestOf(data)}); err != nil {
			t.Fatal(err)
		}
		refuse.Store(true)
		refused := fast(storetest.New(t)).Blob(ctx, Request{URL: tc.url, Digest: store.DigestOf(data)})
		dead := strings.Replace(tc.url, srv.Listener.Addr().String(), tooltest.ClosedPort(t), 1)
		unreachable := fast(storetest.New(t)).Blob(ctx, Request{URL: dead, Digest: store.DigestOf(data)})
		for _, err := range []error{refused, unreachable} {
			if err == nil || strings.Contains(err.Error()+fault.HintOf(err), "hunter2") || strings.Contains(err.Error(), "joe") {
				t.Errorf("error shows a secret or is missing: %v", err)
			}
		}
		if all := fmt.Sprint(rec.events); strings.Contains(all, "hunter2") {
			t.Errorf("events show a secret: %s", all)
		}
	}
}

func TestCancel(t *testing.T) {
	srv := serve(t, nil, func(_ int64, _ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	err := fast(storetest.New(t)).Blob(ctx, Request{URL: srv.URL, Digest: store.DigestOf(nil)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want one that wraps context.Canceled", err)
	}
}

func TestNoDowngrade(t *testing.T) {
	plainServer := serve(t, []byte("x"), nil)
	srv := httptest.NewTLSServer(http.RedirectHandler(plainServer.URL, http.StatusFound))
	defer srv.Close()
	c := New(storetest.New(t), Options{Transport: srv.Client().Transport})
	err := c.Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf([]byte("x"))})
	if err == nil || !strings.Contains(err.Error(), "refused a redirect from https") || plainServer.gets.Load() != 0 {
		t.Errorf("error %v after %d requests to the plain server", err, plainServer.gets.Load())
	}
}

func TestDo(t *testing.T) {
	srv := serve(t, nil, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(body)
		return true
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("again"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := fast(storetest.New(t)).Do(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "again" || resp.StatusCode != http.StatusTeapot {
		t.Errorf("status %d, body %q: want the second answer to the same body", resp.StatusCode, body)
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-1/2")
	f.Add("bytes 5-9/*")
	f.Fuzz(func(t *testing.T, s string) {
		if start, total, ok := parseContentRange(s); ok && (start < 0 || total < -1) {
			t.Errorf("%q gives %d of %d", s, start, total)
		}
	})
}

// The words of a server reach a terminal by way of an error, and JSON.
func TestPrintable(t *testing.T) {
	if got := Printable("a\r\n\x1b[31mb\u009bc \u202ed\ufffd\xff" + strings.Repeat("x", 400)); strings.ContainsFunc(got, quote.Harmful) || !strings.HasPrefix(got, "a [31mb c d ") || len(got) > 310 {
		t.Errorf("%q", got)
	}
}
