package promote

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// The variable by which the test binary knows that it is to promote: HOST DIGEST TAG.
const victimVariable = "SCONCE_TEST_PROMOTE"

// promoteTo promotes an image of HOST/ci to two repositories.
func promoteTo(t *testing.T, host string, image store.Digest, tag string) ([]Target, error) {
	t.Helper()
	to := []Target{{host + "/images/" + tag, tag, false}, {host + "/mirror/" + tag, tag, false}}
	_, err := Run(t.Context(), Promotion{From: host + "/ci", Image: image, Allowed: true, To: to}, quick(t))
	return to, err
}

// TestVictim is what [TestKilled] starts and kills.
func TestVictim(t *testing.T) {
	task := strings.Fields(os.Getenv(victimVariable))
	if len(task) != 3 {
		return // an ordinary run of the tests
	}
	if _, err := promoteTo(t, task[0], store.Digest(task[1]), task[2]); err != nil {
		t.Fatal(err)
	}
}

// TestKilled kills a process that promotes, at points between its steps, before and after the registry has done what it was asked. A second
// run finishes, and then nobody else's image takes the tags.
func TestKilled(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			leaveOut(t, name)
			registrytest.Isolate(t)
			killPromotions(t, start(t), name != "referrers")
		})
	}
}

// killPromotions kills promotions in a registry. ownBlobs: what one repository has must be sent to another one.
func killPromotions(t *testing.T, inner string, ownBlobs bool) {
	t.Helper()
	image, other := evidencetest.Image(t, inner+"/ci", "one", "one"), evidencetest.Image(t, inner+"/ci", "two", "two")
	claims := func(path string) bool { return strings.Contains(path, "/manifests/claim.") }
	for name, at := range map[string]struct {
		method string
		path   func(string) bool
		nth    int
	}{
		"blob": {http.MethodPost, func(p string) bool {
			return strings.HasPrefix(p, "/v2/images/") && strings.Contains(p, "/blobs/uploads")
		}, 1},
		"second blob": {http.MethodPost, func(p string) bool {
			return strings.HasPrefix(p, "/v2/mirror/") && strings.Contains(p, "/blobs/uploads")
		}, 2},
		"manifest": {http.MethodPut, func(p string) bool {
			return strings.HasPrefix(p, "/v2/mirror/") && strings.HasSuffix(p, "/manifests/"+string(image))
		}, 1},
		"claim": {http.MethodPut, claims, 1},
		"list":  {http.MethodGet, func(p string) bool { return strings.HasSuffix(p, "/tags/list") && strings.HasPrefix(p, "/v2/ci/") }, 1},
		"first tag": {http.MethodPut, func(p string) bool {
			return strings.HasPrefix(p, "/v2/images/") && strings.Contains(p, "/manifests/v-")
		}, 1},
		"second tag": {http.MethodPut, func(p string) bool {
			return strings.HasPrefix(p, "/v2/mirror/") && strings.Contains(p, "/manifests/v-")
		}, 1},
		"withdrawal": {http.MethodPut, claims, 2},
		"reading back": {http.MethodHead, func(p string) bool {
			return strings.HasPrefix(p, "/v2/mirror/") && strings.Contains(p, "/manifests/v-")
		}, 3},
	} {
		if !ownBlobs && strings.HasSuffix(name, "blob") {
			continue // none is sent
		}
		for _, after := range []bool{false, true} {
			moment := map[bool]string{false: "before", true: "after"}[after]
			t.Run(moment+" "+name, func(t *testing.T) {
				victim := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.count=1")
				var out bytes.Buffer
				victim.Stdout, victim.Stderr = &out, &out
				started := make(chan struct{}) // victim.Process is there
				var mu sync.Mutex
				seen := 0
				proxy := registrytest.NewProxy(t, inner, func(w http.ResponseWriter, req *http.Request) bool {
					mu.Lock()
					defer mu.Unlock()
					if req.Method != at.method || !at.path(req.URL.Path) {
						return false
					}
					if seen++; seen != at.nth {
						return false
					}
					if after {
						registrytest.Forward(inner, w, req)
					}
					<-started
					_ = victim.Process.Kill()
					panic(http.ErrAbortHandler)
				})
				tag := "v-" + strings.ReplaceAll(moment+"-"+name, " ", "-")
				victim.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), victimVariable+"="+strings.Join([]string{proxy.Host, string(image), tag}, " "))
				if err := victim.Start(); err != nil {
					t.Fatal(err)
				}
				close(started)
				err := victim.Wait()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("it was not killed: %v\n%s", err, out.String())
				}
				to, err := promoteTo(t, inner, image, tag)
				if err != nil {
					t.Fatalf("run again: %v", err)
				}
				var written *WrittenError
				if _, err := promoteTo(t, inner, other, tag); !errors.As(err, &written) {
					t.Errorf("another image: %v", err)
				}
				for _, target := range to {
					if d := resolve(t, target); d != image {
						t.Errorf("%s is %q", target, d)
					}
				}
			})
		}
	}
}
