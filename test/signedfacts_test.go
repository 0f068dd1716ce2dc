package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// signedLine is what a check by signed facts says besides.
const signedLine = "  \"signedFacts\": true,\n"

// layersIn returns the digests of the layers of the images in a layout.
func layersIn(t *testing.T, layout string) []string {
	t.Helper()
	manifests, err := filepath.Glob(filepath.Join(layout, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, name := range manifests {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var m v1.Manifest
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		for _, l := range m.Layers {
			digests = append(digests, l.Digest.String())
		}
	}
	if len(digests) == 0 {
		t.Fatalf("no layers in %s", layout)
	}
	return digests
}

// Signed facts tell the same as the layers, for each image of the corpus and its cure, and no layer is asked for.
func TestSignedFactsOfCorpus(t *testing.T) {
	begin(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the fixtures with device code, and the names of files here, are those of amd64")
	}
	author, reader := newPlace(t, nil), newPlace(t, nil)
	binaries := corpusBinaries(t)
	_, private, public := evidencetest.Key(t)
	host := registrytest.Start(t, false)
	seen := count(t, host)
	images := corpus(binaries)
	var layers []string
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	t.Run("images", func(t *testing.T) {
		for i := range images {
			if images[i].from == "mksquashfs" { // with holes, which no layer has
				continue
			}
			sick := images[i]
			sick.from = "oci"
			c := &corpusImage{place: author, binaries: binaries, ailing: &sick}
			cured := content{join(sick.image.files), join(sick.image.below), environment(), environment(), sick.image.cmd}
			maps.Copy(cured.env, sick.image.env)
			maps.Copy(cured.labels, sick.image.labels)
			sick.cure(&cured)
			for state, image := range map[string]content{"ill": sick.image, "cured": cured} {
				c.t = t
				image.files = join(binaries.base(), image.files)
				dir := author.path(sick.rule, state)
				layout := c.write(dir, image)
				layers = append(layers, layersIn(t, filepath.Join(dir, "layout"))...)
				t.Run(sick.rule+" "+state, func(t *testing.T) {
					t.Parallel()
					slots <- struct{}{}
					defer func() { <-slots }()
					name := fmt.Sprintf("/corpus/%s:%s", sick.rule, state)
					author.in(t).must("push", layout, host+name, "--sign", private)
					check := func(p *place, more ...string) result {
						args := append([]string{"check", "--json", seen.proxy.Host + name}, strings.Fields(sick.target)...)
						return p.in(t).sconce(append(args, more...)...)
					}
					want, got := check(author), check(reader, "--key", public)
					if !strings.Contains(got.stdout, signedLine) || strings.Contains(got.stderr, "not used") {
						t.Errorf("the facts are not used: %v", got)
					}
					if text := strings.Replace(got.stdout, signedLine, "", 1); text != want.stdout || got.code != want.code {
						t.Errorf("by the facts: exit code %d\n%s\nby the layers: exit code %d\n%s", got.code, text, want.code, want.stdout)
					}
				})
			}
		}
	})
	names, _ := seen.take()
	for _, l := range layers {
		if names[l] > 0 {
			t.Errorf("layer %s was asked for", l)
		}
	}
	reader.wantTidy()
}

// Facts are believed when a key that the user names has signed them, about this image, in this form. Otherwise that is said, and the layers
// tell. What was believed once is believed by nobody else.
func TestSignedFactsBelieved(t *testing.T) {
	begin(t)
	host := registrytest.Start(t, false)
	seen := count(t, host)
	layer := gzippedLayer(t, "one", 1, 1<<20)
	digest := layerDigest(t, layer)
	author := newPlace(t, nil)
	key, private, public := evidencetest.Key(t)
	_, strangersPrivate, strangersPublic := evidencetest.Key(t)
	at := func(name string) string { return seen.proxy.Host + "/facts/" + name }
	push := func(name string, more ...string) store.Digest {
		config := v1.Config{Env: []string{"PATH=/usr/bin", "NAME=" + name}}
		layout := writeLayout(t, author.path(name), config, layer)
		r := author.must(append([]string{"push", layout, at(name) + ":1"}, more...)...)
		_, digest, _ := strings.Cut(strings.TrimSpace(r.stderr), ":1@")
		return store.Digest(digest)
	}
	book := func(name string) *evidence.Book {
		st, client := evidencetest.Client(t)
		b, err := evidence.Open(at(name), evidence.Options{Store: st, Fetch: client, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	document := func(name string, image store.Digest) (p map[string]any) {
		s, err := book(name).Attachment(t.Context(), image, "facts")
		must(err)
		must(json.Unmarshal(s.Predicate, &p))
		return p
	}
	const factsType = "https://sconce.dev/facts/v1"
	signed := push("signed", "--sign", private)
	for name, tc := range map[string]struct {
		make func(t *testing.T, name string)
		key  string
		told string // "": the facts are used
	}{
		"signed":      {func(*testing.T, string) {}, public, ""},
		"none":        {func(_ *testing.T, name string) { push(name) }, public, "there are none"},
		"another-key": {func(_ *testing.T, name string) { push(name, "--sign", private) }, strangersPublic, "not signed by a key that is trusted"},
		"forged":      {func(_ *testing.T, name string) { push(name, "--sign", strangersPrivate) }, public, "not signed by a key that is trusted"},
		"of-another-image": {func(_ *testing.T, name string) {
			image := push(name)
			other := push("other-image", "--sign", private)
			from := book("other-image").Repository()
			d, err := from.Resolve(t.Context(), evidence.AttachmentTags(other)+"facts")
			must(err)
			st, client := evidencetest.Client(t)
			m, err := registry.Transfer(t.Context(), from, d, at(name), registry.PushOptions{Store: st, Fetch: client})
			must(err)
			must(book(name).Repository().PutManifest(t.Context(), m.Data, m.MediaType, evidence.AttachmentTags(image)+"facts"))
		}, public, "about another image"},
		"of-another-release": {func(_ *testing.T, name string) {
			image := push(name, "--sign", private)
			p := document(name, image)
			p["format"] = "0"
			must(book(name).Attach(t.Context(), image, "facts", factsType, p, nil))
		}, public, "another release of sconce"},
		"of-other-layers": {func(t *testing.T, name string) {
			image := push(name, "--sign", private)
			layout := writeLayout(t, author.path("other"), v1.Config{}, gzippedLayer(t, "two", 2, 1<<10))
			author.must("push", layout, at(name)+":2", "--sign", private)
			b := book(name)
			two, err := b.Repository().Resolve(t.Context(), "2")
			must(err)
			must(b.Attach(t.Context(), image, "facts", factsType, document(name, two), nil))
		}, public, "of other layers"},
		"lost": {func(_ *testing.T, name string) {
			image := push(name, "--sign", private)
			p := document(name, image)
			p["digest"] = string(store.DigestOf([]byte("nowhere")))
			must(book(name).Attach(t.Context(), image, "facts", factsType, p, nil))
		}, public, "not used"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.make(t, name)
			p := newPlace(t, nil)
			seen.take()
			got := p.must("check", "--json", at(name)+":1", "--gpu", "9.0", "--key", tc.key)
			names, bytes := seen.take()
			used := strings.Contains(got.stdout, signedLine)
			if used != (tc.told == "") || (names[digest] > 0) == used || !strings.Contains(got.stderr, tc.told) {
				t.Errorf("used: %t, the layer was asked for %d times: %v", used, names[digest], got)
			}
			if used && bytes > 64<<10 {
				t.Errorf("%d bytes came", bytes)
			}
			// Somebody who believes nobody looks for himself, and finds the same.
			without := p.must("check", "--json", at(name)+":1", "--gpu", "9.0")
			if names, _ := seen.take(); used && names[digest] != 1 {
				t.Errorf("the layer was asked for %d times", names[digest])
			}
			if strings.Replace(got.stdout, signedLine, "", 1) != without.stdout {
				t.Errorf("with the key:\n%s\nwithout:\n%s", got.stdout, without.stdout)
			}
			p.wantTidy()
		})
	}
	if p := document("signed", signed); p["digest"] == "" {
		t.Errorf("signed: %v", p)
	}
	author.fails(2, []string{"--facts", "--key team.pub"}, "check", at("signed")+":1", "--facts", at("signed"))
	author.fails(2, []string{"in no registry"}, "check", author.path("signed"), "--key", public)
}

// Signed facts tell of an image's device code what its layers do, and no layer comes.
func TestSignedFactsOfDeviceCode(t *testing.T) {
	begin(t)
	seen := count(t, registrytest.Start(t, false))
	code, err := os.ReadFile(fixtures + "host.so")
	if err != nil {
		t.Fatal(err)
	}
	l := newTarLayer(t)
	l.file("opt/host.so", string(code))
	layer := l.gzipped()
	author, reader := newPlace(t, nil), newPlace(t, nil)
	_, private, public := evidencetest.Key(t)
	name := seen.proxy.Host + "/code/app:1"
	author.must("push", writeLayout(t, author.path("app"), v1.Config{}, layer), name, "--sign", private)
	seen.take()
	got := reader.must("inspect", "--gpu", "--json", name, "--key", public)
	if names, _ := seen.take(); names[layerDigest(t, layer)] > 0 {
		t.Error("the layer was asked for")
	}
	want := reader.must("inspect", "--gpu", "--json", name)
	if got.stdout != want.stdout || !strings.Contains(want.stdout, "opt/host.so") {
		t.Errorf("by the facts:\n%s\nby the layer:\n%s", got.stdout, want.stdout)
	}
	reader.fails(2, []string{"go with --gpu"}, "inspect", name, "--key", public)
	reader.wantTidy()
}

// Facts go where the image is promoted to, or are found where it came from.
func TestSignedFactsElsewhere(t *testing.T) {
	begin(t)
	layer := gzippedLayer(t, "one", 1, 1<<20)
	author := newPlace(t, nil)
	_, private, public := evidencetest.Key(t)
	from := registrytest.Start(t, false) + "/ci/app"
	author.must("push", writeLayout(t, author.path("app"), v1.Config{}, layer), from+":1", "--sign", private)
	for name, start := range map[string]func() string{
		"with referrers":    func() string { return registrytest.StartWithReferrers(t) },
		"without referrers": func() string { return registrytest.Start(t, false) },
	} {
		t.Run(name, func(t *testing.T) {
			seen := count(t, start())
			to := seen.proxy.Host + "/users/app"
			author.must("promote", from+":1", "--to", to, "--untested")
			p := newPlace(t, nil)
			r := p.must("check", "--json", to+":1", "--key", public, "--facts", from)
			if name == "with referrers" {
				r = p.must("check", "--json", to+":1", "--key", public)
			}
			if names, _ := seen.take(); names[layerDigest(t, layer)] > 0 || !strings.Contains(r.stdout, signedLine) {
				t.Errorf("the layer came: %v", r)
			}
			p.fails(3, []string{"no evidence"}, "verify", to+":1", "--key", public, "--evidence", from) // facts are no test
		})
	}
}
