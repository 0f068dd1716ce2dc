package export

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store/storetest"
)

// silentFor makes a registry fall silent: each request that is chosen gets only the part of its body read that n says, and no
// answer. The connection stays open, as with a server whose disk or process hangs.
func silentFor(t *testing.T, inner http.Handler, chosen func(*http.Request) bool, read int64) (host string, silences *atomic.Int64) {
	t.Helper()
	over := make(chan struct{})
	silences = new(atomic.Int64)
	host = serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !chosen(r) {
			inner.ServeHTTP(w, r)
			return
		}
		silences.Add(1)
		_, _ = io.CopyN(io.Discard, r.Body, read)
		<-over
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(func() { close(over) }) // before the server is closed
	return host, silences
}

// TestPushToSilentRegistry has a registry stop in each phase of a push: it is asked again, and it is given up in a time that
// depends on the limit for silence alone.
func TestPushToSilentRegistry(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(40<<20)))) // more than the kernel buffers
	for _, tc := range []struct {
		name, method, part string
		chunk              int64
	}{
		{"is it there", http.MethodHead, "manifests", 0},
		{"is the blob there", http.MethodHead, "blobs", 0},
		{"begin", http.MethodPost, "uploads", 0},
		{"chunk", http.MethodPatch, "uploads", 0},
		{"whole", http.MethodPut, "uploads", 64 << 20},
		{"manifest", http.MethodPut, "manifests", 0},
	} {
		for _, heals := range []bool{true, false} {
			t.Run(tc.name+map[bool]string{true: ", then works"}[heals], func(t *testing.T) {
				reg := &resumable{blobs: map[string][]byte{}, uploads: map[string][]byte{}}
				var seen atomic.Int64
				host, silences := silentFor(t, reg, func(r *http.Request) bool {
					return r.Method == tc.method && strings.Contains(r.URL.Path, tc.part) && (seen.Add(1) == 1 || !heals)
				}, 1<<20)
				attempts := 3
				if heals {
					attempts = 50 // a loaded machine falls silent, too
				}
				client := fetch.New(st, fetch.Options{Backoff: time.Millisecond, Attempts: attempts, IdleTimeout: 300 * time.Millisecond})
				err := Push(t.Context(), im, host+"/app:v1", registry.PushOptions{Store: st, Fetch: client, Chunk: tc.chunk, Jobs: 1})
				if heals {
					if err != nil || !bytes.Contains(reg.manifest, []byte(im.Layers[0].Digest)) {
						t.Errorf("error %v, manifest %q", err, reg.manifest)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), "for too long") {
					t.Errorf("error %v", err)
				}
				if n := silences.Load(); n > 3 {
					t.Errorf("asked %d times, want 3 at most", n)
				}
			})
		}
	}
}

// TestPushToRegistryThatGoesSilent has it answer nothing at all any more after a chunk: what is asked on the way to an upload's
// continuation is a part of the attempt, and not one of its own.
func TestPushToRegistryThatGoesSilent(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(4<<20))))
	reg := &resumable{blobs: map[string][]byte{}, uploads: map[string][]byte{}}
	var chunks atomic.Int64
	host, silences := silentFor(t, reg, func(r *http.Request) bool {
		return (r.Method == http.MethodPatch && chunks.Add(1) > 1) || chunks.Load() > 1
	}, 0)
	client := fetch.New(st, fetch.Options{Backoff: time.Millisecond, Attempts: 3, IdleTimeout: 200 * time.Millisecond})
	err := Push(t.Context(), im, host+"/app:v1", registry.PushOptions{Store: st, Fetch: client, Chunk: 1 << 20, Jobs: 1})
	if err == nil || silences.Load() > 4 { // the first attempt brought a chunk
		t.Errorf("%d silences, want one for each attempt; error %v", silences.Load(), err)
	}
}
