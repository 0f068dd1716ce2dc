package test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// skopeo runs skopeo, which has to succeed.
func skopeo(t *testing.T, args ...string) string {
	t.Helper()
	return registrytest.Skopeo(t, args...)
}

// inspection is what skopeo says about an image.
type inspection struct {
	Digest       string
	Layers       []string
	Labels       map[string]string
	Architecture string
	Env          []string
}

func inspect(t *testing.T, args ...string) inspection {
	t.Helper()
	var in inspection
	if err := json.Unmarshal([]byte(skopeo(t, append([]string{"inspect"}, args...)...)), &in); err != nil {
		t.Fatal(err)
	}
	return in
}

// diffIDs are the hashes of an image's uncompressed layers, as skopeo reads them from its configuration.
func diffIDs(t *testing.T, ref string) []string {
	t.Helper()
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal([]byte(skopeo(t, "inspect", "--config", ref)), &config); err != nil {
		t.Fatal(err)
	}
	return config.RootFS.DiffIDs
}

// Every output is read to its last byte by skopeo, which checks each hash, and is the same image.
func TestSkopeoReadsEveryOutput(t *testing.T) {
	begin(t)
	tooltest.Path(t, "skopeo")
	ix, p := newIndex(t), newPlace(t, nil)
	p.take(lockedRecipe(t, ix, recipe(base(t).ref, few)), "app")
	outputs := []string{"oci:" + p.path("layout") + ":x", "oci-archive:" + p.path("oci.tar"), "docker-archive:" + p.path("docker.tar")}
	args := []string{"--locked", "app"}
	for _, o := range outputs {
		args = append(args, "-o", o)
	}
	digest := p.build(args...)
	want := diffIDs(t, outputs[0])
	if len(want) < 3 {
		t.Fatalf("only %d layers", len(want))
	}
	for i, o := range outputs {
		in := inspect(t, o)
		if i < 2 && in.Digest != digest {
			t.Errorf("%s has digest %s, want %s", o, in.Digest, digest)
		}
		if !slices.Contains(in.Env, "VIRTUAL_ENV=/opt/venv") || in.Labels["org.opencontainers.image.title"] != "app" {
			t.Errorf("skopeo reads from %s: %+v", o, in)
		}
		if got := diffIDs(t, o); !slices.Equal(got, want) {
			t.Errorf("%s holds layers %v, want %v", o, got, want)
		}
		skopeo(t, "copy", o, "dir:"+p.path(fmt.Sprint("copy", i)))
		// And back: what others write of it is read by sconce.
		skopeo(t, "copy", o, "oci:"+p.path(fmt.Sprint("back", i))+":x")
		if back := p.must("inspect", "oci:"+p.path(fmt.Sprint("back", i))+":x", "--json").stdout; !strings.Contains(back, want[len(want)-1]) {
			t.Errorf("%s, copied by skopeo, is not the same image: %s", o, back)
		}
	}
	p.wantTidy()
}

// requests counts what a registry is asked for.
type requests struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *requests) add(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[kind]++
}

// take returns the counts since the last call.
func (c *requests) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.counts
	c.counts = make(map[string]int)
	return old
}

// watch stands in front of a registry and counts: uploads begun, answered by a mount, and data and manifests sent.
func watch(t *testing.T, registry string) (host string, seen *requests) {
	t.Helper()
	seen = &requests{counts: make(map[string]int)}
	proxy := registrytest.NewProxy(t, registry, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPost && r.URL.Query().Get("mount") != "":
			registrytest.Forward(registry, &statusWriter{w, seen}, r)
			return true
		case r.Method == http.MethodPost:
			seen.add("upload")
		case r.Method == http.MethodPatch, r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/"):
			seen.add("data")
		case r.Method == http.MethodPut:
			seen.add("manifest")
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			seen.add("download")
		}
		return false
	})
	return proxy.Host, seen
}

type statusWriter struct {
	http.ResponseWriter
	seen *requests
}

func (w *statusWriter) WriteHeader(code int) {
	if code == http.StatusCreated {
		w.seen.add("mount")
	} else {
		w.seen.add("upload")
	}
	w.ResponseWriter.WriteHeader(code)
}

// A real registry takes a build, sends nothing twice, mounts across repositories, and gives the same image back to skopeo
// and to a store that has never seen it.
func TestPushAndPull(t *testing.T) {
	for _, login := range []bool{false, true} {
		t.Run(fmt.Sprintf("login=%v", login), func(t *testing.T) {
			begin(t)
			tooltest.Path(t, "skopeo")
			pushAndPull(t, login)
		})
	}
}

func pushAndPull(t *testing.T, login bool) {
	real := registrytest.Start(t, login)
	host, seen := watch(t, real)
	p := newPlace(t, nil)
	p.take(lockedRecipe(t, newIndex(t), recipe(base(t).ref, few)), "app")
	one, two := host+"/team/app:1", host+"/other/app:1"
	if login {
		p.fails(1, []string{"401", "hint: "}, "build", "--locked", "app", "--push", one)
		logIn(p, host)
		seen.take()
	}
	digest := p.build("--locked", "app", "--push", one)
	layers := len(diffIDs(t, "oci:"+export(p)))
	if n := seen.take(); n["upload"] != layers+1 || n["manifest"] != 1 {
		t.Errorf("the first push of %d layers made requests %v", layers, n)
	}
	p.build("--locked", "app", "--push", one)
	if n := seen.take(); n["upload"]+n["data"]+n["mount"] != 0 {
		t.Errorf("the second push made requests %v", n)
	}
	p.build("--locked", "app", "--push", two)
	if n := seen.take(); n["mount"] != layers+1 || n["upload"]+n["data"] != 0 || n["manifest"] != 1 {
		t.Errorf("a push to another repository made requests %v", n)
	}
	credentials := []string{"--tls-verify=false"}
	if login {
		credentials = append(credentials, "--creds", registrytest.User+":"+registrytest.Password)
	} else {
		credentials = append(credentials, "--no-creds")
	}
	for _, ref := range []string{one, two} {
		if in := inspect(t, append(credentials, "docker://"+strings.Replace(ref, host, real, 1))...); in.Digest != digest {
			t.Errorf("skopeo finds %s at %s, want %s", in.Digest, ref, digest)
		}
	}
	pullElsewhere(t, host, one, digest, login)
}

func pullElsewhere(t *testing.T, host, ref, digest string, login bool) {
	t.Helper()
	p := newPlace(t, ordinary(t))
	if login {
		p.fails(1, []string{"401"}, "pull", ref)
		logIn(p, host)
	}
	p.must("pull", ref, "--name", "mine:2")
	if got := p.must("images", "--json").stdout; !strings.Contains(got, digest) {
		t.Errorf("pulled something else than %s: %s", digest, got)
	}
	if v := p.must("--offline", "run", "mine:2", "--", "python", "-c", "import six, requests; print(six.__version__)"); v.stdout != "1.17.0\n" {
		t.Errorf("the pulled image printed: %v", v)
	}
	p.wantSound()
}

// export writes the image app:1 as a layout and returns its directory.
func export(p *place) string {
	p.t.Helper()
	out := p.path("layout")
	p.must("copy", "app:1", "oci:"+out)
	return out
}

// logIn leaves the registry's password where docker would.
func logIn(p *place, host string) {
	p.t.Helper()
	secret := base64.StdEncoding.EncodeToString([]byte(registrytest.User + ":" + registrytest.Password))
	p.write("home/.docker/config.json", fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, secret))
}

// An OCI layout holds images under several tags, and a tag moves.
func TestLayoutHoldsSeveralTags(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	b := base(t)
	p.write("a/sconce.toml", fmt.Sprintf("name = \"a\"\n\n[base]\nimage = %q\n\n[image]\nenv = { WHICH = \"a\" }\n", b.ref))
	p.write("b/sconce.toml", fmt.Sprintf("name = \"b\"\n\n[base]\nimage = %q\n\n[image]\nenv = { WHICH = \"b\" }\n", b.ref))
	layout := "oci:" + p.path("layout")
	a, z := p.build("a", "-o", layout+":a"), p.build("b", "-o", layout+":b")
	for tag, want := range map[string]string{"a": a, "b": z} {
		if in := inspect(t, layout+":"+tag); in.Digest != want || !slices.Contains(in.Env, "WHICH="+tag) {
			t.Errorf("skopeo reads %+v under tag %s", in, tag)
		}
	}
	if _, err := os.Stat(filepath.Join(p.path("layout"), "oci-layout")); err != nil {
		t.Error(err)
	}
	p.must("build", "b", "-o", layout+":a")
	if in := inspect(t, layout+":a"); in.Digest != z {
		t.Errorf("the tag did not move: %s", in.Digest)
	}
}
