package lock_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// mirror is an archive of Debian packages that nobody has signed, whose requests are counted.
func mirror(t *testing.T, asked *atomic.Int64) string {
	t.Helper()
	var packages bytes.Buffer
	z := gzip.NewWriter(&packages)
	for _, name := range []string{"apt", "base-files"} {
		fmt.Fprintf(z, "Package: %s\nVersion: 1\nArchitecture: amd64\nEssential: yes\nFilename: pool/%s.deb\nSize: 10\nSHA256: %x\n\n", name, name, sha256.Sum256([]byte(name)))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	release := fmt.Sprintf("Suite: x\nCodename: x\nDate: Mon, 29 Jun 2026 10:00:00 UTC\nComponents: main\nSHA256:\n %x %d main/binary-amd64/Packages.gz\n",
		sha256.Sum256(packages.Bytes()), packages.Len())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/dists/x/InRelease", "/dists/x/Release":
			fmt.Fprint(w, release)
		case "/dists/x/main/binary-amd64/Packages.gz":
			_, _ = w.Write(packages.Bytes())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// The packages of a base that were found before a lock failed are those of the next try, for an hour: the mirror is not asked again. A lock
// that was made takes them along, and one that upgrades asks anew.
func TestBaseIsKeptForTheNextTry(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, locktest.Wheel{Name: "alpha", Version: "1.0"})
	var asked atomic.Int64
	head := fmt.Sprintf("name = \"test\"\n[base]\nbootstrap = { suite = \"x\", mirror = %q, trusted = true }\n[target]\nplatform = \"linux/amd64\"\n[python]\npackages = [\"alpha\", \"beta\"]\n", mirror(t, &asked))
	r := locktest.Load(t, b.dir, head)
	made(t, b, r)
	try := func(o lock.Options) (requests int64, err error) {
		t.Helper()
		before := asked.Load()
		_, err = b.make(r, o)
		return asked.Load() - before, err
	}
	asked.Store(0)
	first, err := try(lock.Options{})
	wantError(t, err, "beta")
	if first == 0 {
		t.Fatal("the mirror was not asked at all")
	}
	if n, err := try(lock.Options{}); n != 0 || err == nil {
		t.Errorf("the second try asked the mirror %d times: %v", n, err)
	}
	if notes := b.events.Texts(progress.Note); !slices.ContainsFunc(notes, func(text string) bool { return strings.Contains(text, "sconce lock --upgrade` asks again") }) {
		t.Errorf("nothing is said of it: %q", notes)
	}
	if n, err := try(lock.Options{Upgrade: true}); n == 0 || err == nil {
		t.Errorf("an upgrade asked the mirror %d times: %v", n, err)
	}
	x.Add(t, locktest.Wheel{Name: "beta", Version: "1.0"})
	if n, err := try(lock.Options{}); n != 0 || err != nil {
		t.Errorf("the try that succeeds asked the mirror %d times: %v", n, err)
	}
	if err := os.Remove(filepath.Join(b.dir, "sconce.lock")); err != nil {
		t.Fatal(err)
	}
	if n, err := try(lock.Options{}); n == 0 || err != nil {
		t.Errorf("after a lock was made the next one asked the mirror %d times: %v", n, err)
	}

	// What an old lock says may be months old: it is nothing that was just found.
	r = locktest.Load(t, b.dir, strings.Replace(head, `"beta"`, `"beta", "gamma"`, 1))
	if n, err := try(lock.Options{}); n != 0 || err == nil {
		t.Errorf("with an old lock the mirror was asked %d times: %v", n, err)
	}
	if err := os.Remove(filepath.Join(b.dir, "sconce.lock")); err != nil {
		t.Fatal(err)
	}
	if n, err := try(lock.Options{}); n == 0 || err == nil {
		t.Errorf("after a try on an old lock the next one without it asked the mirror %d times: %v", n, err)
	}
}

// What was found is not used when the recipe asks for another base, and not when an hour has gone by.
func TestKeptBaseThatDoesNotCount(t *testing.T) {
	b, _ := newBench(t, locktest.Base{})
	var asked atomic.Int64
	at := mirror(t, &asked)
	load := func(more string) *recipe.Recipe {
		return locktest.Load(t, b.dir, fmt.Sprintf("name = \"test\"\n[base]\nbootstrap = { suite = \"x\", mirror = %q, trusted = true%s }\n", at, more))
	}
	amd64 := v1.Platform{OS: "linux", Architecture: "amd64"}
	r := load("")
	p := made(t, b, r)
	if err := base.Keep(b.store, r, amd64, p); err != nil {
		t.Fatal(err)
	}
	if got, _ := base.Kept(b.store, r, amd64); got == nil || got.Key() != p.Key() {
		t.Errorf("of the same base %+v is kept", got)
	}
	if got, _ := base.Kept(b.store, load(`, packages = ["git"]`), amd64); got != nil {
		t.Errorf("of another base %+v is kept", got)
	}
	if got, _ := base.Kept(b.store, r, v1.Platform{OS: "linux", Architecture: "arm64"}); got != nil {
		t.Errorf("for another platform %+v is kept", got)
	}
	keys, err := b.store.Keys(store.KindBaseAnswer)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%q, %v", keys, err)
	}
	var record map[string]any
	if _, err := b.store.GetRecord(store.KindBaseAnswer, keys[0], &record); err != nil {
		t.Fatal(err)
	}
	record["at"] = time.Now().Add(-61 * time.Minute)
	if err := b.store.PutRecord(store.KindBaseAnswer, keys[0], nil, record); err != nil {
		t.Fatal(err)
	}
	if got, _ := base.Kept(b.store, r, amd64); got != nil {
		t.Errorf("after an hour %+v is kept", got)
	}
}

// made resolves the base of a recipe, and has the store hold its image, which no package of the mirror could make.
func made(t *testing.T, b *bench, r *recipe.Recipe) *base.Pinned {
	t.Helper()
	o := lock.Options{Store: b.store, Fetch: fetch.New(b.store, fetch.Options{Attempts: 1})}
	p, err := base.Pin(t.Context(), r, v1.Platform{OS: "linux", Architecture: "amd64"}, base.Options{Store: o.Store, Fetch: o.Fetch})
	if err != nil {
		t.Fatal(err)
	}
	image := locktest.Load(t, b.dir, locktest.Head)
	ref, err := source.ParseIn(image.BaseReference(), b.store)
	if err != nil {
		t.Fatal(err)
	}
	im, err := source.Import(t.Context(), ref, source.Options{Store: b.store, Fetch: o.Fetch, Platform: v1.Platform{OS: "linux", Architecture: "amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.store.PutRecord(store.KindBootstrap, p.Key(), im.Refs(), im.Digest); err != nil {
		t.Fatal(err)
	}
	return p
}
