package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// registries are those that tests run against: one without conditions and referrers, and one with each.
var registries = map[string]func(testing.TB) string{
	"docker":     func(t testing.TB) string { return registrytest.Start(t, false) },
	"referrers":  registrytest.StartWithReferrers,
	"conditions": registrytest.StartWithConditions,
}

// send sends a tiny artifact under a tag.
func send(t *testing.T, st *store.Store, c *fetch.Client, name, tag, text string, subject *v1.Descriptor) (store.Digest, []byte) {
	t.Helper()
	blob, err := putBlob(st, []byte("log of "+text))
	if err != nil {
		t.Fatal(err)
	}
	a := &Artifact{
		Type: testType, ConfigType: testConfigType, Config: []byte(`{"text":"` + text + `"}`), Subject: subject,
		Blobs: []v1.Descriptor{{MediaType: "text/plain", Digest: hashOf(blob.Digest), Size: blob.Size}},
	}
	d, err := PushArtifact(t.Context(), a, name, tag, PushOptions{Store: st, Fetch: c})
	if err != nil {
		t.Fatal(err)
	}
	data, err := a.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return d, data
}

func openRepository(t *testing.T, name string, c *fetch.Client) *Repository {
	t.Helper()
	r, err := OpenForWriting(name, Options{Fetch: c, Push: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTagsAndDelete lists and resolves tags, and deletes what two of them lead to.
func TestTagsAndDelete(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			host, c, st := start(t), client(t), storetest.New(t)
			r := openRepository(t, host+"/team/app", c)
			if tags, err := r.Tags(t.Context()); err != nil || len(tags) != 0 {
				t.Fatalf("a repository that is not there has %q, %v", tags, err)
			}
			if d, err := r.Resolve(t.Context(), "none"); err != nil || d != "" {
				t.Fatalf("a repository that is not there resolves to %q, %v", d, err)
			}
			d, data := send(t, st, c, r.Name(), "one", "same", nil)
			if err := r.PutManifest(t.Context(), data, string(types.OCIManifestSchema1), "two"); err != nil {
				t.Fatal(err)
			}
			send(t, st, c, r.Name(), "three", "other", nil)
			if got, err := r.Resolve(t.Context(), "two"); err != nil || got != d {
				t.Errorf("two is %q, %v, and not %s", got, err, d)
			}
			if got, err := r.Resolve(t.Context(), "none"); err != nil || got != "" {
				t.Errorf("a tag that is not there resolves to %q, %v", got, err)
			}
			tags, err := r.Tags(t.Context())
			if slices.Sort(tags); err != nil || !slices.Equal(tags, []string{"one", "three", "two"}) {
				t.Errorf("tags %q, %v", tags, err)
			}
			if name != "docker" {
				return // the other deletes a digest without its tags
			}
			for range 2 {
				if err := r.Delete(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			if tags, err = r.Tags(t.Context()); err != nil || !slices.Equal(tags, []string{"three"}) {
				t.Errorf("after the deletion tags %q, %v", tags, err)
			}
		})
	}
}

// TestTagPages reads a list in pages, from a server that says where the next one is and from one that only stops, and follows no
// address to another server.
func TestTagPages(t *testing.T) {
	registrytest.Isolate(t)
	c := client(t)
	var all []string
	for i := range 2*tagsPerPage + 5 {
		all = append(all, fmt.Sprintf("tag-%05d", i))
	}
	for name, link := range map[string]string{
		"link": `</v2/team/app/tags/list?n=1000&last=%s>; rel="next"`, "silent": "", "elsewhere": `<http://registry.example.org/%s>; rel="next"`,
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if !strings.HasSuffix(req.URL.Path, "/tags/list") {
					return
				}
				at := 0
				if last := req.URL.Query().Get("last"); last != "" {
					at = slices.Index(all, last) + 1
				}
				page := all[at:min(at+tagsPerPage, len(all))]
				if link != "" && at+len(page) < len(all) {
					w.Header().Set("Link", fmt.Sprintf(link, page[len(page)-1]))
				}
				fmt.Fprintf(w, `{"tags":["%s"]}`, strings.Join(page, `","`))
			}))
			defer srv.Close()
			tags, err := openRepository(t, strings.TrimPrefix(srv.URL, "http://")+"/team/app", c).Tags(t.Context())
			if name == "elsewhere" {
				if err == nil || !strings.Contains(err.Error(), "another server") {
					t.Errorf("%d tags, %v", len(tags), err)
				}
				return
			}
			if err != nil || !slices.Equal(tags, all) {
				t.Errorf("%d tags, %v", len(tags), err)
			}
		})
	}
}

// TestAbsence believes only a registry that says what is unknown.
func TestAbsence(t *testing.T) {
	registrytest.Isolate(t)
	c := client(t)
	for name, tc := range map[string]struct {
		status int
		body   string
		absent bool
	}{
		"manifest":       {404, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, true},
		"repository":     {404, `{"errors":[{"code":"NAME_UNKNOWN"}]}`, true},
		"page":           {404, `<html>no such page</html>`, false},
		"nothing":        {404, ``, false},
		"other":          {404, `{"errors":[{"code":"UNSUPPORTED"}]}`, false},
		"mixed":          {404, `{"errors":[{"code":"MANIFEST_UNKNOWN"},{"code":"DENIED"}]}`, false},
		"denied":         {403, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, false},
		"in trouble":     {500, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, false},
		"not a manifest": {200, ``, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/v2/" {
					return
				}
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.body)
			}))
			defer srv.Close()
			r := openRepository(t, strings.TrimPrefix(srv.URL, "http://")+"/team/app", c)
			d, err := r.Resolve(t.Context(), "tag")
			if absent := err == nil && d == ""; absent != tc.absent {
				t.Errorf("absent %v (%q, %v), want %v", absent, d, err, tc.absent)
			}
		})
	}
}

// TestReferrers finds what 8 writers at once attach to an image: all of it where the registry keeps the list, and what each
// attached last where nobody else writes any more.
func TestReferrers(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			host, c, st := start(t), client(t), storetest.New(t)
			r := openRepository(t, host+"/team/app", c)
			image, manifest := send(t, st, c, r.Name(), "image", "image", nil)
			about := describe(string(types.OCIManifestSchema1), manifest)
			if list, err := r.Referrers(t.Context(), image); err != nil || len(list) != 0 {
				t.Fatalf("before: %v, %v", list, err)
			}
			entries := make([]Referrer, 8)
			for i := range entries {
				d, data := send(t, st, c, r.Name(), fmt.Sprintf("att-%d", i), fmt.Sprintf("att %d", i), &about)
				entries[i] = Referrer{MediaType: types.OCIManifestSchema1, Digest: hashOf(d), Size: int64(len(data)), ArtifactType: testType}
			}
			var wg sync.WaitGroup
			for _, entry := range entries {
				wg.Go(func() { _ = r.AddReferrer(t.Context(), image, entry) }) // which may lose, and says so
			}
			wg.Wait()
			if list, err := r.Referrers(t.Context(), image); name != "docker" && (err != nil || len(list) != len(entries)) {
				t.Errorf("%d of %d are in the list: %v", len(list), len(entries), err)
			}
			for _, entry := range entries { // what a later run of each does
				if err := r.AddReferrer(t.Context(), image, entry); err != nil {
					t.Error(err)
				}
			}
			list, err := r.Referrers(t.Context(), image)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if n := len(slices.DeleteFunc(slices.Clone(list), func(d Referrer) bool { return d.Digest != entry.Digest })); n != 1 {
					t.Errorf("%s is in the list %d times", entry.Digest, n)
				}
			}
		})
	}
}

// TestTransfer copies an index of two images within a registry, where blobs are mounted, and to another, where only what is
// missing is sent.
func TestTransfer(t *testing.T) {
	registrytest.Isolate(t)
	c, st := client(t), storetest.New(t)
	host, other := registrytest.Start(t, false), registrytest.StartWithReferrers(t)
	from := openRepository(t, host+"/team/staging", c)
	var list []Referrer
	for _, name := range []string{"amd64", "arm64"} {
		d, data := send(t, st, c, from.Name(), "", name, nil)
		list = append(list, Referrer{MediaType: types.OCIManifestSchema1, Digest: hashOf(d), Size: int64(len(data))})
	}
	data := marshalIndex(t, list)
	index := store.DigestOf(data)
	if err := from.PutManifest(t.Context(), data, string(types.OCIImageIndex), "index"); err != nil {
		t.Fatal(err)
	}
	var received [2]*registrytest.Proxy
	for i, at := range []string{host, other} {
		received[i] = registrytest.NewProxy(t, at, nil)
	}
	for i, to := range []string{host + "/team/images", received[1].Host + "/mirror/images"} {
		empty := storetest.New(t) // knows no blob and no origin
		o := PushOptions{Store: empty, Fetch: fetch.New(empty, fetch.Options{Attempts: 1})}
		source := openRepository(t, from.Name(), o.Fetch)
		m, err := Transfer(t.Context(), source, index, to, o)
		if err != nil {
			t.Fatal(err)
		}
		target := openRepository(t, to, o.Fetch)
		if tags, err := target.Tags(t.Context()); err != nil || len(tags) != 0 {
			t.Errorf("%d: tags %q, %v", i, tags, err)
		}
		if err := target.PutManifest(t.Context(), m.Data, m.MediaType, "1.0"); err != nil {
			t.Fatal(err)
		}
		if d, err := target.Resolve(t.Context(), "1.0"); err != nil || d != index {
			t.Errorf("%d: 1.0 is %q, %v", i, d, err)
		}
		for _, child := range list {
			manifest, _, err := target.Manifest(t.Context(), child.Digest.String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := target.Artifact(t.Context(), empty, manifest, testType); err != nil {
				t.Error(err)
			}
		}
		blob := store.DigestOf([]byte("log of amd64"))
		if brought := empty.HasBlob(blob); brought != (i == 1) {
			t.Errorf("%d: blobs went through the store: %v", i, brought)
		}
		before := received[1].Received.Load()
		if _, err := Transfer(t.Context(), source, index, to, o); err != nil {
			t.Fatal(err)
		}
		if again := received[1].Received.Load(); again != before {
			t.Errorf("%d: a second copy sent %d bytes", i, again-before)
		}
	}
}

// TestTransferHostile refuses manifests that are no such thing, and writes nothing.
func TestTransferHostile(t *testing.T) {
	registrytest.Isolate(t)
	c, st := client(t), storetest.New(t)
	for name, text := range map[string]string{
		"no JSON":  `{`,
		"digest":   `{"layers":[{"digest":"sha256:../../x","size":1}]}`,
		"size":     `{"layers":[{"digest":"sha256:` + strings.Repeat("a", 64) + `","size":-1}]}`,
		"child":    `{"manifests":[{"digest":"md5:00","size":1}]}`,
		"too long": `{"layers":[` + strings.TrimSuffix(strings.Repeat(`{},`, maxTransferList+1), ",") + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method != http.MethodGet && req.Method != http.MethodHead {
					t.Errorf("%s %s", req.Method, req.URL.Path)
				}
				if strings.Contains(req.URL.Path, "/manifests/") {
					fmt.Fprint(w, text)
				}
			}))
			defer srv.Close()
			host := strings.TrimPrefix(srv.URL, "http://")
			_, err := Transfer(t.Context(), openRepository(t, host+"/a/b", c), store.DigestOf([]byte(text)), host+"/c/d", PushOptions{Store: st, Fetch: c})
			if err == nil {
				t.Error("it was copied")
			}
		})
	}
}

func marshalIndex(t *testing.T, list []Referrer) []byte {
	t.Helper()
	data, err := marshalReferrers(list)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
