package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

var registries = map[string]func(testing.TB) string{
	"docker":     func(t testing.TB) string { return registrytest.Start(t, false) },
	"referrers":  registrytest.StartWithReferrers,
	"conditions": registrytest.StartWithConditions,
}

// hash is the hash of a test that says text.
func hash(text string) string { return store.DigestOf([]byte(text)).Hex() }

// open opens a book with a store of its own.
func open(t *testing.T, name string, key *attest.PrivateKey, trust ...*attest.PublicKey) *Book {
	t.Helper()
	st, client := evidencetest.Client(t)
	b, err := Open(name, Options{Store: st, Fetch: client, Key: key, Trust: trust})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEvidence writes a verdict and reads it elsewhere, with its log; a newer verdict counts.
func TestEvidence(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/team/staging"
			image := evidencetest.Image(t, at, "canonical", "image")
			key, _, _ := evidencetest.Key(t)
			k := Key{Image: image, Test: hash("all-reduce"), Cluster: "clariden"}
			writer, reader := open(t, at, key), open(t, at, nil, key.Public())
			if got, err := reader.Get(t.Context(), k); got != nil || err != nil {
				t.Fatalf("before: %+v, %v", got, err)
			}
			finished := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
			first := Evidence{Key: k, Name: "all-reduce", Result: Failed, Details: json.RawMessage(`{"busbw":12}`), Finished: finished}
			if err := writer.Put(t.Context(), first, nil); err != nil {
				t.Fatal(err)
			}
			second := first
			second.Result, second.Details = Passed, json.RawMessage(`{"busbw":135.5}`)
			if err := writer.Put(t.Context(), second, strings.NewReader("the log")); err != nil {
				t.Fatal(err)
			}
			got, err := reader.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			if got.Key != k || got.Name != "all-reduce" || got.Result != Passed || string(got.Details) != `{"busbw":135.5}` || !got.Finished.Equal(finished) {
				t.Errorf("got %+v", got)
			}
			f, err := reader.OpenFile(t.Context(), store.Digest(got.log.Digest), got.log.Size, "log")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if log, err := io.ReadAll(f); string(log) != "the log" {
				t.Errorf("the log is %q, %v", log, err)
			}
			list, err := reader.List(t.Context(), image)
			if err != nil || len(list) != 1 || list[0].Result != Passed {
				t.Errorf("listed %+v, %v", list, err)
			}
			referrers, err := reader.Repository().Referrers(t.Context(), image)
			found := slices.ContainsFunc(referrers, func(r registry.Referrer) bool { return r.Digest.String() == string(got.Manifest) })
			if !found {
				t.Errorf("it is not among %+v, %v", referrers, err)
			}
		})
	}
}

// TestEightWriters has eight jobs write their verdicts at once: each is there afterwards. So is one verdict that eight write.
func TestEightWriters(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/team/staging"
			image := evidencetest.Image(t, at, "canonical", "image")
			key, _, _ := evidencetest.Key(t)
			var wg sync.WaitGroup
			for i := range 8 {
				b := open(t, at, key)
				wg.Go(func() {
					own := Evidence{Key: Key{image, hash(fmt.Sprint(i)), "clariden"}, Name: fmt.Sprint("test-", i), Result: Passed}
					shared := Evidence{Key: Key{image, hash("shared"), "eiger"}, Name: "shared", Result: Passed, Details: json.RawMessage(fmt.Sprint(i))}
					for _, e := range []Evidence{own, shared} {
						if err := b.Put(t.Context(), e, strings.NewReader(e.Name)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			list, err := open(t, at, nil, key.Public()).List(t.Context(), image)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range list {
				names = append(names, e.Name)
			}
			slices.Sort(names)
			if want := []string{"shared", "test-0", "test-1", "test-2", "test-3", "test-4", "test-5", "test-6", "test-7"}; !slices.Equal(names, want) {
				t.Errorf("found %q", names)
			}
		})
	}
}

// TestMoved moves tags and forges evidence: it is an error for who reads and for who would write, and nothing is repaired.
func TestMoved(t *testing.T) {
	registrytest.Isolate(t)
	at := registrytest.Start(t, false) + "/team/staging"
	image, other := evidencetest.Image(t, at, "one", "image"), evidencetest.Image(t, at, "two", "other")
	key, _, _ := evidencetest.Key(t)
	forger, _, _ := evidencetest.Key(t)
	passed := func(k Key) Evidence { return Evidence{Key: k, Name: "gpu", Result: Passed} }
	for name, tc := range map[string]struct {
		put  func(t *testing.T, k Key)
		want string
	}{
		"an image": {func(t *testing.T, k Key) { move(t, at, string(image), k) }, "no signed statement"},
		"another key": {func(t *testing.T, k Key) {
			if err := open(t, at, forger).Put(t.Context(), passed(k), nil); err != nil {
				t.Fatal(err)
			}
		}, "not signed by a key that is trusted"},
		"of another image": {func(t *testing.T, k Key) {
			from := Key{other, k.Test, k.Cluster}
			if err := open(t, at, key).Put(t.Context(), passed(from), nil); err != nil {
				t.Fatal(err)
			}
			move(t, at, tagOf(t, from), k)
		}, "another image"},
		"of another test": {func(t *testing.T, k Key) {
			from := Key{k.Image, hash("an easy test"), k.Cluster}
			if err := open(t, at, key).Put(t.Context(), passed(from), nil); err != nil {
				t.Fatal(err)
			}
			move(t, at, tagOf(t, from), k)
		}, "about test"},
		"of another cluster": {func(t *testing.T, k Key) {
			from := Key{k.Image, k.Test, "laptop"}
			if err := open(t, at, key).Put(t.Context(), passed(from), nil); err != nil {
				t.Fatal(err)
			}
			move(t, at, tagOf(t, from), k)
		}, "on laptop"},
		"another kind": {func(t *testing.T, k Key) {
			if err := open(t, at, key).Attach(t.Context(), k.Image, "sbom", attest.CycloneDX, map[string]int{}, nil); err != nil {
				t.Fatal(err)
			}
			move(t, at, AttachmentTags(k.Image)+"sbom", k)
		}, "no verdict"},
	} {
		t.Run(name, func(t *testing.T) {
			k := Key{image, hash(name), "clariden"}
			tc.put(t, k)
			before, err := open(t, at, key).Repository().Resolve(t.Context(), tagOf(t, k))
			if err != nil || before == "" {
				t.Fatal(before, err)
			}
			var moved *MovedError
			if e, err := open(t, at, nil, key.Public()).Get(t.Context(), k); !errors.As(err, &moved) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("read %+v, %v, want %q", e, err, tc.want)
			}
			if err := open(t, at, key).Put(t.Context(), passed(k), nil); !errors.As(err, &moved) {
				t.Errorf("written over: %v", err)
			}
			if after, err := open(t, at, key).Repository().Resolve(t.Context(), tagOf(t, k)); after != before {
				t.Errorf("the tag was repaired: %s, %v", after, err)
			}
			if _, err := open(t, at, key).List(t.Context(), image); !errors.As(err, &moved) {
				t.Errorf("listed: %v", err)
			}
		})
	}
}

func tagOf(t *testing.T, k Key) string {
	t.Helper()
	tag, err := k.Tag()
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// move has the tag of a key lead to what another reference leads to.
func move(t *testing.T, at, reference string, k Key) {
	t.Helper()
	_, client := evidencetest.Client(t)
	repo, err := registry.OpenForWriting(at, registry.Options{Fetch: client, Push: true})
	if err != nil {
		t.Fatal(err)
	}
	data, mediaType, err := repo.Manifest(t.Context(), reference)
	if err == nil {
		err = repo.PutManifest(t.Context(), data, mediaType, tagOf(t, k))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttach keeps documents signed and unsigned; a signed one takes the place of an unsigned one and not the other way round.
func TestAttach(t *testing.T) {
	registrytest.Isolate(t)
	at := registrytest.Start(t, false) + "/team/staging"
	image := evidencetest.Image(t, at, "one", "image")
	key, _, _ := evidencetest.Key(t)
	signed, unsigned := open(t, at, key), open(t, at, nil, key.Public())
	tag := AttachmentTags(image) + "sbom"
	attach := func(b *Book, text string) store.Digest {
		t.Helper()
		if err := b.Attach(t.Context(), image, "sbom", attest.CycloneDX, map[string]string{"text": text}, nil); err != nil {
			t.Fatal(err)
		}
		d, err := b.Repository().Resolve(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := attach(unsigned, "a")
	second := attach(signed, "a")
	if third, fourth := attach(signed, "a"), attach(unsigned, "b"); first == second || third != second || fourth != second {
		t.Errorf("%s, %s, %s, %s", first, second, third, fourth)
	}
	if fifth := attach(signed, "b"); fifth == second {
		t.Error("another document is not written")
	}
	s, err := unsigned.Attachment(t.Context(), image, "sbom")
	if err != nil || s == nil || string(s.Predicate) != `{"text":"b"}` {
		t.Errorf("read %+v, %v", s, err)
	}
	if s, err := unsigned.Attachment(t.Context(), image, "provenance"); s != nil || err != nil {
		t.Errorf("what is not there is %+v, %v", s, err)
	}
}

// TestTag refuses what cannot be told apart in a tag.
func TestTag(t *testing.T) {
	image := store.DigestOf(nil)
	for _, k := range []Key{
		{image, "", "c"},
		{image, "ABC", "c"},
		{image, hash("x"), ""},
		{image, hash("x"), "a/b"},
		{image, hash("x"), strings.Repeat("c", 65)},
		{"", hash("x"), "c"},
	} {
		if tag, err := k.Tag(); err == nil {
			t.Errorf("%+v has the tag %s", k, tag)
		}
	}
	k := Key{image, hash("x"), strings.Repeat("c", 64)}
	if tag := tagOf(t, k); len(tag) > 128 || !strings.HasPrefix(tag, "t.e3b0c44298fc.") {
		t.Errorf("the tag is %s", tag)
	}
}
