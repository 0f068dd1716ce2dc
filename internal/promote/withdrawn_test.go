package promote

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// withdrawal is the withdrawing of an image of HOST/ci from HOST/users.
func withdrawal(t *testing.T, host string, image store.Digest, key *attest.PrivateKey) error {
	t.Helper()
	o := WithdrawOptions{Options: quick(t), Key: key}
	_, err := Withdraw(t.Context(), Withdrawing{From: host + "/ci", Image: image, Users: []string{host + "/users"}, Because: "it is bad"}, o)
	return err
}

// toUsers promotes an image of HOST/ci to HOST/users.
func toUsers(t *testing.T, host string, image store.Digest, tag string, key *attest.PrivateKey) error {
	t.Helper()
	_, err := Run(t.Context(), Promotion{From: host + "/ci", Image: image, To: []Target{{host + "/users", tag, false}}}, quick(t, key.Public()))
	return err
}

// Whoever withdraws an image while it is promoted has the tag gone in the end, whichever came first.
func TestWithdrawBesidePromotion(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.StartWithReferrers(t)
	key, _, _ := evidencetest.Key(t)
	for n := range 12 {
		tag := fmt.Sprint("v", n)
		image := evidencetest.Image(t, host+"/ci", "canonical-"+tag, tag)
		pass(t, host+"/ci", key, evidence.Key{Image: image, Test: hash("gpu"), Cluster: "clariden"}, "gpu", evidence.Passed)
		var promoted, withdrawn error
		var wg sync.WaitGroup
		wg.Go(func() { promoted = toUsers(t, host, image, tag, key) })
		wg.Go(func() { withdrawn = withdrawal(t, host, image, key) })
		wg.Wait()
		if withdrawn != nil {
			t.Fatalf("%s: %v", tag, withdrawn)
		}
		var refused *evidence.WithdrawnError
		if promoted != nil && !errors.As(promoted, &refused) {
			t.Errorf("%s: %v", tag, promoted)
		}
		if is := resolve(t, Target{host + "/users", tag, false}); is != "" {
			t.Errorf("%s is there still: %s; the promotion said %v", tag, is, promoted)
		}
		if err := toUsers(t, host, image, tag, key); !errors.As(err, &refused) {
			t.Errorf("%s is promoted again: %v", tag, err)
		}
	}
}

// Two who withdraw the same image at once both succeed.
func TestTwoWithdraw(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.StartWithReferrers(t)
	key, _, _ := evidencetest.Key(t)
	image := evidencetest.Image(t, host+"/ci", "canonical", "image")
	evidencetest.Image(t, host+"/users", "1", "image")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := withdrawal(t, host, image, key); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if is := resolve(t, Target{host + "/users", "1", false}); is != "" {
		t.Errorf("the tag is there still: %s", is)
	}
}

// Wherever the registry goes away while an image is withdrawn, the next run does the rest.
func TestWithdrawStopped(t *testing.T) {
	registrytest.Isolate(t)
	inner := registrytest.StartWithReferrers(t)
	key, _, _ := evidencetest.Key(t)
	for stop := 1; ; stop++ {
		text := fmt.Sprint("image ", stop)
		image := evidencetest.Image(t, inner+"/ci", fmt.Sprint("canonical-", stop), text)
		evidencetest.Image(t, inner+"/users", fmt.Sprint("v", stop), text)
		var mu sync.Mutex
		seen := 0
		proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			writes := r.Method == http.MethodPut || r.Method == http.MethodDelete
			if seen < stop && !writes {
				return false
			}
			if seen++; seen < stop {
				return false
			}
			if seen == stop {
				registrytest.Forward(inner, w, r)
			}
			panic(http.ErrAbortHandler)
		})
		err := withdrawal(t, proxy.Host, image, key)
		if err := withdrawal(t, inner, image, key); err != nil {
			t.Fatalf("stopped after write %d, and then: %v", stop, err)
		}
		if is := resolve(t, Target{inner + "/users", fmt.Sprint("v", stop), false}); is != "" {
			t.Errorf("stopped after write %d: the tag is there still", stop)
		}
		st, client := evidencetest.Client(t)
		b, failed := evidence.Open(inner+"/users", evidence.Options{Store: st, Fetch: client, Trust: []*attest.PublicKey{key.Public()}})
		if failed != nil {
			t.Fatal(failed)
		}
		if n, err := b.Note(t.Context(), image); err != nil || n == nil || !n.Withdrawn || !n.Trusted {
			t.Errorf("stopped after write %d: %+v, %v", stop, n, err)
		}
		if err == nil {
			if stop < 6 { // blobs, manifests, and the tag
				t.Errorf("it was never stopped after write %d", stop)
			}
			return
		}
	}
}

// A registry that deletes whole images only keeps the tags, and with --delete loses the image, unless an index lists it.
func TestWithdrawWhole(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	key, _, _ := evidencetest.Key(t)
	image := evidencetest.Image(t, host+"/ci", "canonical", "image")
	evidencetest.Image(t, host+"/users", "1", "image")
	evidencetest.Image(t, host+"/users", "2", "another")
	for _, c := range []struct {
		whole bool
		state string
		is    store.Digest
	}{{false, onlyWhole, image}, {true, "deleted with the image", ""}} {
		o := WithdrawOptions{Options: quick(t), Key: key}
		done, err := Withdraw(t.Context(), Withdrawing{From: host + "/ci", Image: image, Users: []string{host + "/users"}, Because: "bad", Delete: c.whole}, o)
		if err != nil || len(done.Tags) != 1 || done.Tags[0].State != c.state {
			t.Errorf("%+v, %v", done, err)
		}
		if is := resolve(t, Target{host + "/users", "1", false}); is != c.is {
			t.Errorf("the tag is %q, want %q", is, c.is)
		}
		if is := resolve(t, Target{host + "/users", "2", false}); is == "" {
			t.Error("the other image is gone")
		}
		if is := resolve(t, Target{host + "/ci", "canonical", false}); is != image {
			t.Error("staging lost it")
		}
	}
}
