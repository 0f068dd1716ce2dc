package engine_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/remotecache"
	"sconce.dev/sconce/internal/store"
)

// A stranger's recipe names a registry whose entry of an ordinary step holds other files. Without the user's word they come neither into
// the image nor into the store, where the user's own recipe, with a step of the same key, would find them.
func TestCacheIsReadByPermission(t *testing.T) {
	locktest.Isolate(t)
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	dir := func(content, more string) string {
		return locktest.Dir(t, locktest.Base{}, map[string]string{recipe.FileName: locktest.Head + "[[step]]\ncopy = [\"file:/file\"]\n" + more, "file": content})
	}
	named := fmt.Sprintf("[cache]\nregistry = \"%s/evil/cache\"\n", host)
	own, strangers := dir("content", ""), dir("content", named)

	evil := sessionThatMay(t, engine.CachePermissions{})
	planted := made(t, evil, dir("evil", ""))
	plantStep(t, evil, own, host+"/evil/cache", planted)

	truth := made(t, newSession(t), own).Digest
	for name, test := range map[string]struct {
		may  engine.CachePermissions
		note bool
	}{
		"nothing is said":        {note: true},
		"others are named":       {may: engine.CachePermissions{Read: []string{host + "/team", host + "/evil/cache/x"}}, note: true},
		"it is named":            {may: engine.CachePermissions{Read: []string{host + "/evil"}}},
		"it is named to push to": {may: engine.CachePermissions{Push: []string{host}}},
		"--read-cache":           {may: engine.CachePermissions{ReadAll: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sessionThatMay(t, test.may)
			var said locktest.Events
			ctx := progress.With(t.Context(), &said)
			for _, at := range []string{strangers, strangers, own} {
				b, err := build(ctx, s, at, engine.PlanOptions{}, engine.BuildOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := b.Image.Digest; (got == truth) != test.note {
					t.Errorf("%s is %s, and without a cache %s", filepath.Base(at), got, truth)
				}
			}
			notes := strings.Join(said.Texts(progress.Note), "\n")
			if want := "the cache " + host + "/evil/cache is not used"; strings.Count(notes, want) != map[bool]int{true: 1}[test.note] {
				t.Errorf("notes: %q", notes)
			}
		})
	}
}

func sessionThatMay(t *testing.T, may engine.CachePermissions) *engine.Session {
	t.Helper()
	s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store"), Cache: may})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func made(t *testing.T, s *engine.Session, dir string) *image.Image {
	t.Helper()
	b, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b.Image
}

// plantStep puts the last layer of im, whose blobs s has, under the key of the last step of a recipe.
func plantStep(t *testing.T, s *engine.Session, dir, repository string, im *image.Image) {
	t.Helper()
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan(t.Context(), r, engine.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cache, err := remotecache.New(repository, remotecache.Options{Fetch: s.Fetch})
	if err != nil {
		t.Fatal(err)
	}
	last := im.Layers[len(im.Layers)-1]
	if err := cache.Put(t.Context(), s.Store, string(store.KindStep), string(p.Steps[len(p.Steps)-1].Key), last, last.Refs()); err != nil {
		t.Fatal(err)
	}
}
