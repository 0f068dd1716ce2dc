package promote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

var registries = map[string]func(testing.TB) string{
	"docker":     func(t testing.TB) string { return registrytest.Start(t, false) },
	"referrers":  registrytest.StartWithReferrers,
	"conditions": registrytest.StartWithConditions,
}

// leaveOut leaves docker-registry by itself out of a short run: with conditions it is the same program, and that of this process knows none either.
func leaveOut(t *testing.T, registry string) {
	t.Helper()
	if testing.Short() && registry == "docker" {
		t.Skip("the other two registries show as much to the race detector")
	}
}

// hash is the hash of a test that says text.
func hash(text string) string { return store.DigestOf([]byte(text)).Hex() }

// quick are options that wait for milliseconds, with a store of their own.
func quick(t testing.TB, trust ...*attest.PublicKey) Options {
	t.Helper()
	st, client := evidencetest.Client(t)
	wait := func(ctx context.Context, try int) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Duration(try) * 3 * time.Millisecond)):
			return nil
		}
	}
	return Options{Store: st, Fetch: client, Trust: trust, Wait: wait, Tries: 1000}
}

// patient are options for many who write the same at once, which a registry of files answers with errors of its own now and then.
func patient(t testing.TB) Options {
	t.Helper()
	o := quick(t)
	o.Fetch = fetch.New(o.Store, fetch.Options{Backoff: 5 * time.Millisecond, MaxWait: 50 * time.Millisecond, Attempts: 50})
	return o
}

func repository(t testing.TB, name string) *registry.Repository {
	t.Helper()
	_, client := evidencetest.Client(t)
	repo, err := registry.OpenForWriting(name, registry.Options{Fetch: client, Push: true})
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// resolve returns what a tag is now.
func resolve(t testing.TB, target Target) store.Digest {
	t.Helper()
	d, err := repository(t, target.Repository).Resolve(t.Context(), target.Tag)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pass writes a verdict about an image.
func pass(t testing.TB, at string, key *attest.PrivateKey, k evidence.Key, name string, result evidence.Result) {
	t.Helper()
	st, client := evidencetest.Client(t)
	b, err := evidence.Open(at, evidence.Options{Store: st, Fetch: client, Key: key})
	if err == nil {
		err = b.Put(t.Context(), evidence.Evidence{Key: k, Name: name, Result: result}, strings.NewReader("log of "+name))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPromote promotes to two registries, once and again, and moves only what may be moved.
func TestPromote(t *testing.T) {
	registrytest.Isolate(t)
	staging := registrytest.Start(t, false)
	mirror := registrytest.StartWithReferrers(t)
	from := staging + "/team/ci/pytorch"
	key, _, _ := evidencetest.Key(t)
	first, second := evidencetest.Image(t, from, "canonical-1", "one"), evidencetest.Image(t, from, "canonical-2", "two")
	base := evidencetest.Image(t, staging+"/team/ci/base", "canonical", "base")
	for _, image := range []store.Digest{first, second} {
		pass(t, from, key, evidence.Key{Image: image, Test: hash("gpu"), Cluster: "clariden"}, "gpu", evidence.Warned)
	}
	pass(t, staging+"/team/ci/base", key, evidence.Key{Image: base, Test: hash("env"), Cluster: "clariden"}, "env", evidence.Passed)
	promotion := func(image store.Digest) Promotion {
		return Promotion{
			From: from, Image: image, Recipe: true,
			To: []Target{{staging + "/team/images/pytorch", "1.0", false}, {mirror + "/images/pytorch", "1.0", false}, {staging + "/team/images/pytorch", "dev", true}},
			Required: []Required{
				{Key: evidence.Key{Image: image, Test: hash("gpu"), Cluster: "clariden"}, Name: "gpu"},
				{Key: evidence.Key{Image: base, Test: hash("env"), Cluster: "clariden"}, Name: "env", Repository: staging + "/team/ci/base"},
			},
		}
	}
	states := func(r *Report) []string {
		var all []string
		for _, o := range r.Targets {
			all = append(all, o.State)
		}
		return all
	}
	o := quick(t, key.Public())
	dry := o
	dry.DryRun = true
	p := promotion(first)
	r, err := Run(t.Context(), p, dry)
	if err != nil || !slices.Equal(states(r), []string{"would write", "would write", "would write"}) || len(r.Evidence) != 2 {
		t.Fatalf("dry: %+v, %v", r, err)
	}
	for _, target := range p.To {
		if d := resolve(t, target); d != "" {
			t.Errorf("a dry run wrote %s", target)
		}
	}
	if r, err = Run(t.Context(), p, o); err != nil || !slices.Equal(states(r), []string{"written", "written", "written"}) {
		t.Fatalf("first: %+v, %v", r, err)
	}
	for _, target := range p.To {
		if d := resolve(t, target); d != first {
			t.Errorf("%s is %s", target, d)
		}
	}
	if r, err = Run(t.Context(), p, o); err != nil || !slices.Equal(states(r), []string{"there", "there", "there"}) {
		t.Errorf("again: %+v, %v", r, err)
	}
	if tags, err := repository(t, p.To[0].Repository).Tags(t.Context()); len(tags) != 2 {
		t.Errorf("the users' repository has the tags %q, %v", tags, err)
	}
	if list, err := repository(t, p.To[1].Repository).Referrers(t.Context(), first); err != nil || len(list) != 2 { // and its log
		t.Errorf("the mirror lists the evidence %v, %v", list, err)
	}
	var written *WrittenError
	if _, err := Run(t.Context(), promotion(second), o); !errors.As(err, &written) || fault.CodeOf(err) != fault.CodeProblem {
		t.Errorf("second: %v", err)
	}
	next := promotion(second)
	next.To = next.To[2:]
	if r, err := Run(t.Context(), next, o); err != nil || r.Targets[0].State != "moved" || r.Targets[0].Was != first {
		t.Errorf("moved: %+v, %v", r, err)
	}
	if d := resolve(t, p.To[0]); d != first {
		t.Errorf("1.0 is now %s", d)
	}
}

// TestUntested promotes nothing without the evidence that it is to have.
func TestUntested(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.StartWithReferrers(t)
	from := host + "/team/ci"
	key, _, _ := evidencetest.Key(t)
	stranger, _, _ := evidencetest.Key(t)
	image, other := evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, from, "two", "two")
	cluster := "clariden"
	pass(t, from, key, evidence.Key{Image: image, Test: hash("good"), Cluster: cluster}, "good", evidence.Passed)
	pass(t, from, key, evidence.Key{Image: image, Test: hash("bad"), Cluster: cluster}, "bad", evidence.Failed)
	need := func(image store.Digest, texts ...string) []Required {
		var all []Required
		for _, text := range texts {
			all = append(all, Required{Key: evidence.Key{Image: image, Test: hash(text), Cluster: cluster}, Name: text})
		}
		return all
	}
	elsewhere := need(image, "good")
	elsewhere[0].Cluster = "eiger"
	for name, tc := range map[string]struct {
		p     Promotion
		trust *attest.PublicKey
		want  []string
	}{
		"failed":          {Promotion{Image: image, Recipe: true, Required: need(image, "good", "bad")}, key.Public(), []string{"bad on clariden"}},
		"changed test":    {Promotion{Image: image, Recipe: true, Required: need(image, "good", "changed", "new")}, key.Public(), []string{"changed on", "new on"}},
		"other image":     {Promotion{Image: other, Recipe: true, Required: need(other, "good")}, key.Public(), []string{"good on"}},
		"other cluster":   {Promotion{Image: image, Recipe: true, Required: elsewhere}, key.Public(), []string{"good on eiger"}},
		"all there is":    {Promotion{Image: image}, key.Public(), []string{"bad on clariden"}},
		"nothing":         {Promotion{Image: other}, key.Public(), []string{"there is no evidence in "}},
		"another's key":   {Promotion{Image: image, Recipe: true, Required: need(image, "good")}, stranger.Public(), []string{"not signed by a key that is trusted"}},
		"no key":          {Promotion{Image: image, Recipe: true, Required: need(image, "good")}, nil, []string{"no key says"}},
		"no such image":   {Promotion{Image: store.DigestOf(nil)}, key.Public(), []string{"holds no image"}},
		"nowhere":         {Promotion{Image: image, To: []Target{}}, key.Public(), []string{"nothing says where"}},
		"evidence, fully": {Promotion{Image: image, Recipe: true, Required: need(image, "good")}, key.Public(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := tc.p
			p.From = from
			target := Target{host + "/images", strings.NewReplacer(" ", "-", "'", "", ",", "").Replace(name), false}
			if p.To == nil {
				p.To = []Target{target}
			}
			o := quick(t)
			if tc.trust != nil {
				o.Trust = []*attest.PublicKey{tc.trust}
			}
			_, err := Run(t.Context(), p, o)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			if written := resolve(t, target) != ""; written != (tc.want == nil) {
				t.Errorf("written: %v (%v)", written, err)
			}
		})
	}
}

// TestRaces has two promoters of different images go for the same tags at once, sixty times: never do both win, and in the end one
// has. Most registries know no conditions.
func TestRaces(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			leaveOut(t, name)
			registrytest.Isolate(t)
			host, mirror := start(t), registrytest.StartWithReferrers(t)
			from := host + "/team/ci"
			images := [2]store.Digest{evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, from, "two", "two")}
			options := [2]Options{patient(t), patient(t)}
			rounds, sem := sync.WaitGroup{}, make(chan struct{}, 6)
			for round := range 60 {
				tag := fmt.Sprint("round-", round)
				targets := []Target{{host + "/images", tag, false}, {mirror + "/images", tag, false}}
				sem <- struct{}{}
				rounds.Go(func() {
					defer func() { <-sem }()
					race(t, from, images, targets, options)
				})
			}
			rounds.Wait()
		})
	}
}

// race has two promote at once, and judges.
func race(t *testing.T, from string, images [2]store.Digest, targets []Target, options [2]Options) {
	t.Helper()
	var errs [2]error
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			_, errs[i] = Run(t.Context(), Promotion{From: from, Image: images[i], Allowed: true, To: targets}, options[i])
		})
	}
	wg.Wait()
	winner := 0
	if errs[0] != nil {
		winner = 1
	}
	var written *WrittenError
	if errs[winner] != nil || !errors.As(errs[1-winner], &written) {
		t.Errorf("%s: %v and %v", targets[0], errs[0], errs[1])
	}
	for _, target := range targets {
		repo, err := registry.OpenForWriting(target.Repository, registry.Options{Fetch: options[0].Fetch})
		if err != nil {
			t.Error(err)
			return
		}
		if d, err := repo.Resolve(t.Context(), target.Tag); err != nil || d != images[winner] {
			t.Errorf("%s is %s, and %s won: %v", target, d, images[winner], err)
		}
	}
}

// TestRaceOfThree has two promote the same image and one another: the two do not take each other's claims back.
func TestRaceOfThree(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	from := host + "/team/ci"
	one, two := evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, from, "two", "two")
	options := []Options{patient(t), patient(t), patient(t)}
	for round := range 8 {
		target := Target{host + "/images", fmt.Sprint("round-", round), false}
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i, image := range []store.Digest{one, one, two} {
			wg.Go(func() {
				_, errs[i] = Run(t.Context(), Promotion{From: from, Image: image, Allowed: true, To: []Target{target}}, options[i])
			})
		}
		wg.Wait()
		d := resolve(t, target)
		if (errs[0] == nil) != (errs[1] == nil) || (errs[0] == nil) == (errs[2] == nil) || (errs[2] == nil) != (d == two) {
			t.Fatalf("round %d: %v, %v, %v; %s", round, errs[0], errs[1], errs[2], d)
		}
	}
}

// TestClaims meets claims of others: alive, withdrawn, dead, of the same image, to other repositories, and to a tag that begins alike.
func TestClaims(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	from := host + "/team/ci"
	one, two := evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, from, "two", "two")
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	long := strings.Repeat("x", 120)
	for name, tc := range map[string]struct {
		other   claim
		tag     string
		blocked bool
	}{
		"alive":      {claim{Image: two, State: active, Since: now.Add(-59 * time.Minute)}, "", true},
		"fast clock": {claim{Image: two, State: active, Since: now.Add(10 * time.Minute)}, "", true},
		"dead":       {claim{Image: two, State: active, Since: now.Add(-time.Hour)}, "", false},
		"withdrawn":  {claim{Image: two, State: withdrawn, Since: now}, "", false},
		"same image": {claim{Image: one, State: active, Since: now}, "", false},
		"elsewhere":  {claim{Image: two, State: active, Since: now, Targets: []string{host + "/others"}}, "", false},
		"alike":      {claim{Image: two, State: active, Since: now, Tag: "alike.rc1"}, "", false},
		"long":       {claim{Image: two, State: active, Since: now}, long, true},
		"long alike": {claim{Image: two, State: active, Since: now, Tag: long + "y"}, long + "z", false},
	} {
		t.Run(name, func(t *testing.T) {
			target := Target{host + "/images", strings.ReplaceAll(name, " ", "-"), false}
			if tc.tag != "" {
				target.Tag = tc.tag
			}
			o := quick(t)
			o.Tries, o.Now = 3, func() time.Time { return now }
			waits := 0
			o.Wait = func(context.Context, int) error { waits++; return nil }
			other := tc.other
			other.Owner = newOwner()
			if other.Tag == "" {
				other.Tag = target.Tag
			}
			if other.Targets == nil {
				other.Targets = []string{target.Repository}
			}
			cs := &claims{repository(t, from), from, o.Store, o.Fetch}
			if err := cs.write(t.Context(), &other); err != nil {
				t.Fatal(err)
			}
			_, err := Run(t.Context(), Promotion{From: from, Image: one, Allowed: true, To: []Target{target}}, o)
			d := resolve(t, target)
			if blocked := err != nil && d == ""; blocked != tc.blocked || tc.blocked && waits != 2 {
				t.Errorf("blocked: %v, after %d waits; %s, %v", blocked, waits, d, err)
			}
			tags, err := cs.repo.Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tag := range tags {
				if !isClaimTo(tag, target.Tag) {
					continue
				}
				c, _, err := cs.read(t.Context(), tag)
				if err != nil || c.Owner != other.Owner && c.State != withdrawn {
					t.Errorf("left behind: %+v, %v", c, err)
				}
			}
		})
	}
}

// TestFaults has the connection break at each request of a promotion in turn, for good. What users see is then nothing or the image, and
// a second run finishes.
func TestFaults(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	key, _, _ := evidencetest.Key(t)
	image := evidencetest.Image(t, inner+"/ci", "canonical", "image")
	k := evidence.Key{Image: image, Test: hash("gpu"), Cluster: "clariden"}
	pass(t, inner+"/ci", key, k, "gpu", evidence.Passed)
	attempt := func(host, name string, o Options) ([]Target, error) {
		to := []Target{{host + "/images-" + name, name, false}, {host + "/mirror-" + name, name, false}}
		_, err := Run(t.Context(), Promotion{From: host + "/ci", Image: image, Recipe: true, Required: []Required{{Key: k, Name: "gpu"}}, To: to}, o)
		return to, err
	}
	hasty := func() Options {
		o := quick(t, key.Public())
		o.Fetch = fetch.New(o.Store, fetch.Options{Backoff: time.Millisecond, MaxWait: time.Millisecond, Attempts: 1})
		return o
	}
	counter := registrytest.NewProxy(t, inner, nil)
	if _, err := attempt(counter.Host, "whole", hasty()); err != nil {
		t.Fatal(err)
	}
	all := counter.Requests.Load()
	if all < 20 {
		t.Fatalf("the promotion took only %d requests", all)
	}
	var wg sync.WaitGroup
	sem := make(chan struct{}, 4)
	for n := range all {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			var done atomic.Int64
			proxy := registrytest.NewProxy(t, inner, func(http.ResponseWriter, *http.Request) bool {
				if done.Add(1) > n {
					panic(http.ErrAbortHandler)
				}
				return false
			})
			name := fmt.Sprint("v", n)
			broken, err := attempt(proxy.Host, name, hasty())
			if err == nil {
				t.Errorf("%d requests of %d were enough", n, all)
			}
			_, err = attempt(inner, name, hasty())
			if err != nil {
				t.Errorf("run again after %d requests: %v", n, err)
			}
			for _, target := range broken {
				target.Repository = strings.Replace(target.Repository, proxy.Host, inner, 1)
				if d := resolve(t, target); d != image {
					t.Errorf("run again after %d requests, %s is %q", n, target, d)
				}
			}
		})
	}
	wg.Wait()
}

// TestForeignWriter has somebody write the tag by other means between the promotion's last look and its end: nobody is told that it
// is published.
func TestForeignWriter(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	from := inner + "/ci"
	one, two := evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, inner+"/images", "two", "two")
	foreign := repository(t, inner+"/images")
	data, mediaType, err := foreign.Manifest(t.Context(), string(two))
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodPut || !strings.HasSuffix(req.URL.Path, "/manifests/1.0") {
			return false
		}
		registrytest.Forward(inner, w, req)
		once.Do(func() {
			if err := foreign.PutManifest(context.Background(), data, mediaType, "1.0"); err != nil {
				t.Error(err)
			}
		})
		return true
	})
	_, err = Run(t.Context(), Promotion{From: from, Image: one, Allowed: true, To: []Target{{proxy.Host + "/images", "1.0", false}}}, quick(t))
	if err == nil || !strings.Contains(err.Error(), "read back") {
		t.Errorf("told that it is published: %v", err)
	}
}

// TestForeignWriterBefore has somebody write the tag by other means between the promotion's last look and its own writing, in a registry that
// knows conditions: what they wrote stays, and the promotion says so. An answer that was lost on the way is no such thing.
func TestForeignWriterBefore(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithConditions(t)
	from := inner + "/ci"
	one, two := evidencetest.Image(t, from, "one", "one"), evidencetest.Image(t, inner+"/images", "two", "two")
	foreign := repository(t, inner+"/images")
	for tag, image := range map[string]store.Digest{"other": two, "same": one} {
		evidencetest.Image(t, inner+"/images", "here", map[store.Digest]string{one: "one", two: "two"}[image])
		data, mediaType, err := foreign.Manifest(t.Context(), string(image))
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		proxy := registrytest.NewProxy(t, inner, func(_ http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, "/manifests/"+tag) {
				once.Do(func() {
					if err := foreign.PutManifest(context.Background(), data, mediaType, tag); err != nil {
						t.Error(err)
					}
				})
			}
			return false
		})
		_, err = Run(t.Context(), Promotion{From: from, Image: one, Allowed: true, To: []Target{{proxy.Host + "/images", tag, false}}}, quick(t))
		var written *WrittenError
		if image == one && err != nil || image == two && (!errors.As(err, &written) || written.Is != two) {
			t.Errorf("%s: %v", tag, err)
		}
		if d := resolve(t, Target{inner + "/images", tag, false}); d != image {
			t.Errorf("%s is %s, and was %s", tag, d, image)
		}
	}
}

// TestUnknownAnswers stops at answers that say nothing: they do not mean that a tag is free.
func TestUnknownAnswers(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	from := inner + "/ci"
	image := evidencetest.Image(t, from, "one", "one")
	for _, code := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusInternalServerError, http.StatusTeapot} {
		wrote := false
		proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.HasSuffix(req.URL.Path, "/manifests/1.0") {
				return false
			}
			wrote = wrote || req.Method == http.MethodPut
			w.WriteHeader(code)
			return true
		})
		_, err := Run(t.Context(), Promotion{From: from, Image: image, Allowed: true, To: []Target{{proxy.Host + "/images", "1.0", false}}}, quick(t))
		if err == nil || wrote {
			t.Errorf("%d: %v, written: %v", code, err, wrote)
		}
	}
}
