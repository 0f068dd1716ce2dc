package evidence

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// trusted reads a public key as a list has it.
func trusted(t *testing.T, file string, as attest.Trusted) *attest.PublicKey {
	t.Helper()
	as.Key = file
	key, err := as.Read("")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var finished = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// say writes a verdict and a document about an image.
func say(t *testing.T, b *Book, image store.Digest, result Result) error {
	t.Helper()
	e := Evidence{Key: Key{image, hash("all-reduce"), "clariden"}, Name: "all-reduce", Result: result, Finished: finished}
	return errors.Join(b.Put(t.Context(), e, strings.NewReader("log")),
		b.Attach(t.Context(), image, "sbom", attest.CycloneDX, map[string]string{"bomFormat": "CycloneDX"}, map[string]string{"dev.sconce.note": "kept"}))
}

// believes has cosign judge all that is about an image by one key, and wants one statement of each type.
func believes(t *testing.T, public, at string, image store.Digest) {
	t.Helper()
	for _, kind := range []string{attest.TestResult, attest.CycloneDX} {
		if said, err := evidencetest.Cosign(t, public, kind, at+"@"+string(image)); err != nil || len(said) != 1 {
			t.Errorf("%s: cosign believes %d statements, %v", kind, len(said), err)
		}
	}
}

// What an old key has signed is signed again by the new one, says the same, and cosign believes it by the new key. A second time there is nothing
// to do.
func TestResign(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/team/staging"
			image := evidencetest.Image(t, at, "canonical", "image")
			old, _, oldPublic := evidencetest.Key(t)
			key, _, public := evidencetest.Key(t)
			if err := say(t, open(t, at, old), image, Passed); err != nil {
				t.Fatal(err)
			}
			if _, err := open(t, at, nil, key.Public()).List(t.Context(), image); !strings.Contains(fault.HintOf(err), "pipeline resign") {
				t.Errorf("before: %v, hint %q", err, fault.HintOf(err))
			}
			b := open(t, at, key.After([]*attest.PublicKey{trusted(t, oldPublic, attest.Trusted{})}))
			if list, err := b.Resign(t.Context(), true); err != nil || len(list) != 2 || list[0].Key != old.Public().Fingerprint() {
				t.Errorf("dry run: %+v, %v", list, err)
			}
			believes(t, oldPublic, at, image)
			if list, err := b.Resign(t.Context(), false); err != nil || len(list) != 2 || list[0].Left+list[1].Left != "" {
				t.Fatalf("%+v, %v", list, err)
			}
			believes(t, public, at, image)
			list, err := open(t, at, nil, key.Public()).List(t.Context(), image)
			if err != nil || len(list) != 1 || list[0].Result != Passed || !list[0].Finished.Equal(finished) || list[0].log.Size != 3 {
				t.Errorf("%+v, %v", list, err)
			}
			if again, err := b.Resign(t.Context(), false); err != nil || len(again) != 0 {
				t.Errorf("a second time: %+v, %v", again, err)
			}
		})
	}
}

// Wherever the registry goes away while documents are signed again, the next run does the rest.
func TestResignStopped(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(map[bool]string{false: "before", true: "after"}[after], func(t *testing.T) {
			registrytest.Isolate(t)
			inner := registrytest.Start(t, false)
			old, _, oldPublic := evidencetest.Key(t)
			key, _, public := evidencetest.Key(t)
			key = key.After([]*attest.PublicKey{trusted(t, oldPublic, attest.Trusted{})})
			for stop := 1; ; stop++ {
				path := "/team/staging" + strings.Repeat("x", stop)
				image := evidencetest.Image(t, inner+path, "canonical", "image")
				if err := say(t, open(t, inner+path, old), image, Passed); err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				seen := 0
				proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
					mu.Lock()
					defer mu.Unlock()
					if r.Method != http.MethodPut && seen < stop {
						return false
					}
					if seen++; seen < stop {
						return false
					}
					if after && seen == stop {
						registrytest.Forward(inner, w, r)
					}
					panic(http.ErrAbortHandler)
				})
				_, err := open(t, proxy.Host+path, key).Resign(t.Context(), false)
				if _, err := open(t, inner+path, key).Resign(t.Context(), false); err != nil {
					t.Fatalf("stopped at write %d, and then: %v", stop, err)
				}
				believes(t, public, inner+path, image)
				if err == nil {
					if stop < 7 { // blobs, manifests, tags and the list
						t.Errorf("it was never stopped after write %d", stop)
					}
					return
				}
			}
		})
	}
}

// What a key has signed that is revoked, or did not count at the time, is as if it were not there: it proves nothing, and is written over. What a
// stranger has signed is neither.
func TestKeysThatDoNotCount(t *testing.T) {
	registrytest.Isolate(t)
	at := registrytest.Start(t, false) + "/team/staging"
	image := evidencetest.Image(t, at, "canonical", "image")
	old, _, oldPublic := evidencetest.Key(t)
	key, _, public := evidencetest.Key(t)
	if err := say(t, open(t, at, old), image, Passed); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		as     attest.Trusted
		counts bool
	}{
		"any time":         {attest.Trusted{}, true},
		"of its days":      {attest.Trusted{Since: "2026-11-22", Until: "2026-11-22"}, true},
		"until the minute": {attest.Trusted{Until: "2026-11-22T10:00:00Z"}, true},
		"before":           {attest.Trusted{Since: "2026-11-23"}, false},
		"after":            {attest.Trusted{Until: "2026-11-21"}, false},
		"revoked":          {attest.Trusted{Revoked: true}, false},
	} {
		b := open(t, at, nil, trusted(t, oldPublic, c.as))
		list, err := b.List(t.Context(), image)
		if err != nil || len(list) > 0 != c.counts {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
		standing, by, err := b.StandingOf(t.Context(), TestTags(image)+hash("all-reduce")[:testPart]+".clariden")
		if want := map[bool]Standing{true: Counts, false: Uncounted}[c.counts]; standing != want || by != old.Public().Fingerprint() || err != nil {
			t.Errorf("%s: %s, by %s, %v", name, standing, by, err)
		}
	}
	// Listed twice, the revocation counts.
	twice := open(t, at, nil, old.Public(), trusted(t, oldPublic, attest.Trusted{Revoked: true}))
	if list, err := twice.List(t.Context(), image); err != nil || len(list) != 0 {
		t.Errorf("revoked, and believed by name: %+v, %v", list, err)
	}
	// With two times, it counts in both.
	early, late := attest.Trusted{Until: "2026-11-20"}, attest.Trusted{Since: "2026-11-22", Until: "2026-11-23"}
	for _, entries := range [][2]attest.Trusted{{early, late}, {late, early}} {
		b := open(t, at, nil, trusted(t, oldPublic, entries[0]), trusted(t, oldPublic, entries[1]))
		if list, err := b.List(t.Context(), image); err != nil || len(list) != 1 {
			t.Errorf("%+v: %+v, %v", entries, list, err)
		}
	}
	var stranger *StrangerError
	if err := say(t, open(t, at, key), image, Passed); !errors.As(err, &stranger) || stranger.Key != old.Public().Fingerprint() {
		t.Errorf("over a stranger's: %v", err)
	}
	after := open(t, at, key.After([]*attest.PublicKey{trusted(t, oldPublic, attest.Trusted{Revoked: true})}))
	if list, err := after.Resign(t.Context(), false); err != nil || len(list) != 2 || list[0].Left == "" || list[1].Left == "" {
		t.Errorf("a revoked key's is signed again: %+v, %v", list, err)
	}
	if err := say(t, after, image, Passed); err != nil {
		t.Fatal(err)
	}
	believes(t, public, at, image)
}

// Whatever says its time is judged by it, everywhere: a record of a promotion and a withdrawal as a verdict. What says none counts as long as its key
// is listed.
func TestTimesOfDocuments(t *testing.T) {
	registrytest.Isolate(t)
	at := registrytest.Start(t, false) + "/team/staging"
	image := evidencetest.Image(t, at, "canonical", "image")
	old, _, oldPublic := evidencetest.Key(t)
	key, _, _ := evidencetest.Key(t)
	writer := open(t, at, old)
	record := map[string]string{"time": finished.Format(time.RFC3339)}
	if err := errors.Join(say(t, writer, image, Passed), writer.Attach(t.Context(), image, "promotion", PromotionType, record, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Withdraw(t.Context(), image, "it hangs", false, nil, finished); err != nil {
		t.Fatal(err)
	}
	for until, counts := range map[string]bool{"2026-11-21": false, "2026-11-22": true} {
		expired := trusted(t, oldPublic, attest.Trusted{Until: until})
		b := open(t, at, nil, expired)
		if s, err := b.Find(t.Context(), image, "promotion", PromotionType); err != nil || (s != nil) != counts {
			t.Errorf("until %s: the record is %v, %v", until, s, err)
		}
		if s, err := b.Find(t.Context(), image, "sbom", attest.CycloneDX); err != nil || s == nil {
			t.Errorf("until %s: the list of packages is %v, %v", until, s, err)
		}
		if n, err := b.Note(t.Context(), image); err != nil || n == nil || n.Trusted != counts {
			t.Errorf("until %s: the note is %+v, %v", until, n, err)
		}
		list, err := open(t, at, key.After([]*attest.PublicKey{expired})).Resign(t.Context(), true)
		left := 0
		for _, r := range list {
			if r.Left != "" {
				left++
			}
		}
		if want := map[bool]int{true: 0, false: 3}[counts]; err != nil || len(list) != 4 || left != want {
			t.Errorf("until %s: %d of %+v are left, %v", until, left, list, err)
		}
	}
}
