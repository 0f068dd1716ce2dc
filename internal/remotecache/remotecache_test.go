package remotecache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

const testKey = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

// value is what a step might keep.
type value struct {
	Layer layer.Descriptor `json:"layer"`
	Note  string           `json:"note"`
}

func quick(st *store.Store) *fetch.Client {
	return fetch.New(st, fetch.Options{Attempts: 6, Backoff: time.Millisecond, MaxWait: 20 * time.Millisecond, IdleTimeout: time.Minute})
}

func remote(t *testing.T, st *store.Store, repository string) *Remote {
	t.Helper()
	r, err := New(repository, Options{Fetch: quick(st), Chunk: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// noise is content that does not compress.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

func makeLayer(t *testing.T, st *store.Store, content []byte) layer.Descriptor {
	t.Helper()
	w, err := layer.NewWriter(t.Context(), st, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	if err := w.Add(layer.Entry{Path: "made", Mode: 0o644, Size: int64(len(content))}, open); err != nil {
		t.Fatal(err)
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func put(t *testing.T, r *Remote, st *store.Store, v value) {
	t.Helper()
	if err := r.Put(t.Context(), st, "step", testKey, v, []store.Digest{v.Layer.Digest}); err != nil {
		t.Fatal(err)
	}
}

// wantGet looks for the entry with a store of its own.
func wantGet(t *testing.T, repository string, want value) {
	t.Helper()
	st := storetest.New(t)
	var got value
	ok, err := remote(t, st, repository).Get(t.Context(), st, "step", testKey, &got)
	if err != nil || !ok || got != want {
		t.Fatalf("Get: %v, %v: %+v, want %+v", ok, err, got, want)
	}
	wantLayer(t, st, got.Layer)
}

// wantLayer reads a layer that came from the cache as any other.
func wantLayer(t *testing.T, st *store.Store, d layer.Descriptor) {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	if len(ix.Entries) != 1 || ix.Entries[0].Path != "made" || ix.DiffID != d.DiffID {
		t.Errorf("the layer has %+v", ix.Entries)
	}
	if err := layer.Verify(t.Context(), st, d); err != nil {
		t.Error(err)
	}
}

func TestPutGet(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	proxy := registrytest.NewProxy(t, host, nil)
	st := storetest.New(t)
	r := remote(t, st, proxy.Host+"/team/cache")
	var none value
	if ok, err := r.Get(t.Context(), st, "step", testKey, &none); ok || err != nil {
		t.Fatalf("an empty cache answers %v, %v", ok, err)
	}
	before := proxy.Requests.Load()
	if ok, err := r.Get(t.Context(), st, "step", strings.Repeat("0", 64), &none); ok || err != nil {
		t.Fatalf("an empty cache answers %v, %v", ok, err)
	}
	if n := proxy.Requests.Load() - before; n != 1 {
		t.Errorf("that there is no entry took %d requests", n)
	}
	v := value{makeLayer(t, st, noise(1, 3<<20)), "<made>"}
	put(t, r, st, v)
	sent := proxy.Received.Load()
	put(t, r, st, v)
	if err := r.Put(t.Context(), st, "step", strings.Repeat("1", 64), v, []store.Digest{v.Layer.Digest}); err != nil {
		t.Fatal(err)
	}
	if more := proxy.Received.Load() - sent; more > 10_000 {
		t.Errorf("%d bytes were sent again", more)
	}
	wantGet(t, host+"/team/cache", v)
	text := request(t, http.MethodGet, "http://"+host+"/v2/team/cache/manifests/step-"+testKey, nil)
	var m struct {
		ArtifactType string
		Layers       []json.RawMessage
	}
	if err := json.Unmarshal(text, &m); err != nil || m.ArtifactType != artifactType || len(m.Layers) != 1 {
		t.Errorf("the manifest is %s (%v)", text, err)
	}
}

func TestValueAlone(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	st := storetest.New(t)
	const key = "any text / with ünusual:signs"
	if err := remote(t, st, host+"/c").Put(t.Context(), st, "compiled", key, map[string]int{"a": 1}, nil); err != nil {
		t.Fatal(err)
	}
	var got map[string]int
	st = storetest.New(t)
	if ok, err := remote(t, st, host+"/c").Get(t.Context(), st, "compiled", key, &got); !ok || err != nil || got["a"] != 1 {
		t.Fatalf("Get: %v, %v, %v", ok, err, got)
	}
}

func TestMountsFromImages(t *testing.T) {
	registrytest.Isolate(t)
	proxy := registrytest.NewProxy(t, registrytest.Start(t, false), nil)
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(2, 2<<20))}
	put(t, remote(t, st, proxy.Host+"/team/one"), st, v)
	sent := proxy.Received.Load()
	put(t, remote(t, st, proxy.Host+"/team/two"), st, v)
	if more := proxy.Received.Load() - sent; more > 10_000 {
		t.Errorf("%d bytes were sent to another repository of the same registry", more)
	}
	wantGet(t, proxy.Host+"/team/two", v)
}

func TestTwoWriters(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	stores := []*store.Store{storetest.New(t), storetest.New(t)}
	values := make([]value, len(stores))
	var wg sync.WaitGroup
	for i, st := range stores {
		values[i] = value{makeLayer(t, st, noise(byte(3+i), 2<<20)), fmt.Sprint("of ", i)}
		r := remote(t, st, host+"/c")
		wg.Go(func() { put(t, r, st, values[i]) })
	}
	wg.Wait()
	st := storetest.New(t)
	var got value
	if ok, err := remote(t, st, host+"/c").Get(t.Context(), st, "step", testKey, &got); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got != values[0] && got != values[1] {
		t.Errorf("the entry is a mixture: %+v", got)
	}
	wantLayer(t, st, got.Layer)
}

func TestLogin(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(5, 1000))}
	r := remote(t, st, host+"/c")
	_, err := r.Get(t.Context(), st, "step", testKey, &value{})
	if err == nil || !strings.Contains(fault.HintOf(err), "sconce login "+host) {
		t.Errorf("Get without login: error %v with hint %q", err, fault.HintOf(err))
	}
	wantOnce(t, r, st, v)
	netrc := fmt.Sprintf("machine 127.0.0.1 login %s password %s\n", registrytest.User, registrytest.Password)
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte(netrc), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, remote(t, st, host+"/c"), st, v)
	wantGet(t, host+"/c", v)
}

// wantOnce puts an entry where that cannot be done: the first attempt says so, the next costs nothing.
func wantOnce(t *testing.T, r *Remote, st *store.Store, v value) {
	t.Helper()
	err := r.Put(t.Context(), st, "step", testKey, v, []store.Digest{v.Layer.Digest})
	if err == nil || !strings.Contains(err.Error(), "is not written any more") {
		t.Errorf("Put: %v", err)
	}
	if err := r.Put(t.Context(), st, "step", testKey, v, []store.Digest{v.Layer.Digest}); err != nil {
		t.Errorf("Put once more: %v", err)
	}
}

func TestReadOnlyRegistry(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return false
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
		return true
	})
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(6, 1000))}
	put(t, remote(t, st, host+"/c"), st, v)
	r := remote(t, st, proxy.Host+"/c")
	wantOnce(t, r, st, value{Layer: makeLayer(t, st, noise(7, 1000))})
	var got value
	if ok, err := r.Get(t.Context(), st, "step", testKey, &got); !ok || err != nil || got != v {
		t.Errorf("it cannot be read: %v, %v", ok, err)
	}
}

func TestAbsentRegistry(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(8, 1000))}
	r := remote(t, st, "127.0.0.1:1/c")
	if ok, err := r.Get(t.Context(), st, "step", testKey, &value{}); ok || err == nil {
		t.Errorf("Get: %v, %v", ok, err)
	}
	if ok, err := r.Get(t.Context(), st, "step", testKey, &value{}); ok || err != nil {
		t.Errorf("Get once more: %v, %v", ok, err)
	}
	if err := r.Put(t.Context(), st, "step", testKey, v, []store.Digest{v.Layer.Digest}); err != nil {
		t.Errorf("Put after it was warned: %v", err)
	}
	wantOnce(t, remote(t, st, "127.0.0.1:1/c"), st, v)
}

func TestOffline(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	r, err := New("127.0.0.1:1/c", Options{Fetch: fetch.New(st, fetch.Options{Offline: true})})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := r.Get(t.Context(), st, "step", testKey, &value{}); ok || err != nil {
		t.Errorf("Get: %v, %v", ok, err)
	}
	if err := r.Put(t.Context(), st, "step", testKey, value{}, nil); err != nil {
		t.Errorf("Put: %v", err)
	}
}

// TestCutDownload cuts the blob's download twice; it goes on where it stopped.
func TestCutDownload(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	var cuts atomic.Int64
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || cuts.Add(1) > 2 {
			return false
		}
		registrytest.Forward(host, registrytest.CutWriter(w, 1<<20), r)
		return true
	})
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(9, 4<<20))}
	put(t, remote(t, st, host+"/c"), st, v)
	wantGet(t, proxy.Host+"/c", v)
	if cuts.Load() < 3 {
		t.Error("nothing was cut")
	}
	if n := proxy.Sent.Load(); n > v.Layer.Size+v.Layer.Size/2 {
		t.Errorf("%d bytes came for a blob of %d", n, v.Layer.Size)
	}
}

// TestDies lets the registry die in the middle of a download, and of an upload.
func TestDies(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	var dead atomic.Bool
	var method atomic.Value
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if dead.Load() || (r.Method == method.Load() && strings.Contains(r.URL.Path, "/blobs/")) {
			dead.Store(true)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(10, 3<<20))}
	put(t, remote(t, st, host+"/c"), st, v)

	method.Store(http.MethodGet)
	other := storetest.New(t)
	r := remote(t, other, proxy.Host+"/c")
	got := value{Note: "as before"}
	ok, err := r.Get(t.Context(), other, "step", testKey, &got)
	if ok || err == nil || !strings.Contains(err.Error(), "is not read any more") || got.Note != "as before" {
		t.Errorf("Get: %v, %v, %+v", ok, err, got)
	}
	if ok, err := r.Get(t.Context(), other, "step", testKey, &got); ok || err != nil {
		t.Errorf("Get once more: %v, %v", ok, err)
	}

	dead.Store(false)
	method.Store(http.MethodPatch)
	wantOnce(t, remote(t, st, proxy.Host+"/c"), st, value{Layer: makeLayer(t, st, noise(11, 3<<20))})
	wantGet(t, host+"/c", v) // the old entry is whole
}

// TestWrongBytes gives other bytes than those asked for; after an error the entry can be written again.
func TestWrongBytes(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	var bad atomic.Value
	var size atomic.Int64
	bad.Store("")
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			bad.Store("") // a new entry mends it
		}
		if !strings.Contains(r.URL.Path, "/blobs/sha256:") {
			return false
		}
		switch kind := bad.Load(); {
		case kind == "wrong" && r.Method == http.MethodGet:
			w.Write(noise(0, int(size.Load())))
		case kind == "short" && r.Method == http.MethodGet:
			w.Write([]byte("short"))
		case kind == "gone":
			w.WriteHeader(http.StatusNotFound)
		default:
			return false
		}
		return true
	})
	for _, kind := range []string{"wrong", "short", "gone"} {
		t.Run(kind, func(t *testing.T) {
			st := storetest.New(t)
			v := value{makeLayer(t, st, noise(12, 3<<20)), kind}
			put(t, remote(t, st, host+"/c"), st, v)
			size.Store(v.Layer.Size)
			bad.Store(kind)
			other := storetest.New(t)
			r := remote(t, other, proxy.Host+"/c")
			ok, err := r.Get(t.Context(), other, "step", testKey, &value{})
			if ok || err == nil || !strings.Contains(err.Error(), testKey) {
				t.Fatalf("Get: %v, %v", ok, err)
			}
			again := value{makeLayer(t, other, noise(12, 3<<20)), kind}
			put(t, r, other, again)
			if bad.Load() != "" {
				t.Error("the entry was not written again")
			}
			wantGet(t, proxy.Host+"/c", again)
		})
	}
}

// TestForeign puts other things under the entry's tag.
func TestForeign(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(13, 1000))}
	put(t, remote(t, st, host+"/c"), st, v)
	base := "http://" + host + "/v2/c/manifests/"
	entry := request(t, http.MethodGet, base+"step-"+testKey, nil)
	image := bytes.Replace(entry, []byte(`"artifactType":"`+artifactType+`",`), nil, 1)
	other := strings.Repeat("2", 64)
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"the entry of another key": {entry, "it is that of step " + shorten(testKey)},
		"no entry":                 {image, "leads to something else"},
	} {
		request(t, http.MethodPut, base+"step-"+other, tc.data)
		if ok, err := remote(t, st, host+"/c").Get(t.Context(), st, "step", other, &value{}); ok || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	var wrong []int
	if ok, err := remote(t, st, host+"/c").Get(t.Context(), st, "step", testKey, &wrong); ok || err == nil {
		t.Errorf("a value of another type: %v, %v", ok, err)
	}
}

func request(t *testing.T, method, url string, body []byte) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
	req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	if resp.StatusCode >= 300 {
		t.Fatalf("%s: %s: %s", method, resp.Status, data)
	}
	return data
}

func TestCancelled(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	v := value{Layer: makeLayer(t, st, noise(14, 1000))}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := remote(t, st, "127.0.0.1:1/c")
	if ok, err := r.Get(ctx, st, "step", testKey, &value{}); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v, %v", ok, err)
	}
	if err := r.Put(ctx, st, "step", testKey, v, []store.Digest{v.Layer.Digest}); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v", err)
	}
	if r.isOff(reading) || r.isOff(writing) {
		t.Error("an interrupted build switches the cache off")
	}
}

func TestMissingBlob(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	r := remote(t, st, "127.0.0.1:1/c")
	err := r.Put(t.Context(), st, "step", testKey, value{}, []store.Digest{store.DigestOf([]byte("nowhere"))})
	if !errors.Is(err, fs.ErrNotExist) || r.isOff(writing) {
		t.Errorf("Put: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "/", "registry.example.org/team/cache:v1", "UPPER/x", "registry.example.org/x@sha256:" + testKey} {
		if _, err := New(name, Options{}); err == nil {
			t.Errorf("%q is taken for a repository", name)
		}
	}
	for _, name := range []string{"registry.example.org/team/cache", "docker://registry.example.org/team/cache", "joe@registry.example.org/team/cache"} {
		r, err := New(name, Options{})
		if err != nil || r.Name() != "registry.example.org/team/cache" {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := tag("Bad/Kind", "x"); err == nil {
		t.Error("a bad kind is accepted")
	}
}
