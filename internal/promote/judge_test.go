package promote

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry/registrytest"
)

// A verdict that a tag was moved back to does not count before one that ended later, whoever judges.
func TestOlderVerdict(t *testing.T) {
	for name, start := range map[string]func(testing.TB) string{
		"docker": func(t testing.TB) string { return registrytest.Start(t, false) }, "referrers": registrytest.StartWithReferrers,
	} {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/ci"
			key, _, _ := evidencetest.Key(t)
			image := evidencetest.Image(t, at, "one", "one")
			st, client := evidencetest.Client(t)
			b, err := evidence.Open(at, evidence.Options{Store: st, Fetch: client, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			k := evidence.Key{Image: image, Test: hash("nccl"), Cluster: "clariden"}
			tag, err := k.Tag()
			if err != nil {
				t.Fatal(err)
			}
			put := func(result evidence.Result, hour int) (manifest []byte, mediaType string) {
				t.Helper()
				e := evidence.Evidence{Key: k, Name: "nccl", Result: result, Finished: time.Date(2026, 11, 22, hour, 0, 0, 0, time.UTC)}
				if err := b.Put(t.Context(), e, nil); err != nil {
					t.Fatal(err)
				}
				if manifest, mediaType, err = b.Repository().Manifest(t.Context(), tag); err != nil {
					t.Fatal(err)
				}
				return manifest, mediaType
			}
			passed, mediaType := put(evidence.Passed, 10)
			put(evidence.Failed, 11)
			if err := repository(t, at).PutManifest(t.Context(), passed, mediaType, tag); err != nil {
				t.Fatal(err)
			}
			open := func(string) (*evidence.Book, error) { return b, nil }
			demands := map[string]Demand{
				"evidence": {Image: image, From: at},
				"recipe":   {Image: image, From: at, Recipe: true, Required: []Required{{Key: k, Name: "nccl"}}},
			}
			for name, d := range demands {
				if found, err := Judge(t.Context(), d, open); err != nil || !strings.Contains(strings.Join(found.Problems, "\n"), notPassed) {
					t.Errorf("by %s: %+v, %v", name, found, err)
				}
			}
			put(evidence.Passed, 12)
			for name, d := range demands {
				if found, err := Judge(t.Context(), d, open); err != nil || len(found.Problems) > 0 {
					t.Errorf("passed again, by %s: %+v, %v", name, found, err)
				}
			}
		})
	}
}

// A list of so much that some of it would not be read is an error: what is hidden in it could be a failure.
func TestTooManyReferrers(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	image := evidencetest.Image(t, inner+"/ci", "one", "one")
	proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/referrers/") {
			return false
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
		entry := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":1}`, image)
		fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}`, strings.Repeat(entry+",", 1000)+entry)
		return true
	})
	st, client := evidencetest.Client(t)
	key, _, _ := evidencetest.Key(t)
	b, err := evidence.Open(proxy.Host+"/ci", evidence.Options{Store: st, Fetch: client, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Referred(t.Context(), image); err == nil || !strings.Contains(err.Error(), "1001 documents refer to") {
		t.Errorf("%v", err)
	}
}
