package promote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// yard is a staging registry to be cleaned up: two repositories, in which images have tags such as "1-small-<24 digits>".
type yard struct {
	host   string
	images map[string]store.Digest // by repository:version
	now    time.Time
	key    *attest.PrivateKey
	put    time.Duration // how old the next image is
}

func newYard(t *testing.T, host string) *yard {
	t.Helper()
	key, _, _ := evidencetest.Key(t)
	return &yard{host, map[string]store.Digest{}, time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC), key, 0}
}

func tagOf(version string) string { return version + "-" + hash(version)[:24] }

// image adds an image with a document and a verdict, which is based on base, REPOSITORY:VERSION.
func (y *yard) image(t *testing.T, repo, version, base string) {
	t.Helper()
	at := y.host + "/" + repo
	d := evidencetest.Image(t, at, tagOf(version), repo+version)
	y.images[repo+":"+version] = d
	st, client := evidencetest.Client(t)
	b, err := evidence.Open(at, evidence.Options{Store: st, Fetch: client, Key: y.key})
	if err != nil {
		t.Fatal(err)
	}
	y.put += time.Minute
	notes := map[string]string{NoteCreated: y.now.Add(y.put).Format(time.RFC3339)}
	if base != "" {
		name, v, _ := strings.Cut(base, ":")
		notes[NoteBase] = y.host + "/" + name + ":" + tagOf(v)
	}
	if err := b.Attach(t.Context(), d, "provenance", "https://slsa.dev/provenance/v1", map[string]string{"of": version}, notes); err != nil {
		t.Fatal(err)
	}
	pass(t, at, y.key, evidence.Key{Image: d, Test: hash("gpu"), Cluster: "clariden"}, "gpu", evidence.Passed)
}

var yardForm = regexp.MustCompile(`^[0-9]+-([a-z]+)-[0-9a-f]{24}$`)

// cleaning keeps what is named, REPOSITORY:VERSION, for 30 days.
func (y *yard) cleaning(needed ...string) Cleaning {
	c := Cleaning{
		Repositories: []string{y.host + "/ci/base", y.host + "/ci/app"}, Keep: 30 * 24 * time.Hour, Tags: map[string]string{}, Images: map[store.Digest]string{},
		Canonical: func(_, tag string) (string, bool) {
			m := yardForm.FindStringSubmatch(tag)
			if m == nil {
				return "", false
			}
			return m[1], true
		},
	}
	for _, n := range needed {
		repo, version, _ := strings.Cut(n, ":")
		c.Tags[y.host+"/"+repo+":"+tagOf(version)] = "today's"
	}
	return c
}

// clean cleans after some days, and returns the states by REPOSITORY:VERSION.
func (y *yard) clean(t *testing.T, c Cleaning, days int, remove bool) (map[string]string, error) {
	t.Helper()
	o := quick(t)
	all, err := Clean(t.Context(), c, CleanOptions{o.Store, o.Fetch, remove, func() time.Time { return y.now.AddDate(0, 0, days) }})
	states := map[string]string{}
	for _, one := range all {
		for _, d := range one.Images {
			for name, image := range y.images {
				if image == d {
					states[name] = one.State
				}
			}
		}
	}
	return states, err
}

// tags are all tags of both repositories.
func (y *yard) tags(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, name := range []string{"ci/base", "ci/app"} {
		tags, err := repository(t, y.host+"/"+name).Tags(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			all = append(all, name+":"+tag)
		}
	}
	slices.Sort(all)
	return all
}

// whole reports whether an image is there with all that is known of it, by the tags that there are; gone whether nothing is left.
func (y *yard) whole(t *testing.T, name string, tags []string) (whole, gone bool) {
	t.Helper()
	repo, _, _ := strings.Cut(name, ":")
	d := y.images[name]
	at := repository(t, y.host+"/"+repo)
	there, err := at.Resolve(t.Context(), string(d))
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(name, ":")
	tag, err := at.Resolve(t.Context(), tagOf(version))
	if err != nil {
		t.Fatal(err)
	}
	said := 0
	for _, tag := range tags {
		if strings.Contains(tag, d.Hex()[:12]) && strings.HasPrefix(tag, repo+":") {
			said++
		}
	}
	return there == d && tag == d && said >= 3, there == "" && tag == "" && said == 0
}

func (y *yard) want(t *testing.T, gone ...string) {
	t.Helper()
	tags := y.tags(t)
	for name := range y.images {
		whole, isGone := y.whole(t, name, tags)
		if wanted := slices.Contains(gone, name); isGone != wanted || whole == wanted {
			t.Errorf("%s: whole %v, gone %v, want it gone: %v", name, whole, isGone, wanted)
		}
	}
}

// TestClean goes through the life of images: needed for each of the reasons there are, no longer needed, marked, deleted.
func TestClean(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			leaveOut(t, name)
			registrytest.Isolate(t)
			y := newYard(t, start(t))
			y.image(t, "ci/base", "1-x", "")
			y.image(t, "ci/base", "2-x", "")
			y.image(t, "ci/base", "3-x", "")
			y.image(t, "ci/app", "1-small", "ci/base:1-x")
			y.image(t, "ci/app", "2-small", "ci/base:2-x")
			y.image(t, "ci/app", "3-small", "ci/base:3-x")
			y.image(t, "ci/app", "1-large", "ci/base:3-x")
			y.image(t, "ci/app", "2-large", "ci/base:3-x")
			y.image(t, "ci/app", "1-part", "")
			y.image(t, "ci/app", "1-named", "")
			y.image(t, "ci/app", "1-claimed", "")
			app := repository(t, y.host+"/ci/app")
			data, mediaType, err := app.Manifest(t.Context(), string(y.images["ci/app:1-named"]))
			if err != nil {
				t.Fatal(err)
			}
			index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":100}]}`, types.OCIImageIndex, types.OCIManifestSchema1, y.images["ci/app:1-part"])
			for tag, m := range map[string][2]string{"latest": {string(data), mediaType}, "many": {index, string(types.OCIImageIndex)}} {
				if err := app.PutManifest(t.Context(), []byte(m[0]), m[1], tag); err != nil {
					t.Fatal(err)
				}
			}
			st, client := evidencetest.Client(t)
			cs := &claims{app, y.host + "/ci/app", st, client}
			mine := &claim{Tag: "9", Image: y.images["ci/app:1-claimed"], State: active, Since: y.now, Owner: newOwner(), Targets: []string{y.host + "/users"}}
			over := &claim{Tag: "8", Image: y.images["ci/app:3-small"], State: withdrawn, Since: y.now, Owner: newOwner()}
			for _, c := range []*claim{mine, over} {
				if err := cs.write(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			c := y.cleaning("ci/base:3-x", "ci/app:3-small")
			c.Images[y.images["ci/app:1-small"]] = "published"
			c.Newest = 1
			before := y.tags(t)
			states, err := y.clean(t, c, 0, false)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"ci/base:1-x": Kept, "ci/base:2-x": Kept, "ci/base:3-x": Kept, "ci/app:1-small": Kept, "ci/app:2-small": Waiting, "ci/app:3-small": Kept,
				"ci/app:1-large": Waiting, "ci/app:2-large": Kept, "ci/app:1-part": Kept, "ci/app:1-named": Kept, "ci/app:1-claimed": Kept,
			}
			delete(want, "ci/base:1-x") // kept or waiting: either way it stays
			delete(want, "ci/base:2-x")
			for name, state := range want {
				if states[name] != state {
					t.Errorf("%s is %s, want %s", name, states[name], state)
				}
			}
			if after := y.tags(t); !slices.Equal(after, before) {
				t.Errorf("it was only to be told, and the tags are %q", after)
			}
			for _, days := range []int{0, 29} {
				if _, err := y.clean(t, c, days, true); err != nil {
					t.Fatal(err)
				}
				y.want(t)
			}
			if states, err = y.clean(t, c, 30, true); err != nil || states["ci/app:2-small"] != Deleted {
				t.Fatal(states, err)
			}
			// By now the claim is over, and the line's newest image is the only one; nothing is based on base 2 any more.
			y.want(t, "ci/app:2-small", "ci/app:1-large", "ci/base:2-x")
			for _, tag := range y.tags(t) {
				if strings.HasPrefix(tag, "ci/app:claim.8.") {
					t.Errorf("a claim that was over for long is still there: %s", tag)
				}
			}
			if states, err = y.clean(t, c, 31, true); err != nil || len(states) != len(y.images)-3 {
				t.Errorf("again: %v, %v", states, err)
			}
		})
	}
}

// TestCleanForEver deletes nothing without a time, and what is needed again is not deleted for having been marked once.
func TestCleanForEver(t *testing.T) {
	registrytest.Isolate(t)
	y := newYard(t, registrytest.StartWithReferrers(t))
	y.image(t, "ci/app", "1-x", "")
	never := y.cleaning()
	never.Keep = -1
	for _, days := range []int{0, 3000} {
		if states, err := y.clean(t, never, days, true); err != nil || states["ci/app:1-x"] != Waiting {
			t.Fatal(states, err)
		}
	}
	steps := []struct {
		days   int
		needed bool
		want   string
	}{{0, false, Waiting}, {20, true, Kept}, {31, false, Waiting}, {60, false, Waiting}, {61, false, Deleted}}
	for _, step := range steps {
		c := y.cleaning()
		if step.needed {
			c = y.cleaning("ci/app:1-x")
		}
		if states, err := y.clean(t, c, step.days, true); err != nil || states["ci/app:1-x"] != step.want {
			t.Fatalf("after %d days: %v, %v, want %s", step.days, states, err, step.want)
		}
	}
}

// oldYard has an image that stays and one that is due.
func oldYard(t *testing.T, host string) (*yard, Cleaning) {
	t.Helper()
	y := newYard(t, host)
	y.image(t, "ci/base", "1-x", "")
	y.image(t, "ci/app", "1-x", "ci/base:1-x")
	y.image(t, "ci/app", "2-x", "ci/base:1-x")
	c := y.cleaning("ci/app:2-x")
	if states, err := y.clean(t, c, 0, true); err != nil || states["ci/app:1-x"] != Waiting {
		t.Fatal(states, err)
	}
	return y, c
}

// TestCleanAgainstPush has the image that is due be given a new tag, or be promoted, after it was looked at: it stays.
func TestCleanAgainstPush(t *testing.T) {
	for name, meanwhile := range map[string]func(*testing.T, *yard){
		"tag": func(t *testing.T, y *yard) {
			app := repository(t, y.host+"/ci/app")
			data, mediaType, err := app.Manifest(context.Background(), string(y.images["ci/app:1-x"]))
			if err == nil {
				err = app.PutManifest(context.Background(), data, mediaType, "foreign")
			}
			if err != nil {
				t.Error(err)
			}
		},
		"claim": func(t *testing.T, y *yard) {
			st, client := evidencetest.Client(t)
			cs := &claims{repository(t, y.host+"/ci/app"), y.host + "/ci/app", st, client}
			if err := cs.write(context.Background(), &claim{Tag: "1", Image: y.images["ci/app:1-x"], State: active, Since: y.now.AddDate(0, 0, 30), Owner: newOwner()}); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			inner := registrytest.Start(t, false)
			y, c := oldYard(t, inner)
			marking := regexp.MustCompile(`/ci/app/manifests/gc\.[0-9a-f]{12}\.[0-9a-f]{8}$`)
			var once sync.Once
			proxy := registrytest.NewProxy(t, inner, func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut && marking.MatchString(r.URL.Path) {
					once.Do(func() { meanwhile(t, y) })
				}
				return false
			})
			c = rehost(c, inner, proxy.Host)
			if states, err := y.clean(t, c, 30, true); err != nil || states["ci/app:1-x"] != Kept {
				t.Errorf("%v, %v", states, err)
			}
			y.want(t)
			for _, tag := range y.tags(t) {
				if marking.MatchString(strings.Replace("/"+tag, ":", "/manifests/", 1)) {
					t.Errorf("its mark is still there: %s", tag)
				}
			}
		})
	}
}

// rehost asks for the same by another address.
func rehost(c Cleaning, from, to string) Cleaning {
	moved := c
	moved.Repositories, moved.Tags = nil, map[string]string{}
	for _, name := range c.Repositories {
		moved.Repositories = append(moved.Repositories, strings.Replace(name, from, to, 1))
	}
	for name, why := range c.Tags {
		moved.Tags[strings.Replace(name, from, to, 1)] = why
	}
	return moved
}

// TestPromoteAgainstClean promotes nothing that is being deleted, and all that was once about to be.
func TestPromoteAgainstClean(t *testing.T) {
	registrytest.Isolate(t)
	y := newYard(t, registrytest.Start(t, false))
	y.image(t, "ci/app", "1-x", "")
	image := y.images["ci/app:1-x"]
	o := quick(t)
	o.Tries, o.Now = 3, func() time.Time { return y.now }
	at := y.host + "/ci/app"
	cs := &claims{repository(t, at), at, o.Store, o.Fetch}
	m := &mark{Image: image.Hex()[:digestPart], Since: y.now, Owner: newOwner()}
	for _, step := range []struct {
		since time.Time
		want  string
	}{{y.now.Add(-time.Minute), "is being deleted"}, {y.now.Add(-time.Hour), ""}} {
		m.Since = step.since
		if _, err := cs.put(t.Context(), m.name(), markField, m); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), Promotion{From: at, Image: image, Allowed: true, To: []Target{{y.host + "/users", "1", false}}}, o)
		if got := fmt.Sprint(err); (step.want == "") != (err == nil) || !strings.Contains(got, step.want) {
			t.Errorf("%v, want %q", err, step.want)
		}
	}
	m.Since = time.Now()
	if _, err := cs.put(t.Context(), m.name(), markField, m); err != nil {
		t.Fatal(err)
	}
	for d, want := range map[store.Digest]bool{image: true, store.DigestOf(nil): false} {
		if deleting, err := IsBeingDeleted(t.Context(), at, d, o.Store, o.Fetch); err != nil || deleting != want {
			t.Errorf("%s is being deleted: %v, %v", d, deleting, err)
		}
	}
}

// TestCleanRefused stops with a hint where nobody may delete, and leaves nothing that stands in the way of promotions.
func TestCleanRefused(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.Start(t, false)
	y, c := oldYard(t, inner)
	proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusMethodNotAllowed)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNSUPPORTED","message":"The operation is unsupported."}]}`))
		}
		return r.Method == http.MethodDelete
	})
	_, err := y.clean(t, rehost(c, inner, proxy.Host), 30, true)
	if err == nil || !strings.Contains(fault.HintOf(err), "does not let its users delete") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	y.want(t)
	if states, err := y.clean(t, c, 30, true); err != nil || states["ci/app:1-x"] != Deleted {
		t.Errorf("where it is allowed: %v, %v", states, err)
	}
	y.want(t, "ci/app:1-x")
}

// TestCleanFaults has the connection break at each request of a cleaning in turn: what stays is always whole, and a second run finishes.
func TestCleanFaults(t *testing.T) {
	registrytest.Isolate(t)
	requests := func(limit int64) (int64, error) { // t.Fatal in a goroutine ends this run alone, and the test fails
		inner := registrytest.StartWithReferrers(t)
		y, c := oldYard(t, inner)
		var asked atomic.Int64
		proxy := registrytest.NewProxy(t, inner, func(http.ResponseWriter, *http.Request) bool {
			if asked.Add(1) > limit {
				panic(http.ErrAbortHandler)
			}
			return false
		})
		o := quick(t)
		o.Fetch = fetch.New(o.Store, fetch.Options{Backoff: time.Millisecond, MaxWait: time.Millisecond, Attempts: 1})
		late := func() time.Time { return y.now.AddDate(0, 0, 30) }
		_, err := Clean(t.Context(), rehost(c, inner, proxy.Host), CleanOptions{o.Store, o.Fetch, true, late})
		for _, name := range []string{"ci/app:2-x", "ci/base:1-x"} {
			if whole, _ := y.whole(t, name, y.tags(t)); !whole {
				t.Errorf("after %d requests %s is not whole", limit, name)
			}
		}
		if _, err := y.clean(t, c, 31, true); err != nil {
			t.Errorf("run again after %d requests: %v", limit, err)
		}
		y.want(t, "ci/app:1-x")
		return asked.Load(), err
	}
	all, err := requests(1 << 30)
	if err != nil || all < 20 {
		t.Fatalf("%d requests, %v", all, err)
	}
	var wg sync.WaitGroup
	sem := make(chan struct{}, 4)
	for n := int64(0); n < all; n += 5 { // many places of those there are; what comes next fails as well
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			if _, err := requests(n); err == nil {
				t.Errorf("%d requests of %d were enough", n, all)
			}
		})
	}
	wg.Wait()
}

// TestCleanHostile meets answers that would have it delete what is needed: each is an error, or is not believed.
func TestCleanHostile(t *testing.T) {
	registrytest.Isolate(t)
	answer := func(w http.ResponseWriter, code int, body string) bool {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
		return true
	}
	for name, tc := range map[string]struct {
		trouble func(y *yard, w http.ResponseWriter, r *http.Request) bool
		fails   bool
	}{
		"a needed tag leads nowhere": {func(_ *yard, w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, tagOf("2-x")) && answer(w, 404, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`)
		}, true},
		"in trouble": {func(_ *yard, w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, tagOf("2-x")) && answer(w, 500, "")
		}, true},
		"a list without end": {func(_ *yard, w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/ci/app/tags/list") {
				return false
			}
			w.Header().Set("Link", `<`+r.URL.Path+`?n=1000>; rel="next"`)
			return answer(w, 200, `{"tags":["x"]}`)
		}, true},
		"a damaged manifest": {func(_ *yard, w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, tagOf("2-x")) && answer(w, 200, `{"manifests":[`)
		}, true},
		"the needed image as one that refers to the other": {func(y *yard, w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				return false
			}
			list, _ := json.Marshal(referrersOf(y.images["ci/app:2-x"]))
			return answer(w, 200, string(list))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inner := registrytest.StartWithReferrers(t)
			y, c := oldYard(t, inner)
			proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool { return tc.trouble(y, w, r) })
			o := quick(t)
			o.Fetch = fetch.New(o.Store, fetch.Options{Backoff: time.Millisecond, MaxWait: time.Millisecond, Attempts: 1})
			_, err := Clean(t.Context(), rehost(c, inner, proxy.Host), CleanOptions{o.Store, o.Fetch, true, func() time.Time { return y.now.AddDate(0, 0, 30) }})
			if (err != nil) != tc.fails {
				t.Errorf("%v", err)
			}
			if tc.fails {
				y.want(t)
			} else {
				y.want(t, "ci/app:1-x")
			}
		})
	}
}

func referrersOf(d store.Digest) map[string]any {
	return map[string]any{"schemaVersion": 2, "mediaType": types.OCIImageIndex, "manifests": []map[string]any{{"mediaType": types.OCIManifestSchema1, "digest": d, "size": 100}}}
}

// That an image is withdrawn outlives it: made again, it is withdrawn still.
func TestCleanKeepsWithdrawals(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			y := newYard(t, start(t))
			y.image(t, "ci/base", "1-bad", "")
			image := y.images["ci/base:1-bad"]
			o := WithdrawOptions{Options: quick(t), Key: y.key}
			if _, err := Withdraw(t.Context(), Withdrawing{From: y.host + "/ci/base", Image: image, Because: "it is bad"}, o); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				days int
				want string
			}{{0, Waiting}, {31, Deleted}} {
				if states, err := y.clean(t, y.cleaning(), c.days, true); err != nil || states["ci/base:1-bad"] != c.want {
					t.Fatalf("after %d days: %v, %v", c.days, states, err)
				}
			}
			if is := resolve(t, Target{y.host + "/ci/base", string(image), false}); is != "" {
				t.Error("the image is there still")
			}
			evidencetest.Image(t, y.host+"/ci/base", tagOf("1-bad"), "ci/base1-bad")
			_, err := Run(t.Context(), Promotion{From: y.host + "/ci/base", Image: image, To: []Target{{y.host + "/users", "1", false}}}, quick(t, y.key.Public()))
			var withdrawn *evidence.WithdrawnError
			if !errors.As(err, &withdrawn) {
				t.Errorf("promote what was made again: %v", err)
			}
		})
	}
}
