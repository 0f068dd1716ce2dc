package export

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// noise is content that does not compress.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(b) // never fails
	return string(b)
}

func quick(st *store.Store) *fetch.Client {
	return fetch.New(st, fetch.Options{Attempts: 6, Backoff: time.Millisecond, MaxWait: 20 * time.Millisecond, IdleTimeout: time.Minute})
}

func push(t *testing.T, st *store.Store, im *image.Image, ref string) {
	t.Helper()
	if err := Push(t.Context(), im, ref, registry.PushOptions{Store: st, Fetch: quick(st), Chunk: 1 << 20}); err != nil {
		t.Fatal(err)
	}
}

// wantPushed lets skopeo copy the image out of the registry, which checks every blob.
func wantPushed(t *testing.T, im *image.Image, ref string, login ...string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "copy")
	registrytest.Skopeo(t, append([]string{"copy", "--src-tls-verify=false", "docker://" + ref, "oci:" + out + ":x"}, login...)...)
	if digest, _ := inspect(t, "oci:"+out+":x"); digest != string(im.Digest) {
		t.Errorf("the registry has %s, want %s", digest, im.Digest)
	}
}

func TestPush(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	proxy := registrytest.NewProxy(t, host, nil)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(3<<20))), makeLayer(t, st, layer.Gzip, regular("b", "small")))
	push(t, st, im, proxy.Host+"/team/app:v1")
	wantPushed(t, im, host+"/team/app:v1")
	sent := proxy.Received.Load()
	push(t, st, im, proxy.Host+"/team/app:v1") // nothing to do
	push(t, st, im, proxy.Host+"/team/app:v2") // only another name
	if more := proxy.Received.Load() - sent; more > 10_000 {
		t.Errorf("%d bytes were sent again", more)
	}
	wantPushed(t, im, host+"/team/app:v2")
}

func TestPushMounts(t *testing.T) {
	registrytest.Isolate(t)
	proxy := registrytest.NewProxy(t, registrytest.Start(t, false), nil)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(2<<20))))
	push(t, st, im, proxy.Host+"/one/app:v1")
	sent := proxy.Received.Load()
	push(t, st, im, proxy.Host+"/two/app:v1")
	if more := proxy.Received.Load() - sent; more > 10_000 {
		t.Errorf("%d bytes were sent to another repository of the same registry", more)
	}
	wantPushed(t, im, proxy.Host+"/two/app:v1")
}

func TestPushLogin(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	st := storetest.New(t)
	im := sample(t, st)
	err := Push(t.Context(), im, host+"/app:v1", registry.PushOptions{Store: st, Fetch: quick(st)})
	if err == nil || !strings.Contains(fault.HintOf(err), "sconce login "+host) {
		t.Errorf("without login: error %v with hint %q", err, fault.HintOf(err))
	}
	netrc := fmt.Sprintf("machine 127.0.0.1 login %s password %s\n", registrytest.User, registrytest.Password)
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte(netrc), 0o600); err != nil {
		t.Fatal(err)
	}
	push(t, st, im, host+"/app:v1")
	wantPushed(t, im, host+"/app:v1", "--src-creds", registrytest.User+":"+registrytest.Password)
}

// TestPushThroughTrouble makes each request of a kind fail a few times.
func TestPushThroughTrouble(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	abort := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	status := func(code int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(code) } }
	for i, tc := range []struct {
		name, method string
		trouble      func(http.ResponseWriter)
	}{
		{"500 on HEAD", http.MethodHead, status(500)},
		{"429 on POST", http.MethodPost, status(429)},
		{"503 on PATCH", http.MethodPatch, status(503)},
		{"cut PATCH", http.MethodPatch, abort},
		{"502 on PUT", http.MethodPut, status(502)},
		{"cut PUT", http.MethodPut, abort},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var failures atomic.Int64
			proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != tc.method || failures.Add(1) > 2 {
					return false
				}
				_, _ = io.CopyN(io.Discard, r.Body, 100_000)
				tc.trouble(w)
				return true
			})
			st := storetest.New(t)
			im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular(tc.name, noise(3<<20))))
			ref := fmt.Sprintf("%s/trouble/app%d:v1", proxy.Host, i)
			push(t, st, im, ref)
			wantPushed(t, im, ref)
			if failures.Load() < 2 {
				t.Error("the trouble did not happen")
			}
		})
	}
}

// resumable is a registry that does what the specification says after a broken upload, which Debian's does not.
type resumable struct {
	mu       sync.Mutex
	blobs    map[string][]byte
	manifest []byte
	uploads  map[string][]byte
	restarts int
	cuts     int // PATCH requests to cut in the middle
	noPatch  bool
}

func (s *resumable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := strings.TrimPrefix(r.URL.Path, "/v2/app/")
	id := strings.TrimPrefix(part, "blobs/uploads/")
	at := func(code int) {
		w.Header().Set("Location", "/v2/app/blobs/uploads/"+id)
		if n := len(s.uploads[id]); n > 0 {
			w.Header().Set("Range", fmt.Sprintf("0-%d", n-1))
		}
		w.WriteHeader(code)
	}
	switch {
	case strings.HasPrefix(part, "manifests/") && r.Method == http.MethodPut:
		s.manifest, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodHead:
		if _, ok := s.blobs[strings.TrimPrefix(part, "blobs/")]; !ok {
			w.WriteHeader(http.StatusNotFound)
		}
	case r.Method == http.MethodPost:
		s.restarts++
		id = fmt.Sprint("u", s.restarts)
		s.uploads[id] = []byte{}
		at(http.StatusAccepted)
	case s.uploads[id] == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPatch && s.noPatch:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.Method == http.MethodPatch:
		if want := fmt.Sprintf("%d-%d", len(s.uploads[id]), int64(len(s.uploads[id]))+r.ContentLength-1); r.Header.Get("Content-Range") != want {
			at(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		if s.cuts > 0 {
			s.cuts--
			half, _ := io.ReadAll(io.LimitReader(r.Body, r.ContentLength/2))
			s.uploads[id] = append(s.uploads[id], half...)
			panic(http.ErrAbortHandler)
		}
		data, _ := io.ReadAll(r.Body)
		s.uploads[id] = append(s.uploads[id], data...)
		at(http.StatusAccepted)
	case r.Method == http.MethodPut:
		data, _ := io.ReadAll(r.Body)
		data = append(s.uploads[id], data...)
		if d := r.URL.Query().Get("digest"); string(store.DigestOf(data)) == d {
			s.blobs[d] = data
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
	case r.Method == http.MethodGet:
		at(http.StatusNoContent)
	}
}

func TestPushResumesInTheMiddleOfAChunk(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(4<<20))))
	reg := &resumable{blobs: map[string][]byte{}, uploads: map[string][]byte{}, cuts: 3}
	proxy := registrytest.NewProxy(t, serveOn(t, reg), nil)
	push(t, st, im, proxy.Host+"/app:v1")
	if string(store.DigestOf(reg.manifest)) != string(im.Digest) {
		t.Error("the manifest did not arrive")
	}
	if reg.restarts != 2 { // one upload for the layer, one for the config
		t.Errorf("%d uploads were begun, want 2: the layer's was not resumed", reg.restarts)
	}
	if most := im.Layers[0].Size * 3 / 2; proxy.Received.Load() > most+3<<20 {
		t.Errorf("%d bytes sent for a layer of %d", proxy.Received.Load(), im.Layers[0].Size)
	}
}

func TestPushToRegistryWithoutChunks(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(4<<20))))
	reg := &resumable{blobs: map[string][]byte{}, uploads: map[string][]byte{}, noPatch: true}
	push(t, st, im, serveOn(t, reg)+"/app:v1")
	for _, b := range blobsOf(im)[:2] {
		if _, ok := reg.blobs[string(b.digest)]; !ok {
			t.Errorf("blob %s did not arrive", b.digest)
		}
	}
}

func serveOn(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestPushThenImport(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	st := storetest.New(t)
	im := sample(t, st)
	push(t, st, im, "docker://"+host+"/round/trip:v1")
	ref, err := source.Parse("docker://" + host + "/round/trip:v1")
	if err != nil {
		t.Fatal(err)
	}
	other := storetest.New(t)
	got, err := source.Import(t.Context(), ref, source.Options{Store: other, Fetch: quick(other)})
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != im.Digest {
		t.Errorf("pulled %s, pushed %s", got.Digest, im.Digest)
	}
}
