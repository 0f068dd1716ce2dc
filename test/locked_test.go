package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// offline makes every way out of the place a dead end, for programs that would not heed --offline.
func (p *place) offline() {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		p.env = append(p.env, name+"=http://127.0.0.1:9")
	}
	p.env = append(p.env, "no_proxy=", "NO_PROXY=")
}

// A recipe that was changed after it was locked is refused with what changed; without --locked it is locked anew.
func TestLockedRefusesDrift(t *testing.T) {
	begin(t)
	ix, p := newIndex(t), newPlace(t, nil)
	b := base(t)
	p.take(lockedRecipe(t, ix, recipe(b.ref, few)), "app")
	p.build("--locked", "app")
	before := p.read("app/sconce.lock") + p.read("app/pylock.toml")

	p.write("app/sconce.toml", recipe(b.ref, append([]string{"einops"}, few[1:]...)))
	drift := []string{"+ python.packages einops", "- python.packages " + few[0], "hint: run `sconce lock`"}
	p.fails(3, drift, "build", "--locked", "app")
	p.fails(3, drift, "lock", "--check", "app")
	if p.read("app/sconce.lock")+p.read("app/pylock.toml") != before {
		t.Error("a refused build has changed the lock")
	}
	p.write("app/pylock.toml", strings.Replace(p.read("app/pylock.toml"), "1.17.0", "1.16.0", 1))
	p.fails(3, []string{"pylock.toml"}, "build", "--locked", "app")

	if err := os.Remove(p.path("app/sconce.lock")); err != nil {
		t.Fatal(err)
	}
	p.fails(3, []string{"sconce.lock does not exist", "hint: run `sconce lock`"}, "build", "--locked", "app")
	ix.use(p)
	p.build("app")
	p.must("lock", "--check", "app")
}

// Nothing changed: nothing is done, nothing is asked, nothing is written.
func TestNothingChangedNothingDone(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	p.take(lockedRecipe(t, newIndex(t), recipe(base(t).ref, few)), "app")
	digest := p.build("--locked", "app")
	files := p.listing()
	p.offline()
	p.env = append(p.env, "PATH=/nonexistent") // no program can help either
	for _, args := range [][]string{{"app"}, {"--locked", "app"}} {
		r := p.must(append([]string{"--offline", "build"}, args...)...)
		if digestOf(t, r) != digest || !strings.Contains(r.stderr, "up to date") || strings.Contains(r.stderr, "download") {
			t.Errorf("the second build did something: %v", r)
		}
		t.Logf("a build with nothing to do took %v", r.took)
	}
	if now := p.listing(); !slices.Equal(now, files) {
		t.Errorf("the store was written to:\n%v\nbefore:\n%v", now, files)
	}
}

// One package more: one download, one layer of packages and the small one of the environment.
func TestOnePackageMoreIsOneLayer(t *testing.T) {
	begin(t)
	ix, p := newIndex(t), newPlace(t, nil)
	ix.use(p)
	b := base(t)
	p.write("app/sconce.toml", recipe(b.ref, everything))
	p.build("app")
	before := p.layers("app:1")
	p.write("app/sconce.toml", recipe(b.ref, append([]string{"einops"}, everything...)))
	p.must("lock", "app")
	ix.reset()
	p.offline() // the index is not behind a proxy, everything else is
	p.env = append(p.env, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1")
	p.build("--locked", "app")
	if got := ix.downloads(); len(got) != 1 || got["einops-0.8.2-py3-none-any.whl"] != 1 {
		t.Errorf("downloaded: %v", got)
	}
	var fresh []imageLayer
	for _, l := range p.layers("app:1") {
		if !slices.Contains(before, l) {
			fresh = append(fresh, l)
		}
	}
	if len(fresh) != 2 || !strings.Contains(fresh[0].CreatedBy, "einops==0.8.2") || !strings.Contains(fresh[1].CreatedBy, "python environment") {
		t.Errorf("new layers: %+v\nbefore: %+v", fresh, before)
	}
}

// imageLayer is a layer as sconce inspect tells.
type imageLayer struct {
	Digest, CreatedBy string
	Size              int64
}

func (p *place) layers(image string) []imageLayer {
	p.t.Helper()
	var in struct{ Layers []imageLayer }
	if err := json.Unmarshal([]byte(p.must("inspect", image, "--json").stdout), &in); err != nil {
		p.t.Fatal(err)
	}
	return in.Layers
}

func (p *place) read(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// listing is every file of the store with its size and time of change, but for locks, which are only held.
func (p *place) listing() []string {
	p.t.Helper()
	var out []string
	for _, bucket := range []string{"blobs-v1", "records-v1", "tmp-v1"} {
		root := filepath.Join(p.store, bucket)
		err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() {
				out = append(out, path+" "+info.ModTime().String())
			}
			return err
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return out
}
