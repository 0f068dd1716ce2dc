package test

import (
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// traffic is what a registry was asked for, and how much it sent.
type traffic struct {
	proxy *registrytest.Proxy
	sent  int64 // when take was last called

	mu    sync.Mutex
	names map[string]int // of blobs and manifests, by digest or tag
	trips map[string]bool
}

// count stands in front of a registry.
func count(t *testing.T, registry string) *traffic {
	t.Helper()
	c := &traffic{names: map[string]int{}, trips: map[string]bool{}}
	c.proxy = registrytest.NewProxy(t, registry, func(w http.ResponseWriter, r *http.Request) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		name := path.Base(r.URL.Path)
		if r.Method == http.MethodGet && name != "v2" {
			c.names[name]++
		}
		if c.trips[name] {
			w.WriteHeader(http.StatusForbidden)
		}
		return c.trips[name]
	})
	return c
}

// take returns what was asked for since the last call, and the bytes that were sent.
func (c *traffic) take() (names map[string]int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names, c.names = c.names, map[string]int{}
	all := c.proxy.Sent.Load()
	bytes, c.sent = all-c.sent, all
	return names, bytes
}

// refuse makes the registry refuse a blob, or nothing.
func (c *traffic) refuse(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trips = map[string]bool{}
	for _, n := range names {
		c.trips[n] = true
	}
}

// realLibrary is a real shared library of this machine.
func realLibrary(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/lib/*/libdl.so.2")
	if err != nil || len(files) == 0 {
		tooltest.Missing(t, "no libdl.so.2 of the C library here")
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

const packages = "usr/lib/python3.12/site-packages/"

// gzippedLayer is a layer with a library, a package and some bytes.
func gzippedLayer(t *testing.T, name string, seed uint64, bytes int) v1.Layer {
	t.Helper()
	l := newTarLayer(t)
	l.file("opt/"+name+".so", realLibrary(t))
	l.file("opt/"+name+".data", noise(seed, bytes))
	l.file(packages+name+"-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: "+name+"\nVersion: 1\n")
	return l.gzipped()
}

func layerDigest(t *testing.T, l v1.Layer) string {
	t.Helper()
	d, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// forget removes layers' blobs from the store of a place, as a prune may do.
func (p *place) forget(digests ...string) {
	p.t.Helper()
	st, err := store.Open(p.t.Context(), p.store)
	if err != nil {
		p.t.Fatal(err)
	}
	defer st.Close()
	for _, d := range digests {
		name, err := st.BlobPath(store.Digest(d))
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// The audit of an image in a registry fetches only what it must.
func TestAuditOfRegistryImage(t *testing.T) {
	begin(t)
	registry := registrytest.Start(t, false)
	seen := count(t, registry)
	const mega = 1 << 20
	base, one, two := gzippedLayer(t, "base", 1, 8*mega), gzippedLayer(t, "one", 2, 2*mega), gzippedLayer(t, "two", 3, 3*mega)
	config := v1.Config{Env: []string{"PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all"}}
	author := newPlace(t, nil)
	ref := func(tag string) string { return "docker://" + seen.proxy.Host + "/app:" + tag }
	push := func(tag string, config v1.Config, layers ...v1.Layer) {
		author.must("copy", writeLayout(t, author.path(tag), config, layers...), ref(tag))
	}
	push("one", config, base, one)
	push("two", config, base, two)
	config.Env = append(config.Env, "CUDA_VISIBLE_DEVICES=0")
	push("changed", config, base, two)
	seen.take()

	p := newPlace(t, nil)
	verdict := func(tag string) string { return p.must("check", "--json", ref(tag), "--gpu", "9.0").stdout }
	// wants checks which layers came since the last time.
	wants := func(what string, small int64, layers ...v1.Layer) {
		t.Helper()
		names, bytes := seen.take()
		most := small
		for _, l := range layers {
			size, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			most += size
			if names[layerDigest(t, l)] != 1 {
				t.Errorf("%s: %s was asked for %d times: %v", what, layerDigest(t, l), names[layerDigest(t, l)], names)
			}
			delete(names, layerDigest(t, l))
		}
		maps.DeleteFunc(names, func(name string, _ int) bool { return strings.HasSuffix(name, ".withdrawn") }) // notes, for which a check looks
		if bytes > most || len(names) > 3 {                                                                    // tags, or one and its config
			t.Errorf("%s: %d bytes came, at most %d are needed: %v", what, bytes, most, names)
		}
	}
	const documents = 10 << 10 // bytes
	first := verdict("one")
	wants("the first image", documents, base, one)
	if !strings.Contains(first, `"errors": 0`) {
		t.Errorf("not clean: %s", first)
	}
	second := verdict("two")
	wants("a second one with the same base", documents, two)
	p.must("inspect", "--gpu", ref("one"))
	wants("another command", documents)
	changed := verdict("changed")
	wants("another configuration", documents)
	if !strings.Contains(changed, "env-cuda-visible-devices") {
		t.Errorf("the configuration is not looked at: %s", changed)
	}

	p.forget(layerDigest(t, base), layerDigest(t, one), layerDigest(t, two))
	for tag, want := range map[string]string{"one": first, "two": second, "changed": changed} {
		if got := verdict(tag); got != want {
			t.Errorf("without the layers %s is judged so:\n%s\nand with them so:\n%s", tag, got, want)
		}
	}
	p.must("inspect", "--gpu", ref("two"))
	wants("images that are known, without the layers", 3*documents)

	// What is known lasts: all that `pull` needs is the layers.
	p.must("pull", ref("two"))
	wants("a pull", documents, base, two)
	p.wantSound()
	p.wantTidy()
}

// A layer that does not come makes the check fail; the next one is as good as the first.
func TestAuditWithoutALayer(t *testing.T) {
	begin(t)
	seen := count(t, registrytest.Start(t, false))
	base, one := gzippedLayer(t, "base", 1, 1<<20), gzippedLayer(t, "one", 2, 1<<20)
	ref := "docker://" + seen.proxy.Host + "/app:1"
	author := newPlace(t, nil)
	author.must("copy", writeLayout(t, author.path("app"), v1.Config{Env: []string{"PATH=/usr/bin"}}, base, one), ref)
	want := author.must("check", "--json", ref).stdout
	p := newPlace(t, nil)
	for _, l := range []v1.Layer{one, base} {
		seen.refuse(layerDigest(t, l))
		p.fails(1, []string{"layer ", "403"}, "check", ref)
		p.fails(1, []string{"layer ", "403"}, "inspect", "--gpu", ref)
		seen.refuse()
		if got := p.must("check", "--json", ref).stdout; got != want {
			t.Errorf("after the failure came\n%s\nwant\n%s", got, want)
		}
		p = newPlace(t, nil)
	}
	p.wantTidy()
}
