package base_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

func options(st *store.Store) base.Options {
	return base.Options{Store: st, Fetch: fetch.New(st, fetch.Options{Attempts: 1}), Reach: reach.Anywhere()}
}

func pin(t *testing.T, r *recipe.Recipe, st *store.Store) *base.Pinned {
	t.Helper()
	p, err := base.Pin(t.Context(), r, amd64, options(st))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPinnedImage: what was pinned is what is used, or nothing is.
func TestPinnedImage(t *testing.T) {
	dir := locktest.Dir(t, locktest.Base{}, nil)
	r := locktest.Load(t, dir, locktest.Head)
	st := storetest.New(t)
	p := pin(t, r, st)
	if p.Reference != "tar:base.tar" || p.Name != "" || p.Digest == "" {
		t.Errorf("pinned %+v", p)
	}
	if again := pin(t, r, storetest.New(t)); again.Digest != p.Digest || again.Key() != p.Key() {
		t.Errorf("%s in one store, %s in another", p.Digest, again.Digest)
	}
	im, err := p.Image(t.Context(), r.BaseReference(), amd64, options(st))
	if err != nil || im.Digest != p.Digest {
		t.Fatalf("got %+v, %v", im, err)
	}

	changed := locktest.Base{Files: map[string]string{"etc/new": "x"}}.Tar(t)
	if err := os.WriteFile(filepath.Join(dir, "base.tar"), changed, 0o644); err != nil {
		t.Fatal(err)
	}
	if im, err = p.Image(t.Context(), r.BaseReference(), amd64, options(st)); err != nil || im.Digest != p.Digest {
		t.Errorf("from the store: %+v, %v", im, err)
	}
	_, err = p.Image(t.Context(), r.BaseReference(), amd64, options(storetest.New(t)))
	var other *source.ChangedError
	if !errors.As(err, &other) || other.Pinned != p.Digest || !strings.Contains(err.Error(), "base tar:base.tar: ") {
		t.Errorf("a base that has changed: %v", err)
	}
	if hint := fault.HintOf(err); !strings.Contains(hint, "sconce lock --upgrade") {
		t.Errorf("a base that has changed: hint %q", hint)
	}
	if now := pin(t, r, st); now.Digest == p.Digest {
		t.Error("the changed base has the digest of the old one")
	}
	os.Remove(filepath.Join(dir, "base.tar"))
	if _, err = base.Pin(t.Context(), r, amd64, options(st)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "tar:base.tar") {
		t.Errorf("a base that is gone: %v", err)
	}
}

func TestBootstrapOffline(t *testing.T) {
	r := locktest.Load(t, t.TempDir(), "name = \"x\"\n[base]\nbootstrap = { suite = \"bookworm\" }\n")
	o := options(storetest.New(t))
	o.Offline = true
	_, err := base.Pin(t.Context(), r, amd64, o)
	if err == nil || !strings.Contains(err.Error(), "--offline") || fault.CodeOf(err) != fault.CodeFailed {
		t.Errorf("got %v", err)
	}
}

// TestPinImageWithoutTag: FROM base is base:latest in any form of the name, and not whatever base the store has.
func TestPinImageWithoutTag(t *testing.T) {
	dir := locktest.Dir(t, locktest.Base{}, nil)
	st := storetest.New(t)
	r := locktest.Load(t, dir, locktest.Head)
	im, err := pin(t, r, st).Image(t.Context(), r.BaseReference(), amd64, options(st))
	if err != nil {
		t.Fatal(err)
	}
	o := options(st)
	o.Offline = true
	name := func(tag string) {
		if err := st.PutImage(store.ImageRef{Name: "thing", Tag: tag, Digest: im.Digest}, im.Refs()); err != nil {
			t.Fatal(err)
		}
	}
	name("1")
	for _, reference := range []string{"thing", "docker.io/library/thing"} {
		if p, err := base.PinImage(t.Context(), reference, amd64, o); err == nil {
			t.Errorf("%s is %+v", reference, p)
		}
	}
	name(store.DefaultTag)
	for _, reference := range []string{"thing", "docker.io/library/thing", "thing:1", "docker.io/library/thing:latest", im.Digest.Short()} {
		if p, err := base.PinImage(t.Context(), reference, amd64, o); err != nil || p.Digest != im.Digest {
			t.Errorf("%s is %+v, %v", reference, p, err)
		}
	}
}
