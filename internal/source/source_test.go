package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestMain lets the test binary be the process that is killed: it imports one image and exits.
func TestMain(m *testing.M) {
	if ref := os.Getenv("SCONCE_TEST_IMPORT"); ref != "" {
		os.Exit(importProcess(ref))
	}
	os.Exit(m.Run())
}

func importProcess(name string) int {
	ctx := context.Background()
	st, err := store.Open(ctx, os.Getenv("SCONCE_TEST_STORE"))
	if err == nil {
		var ref Ref
		if ref, err = Parse(name); err == nil {
			o := options(st)
			o.Fetch = fetch.New(st, fetch.Options{}) // no silence is too long, on a machine that has other things to do
			_, err = Import(ctx, ref, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func process(dir, ref string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SCONCE_TEST_IMPORT="+ref, "SCONCE_TEST_STORE="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

func options(st *store.Store) Options {
	return Options{Store: st, Fetch: fetch.New(st, fetch.Options{Attempts: 6, Backoff: time.Millisecond, MaxWait: 20 * time.Millisecond, IdleTimeout: time.Second})}
}

func mustParse(t *testing.T, s string) Ref {
	t.Helper()
	ref, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// rootTar is a root file system whose shell is a program for machine (ELF e_machine), with size bytes of noise.
func rootTar(t *testing.T, machine byte, size int) []byte {
	t.Helper()
	elf := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	elf[18] = machine
	noise := make([]byte, size)
	_, _ = rand.Read(noise) // never fails
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		data []byte
	}{{"usr/bin/dash", elf}, {"etc/hostname", []byte("x\n")}, {"noise", noise}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.data))}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(f.data) // into memory
	}
	_ = w.WriteHeader(&tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"})
	_ = w.WriteHeader(&tar.Header{Name: "usr/bin/sh", Typeflag: tar.TypeSymlink, Linkname: "dash"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const (
	amd64 = 62
	arm64 = 183
)

func put(t testing.TB, name string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// makeImage makes an OCI layout with an image of one layer of about size bytes, and returns skopeo's name for it.
func makeImage(t *testing.T, machine byte, size int) string {
	t.Helper()
	st := storetest.New(t)
	name := put(t, filepath.Join(t.TempDir(), "root.tar"), rootTar(t, machine, size))
	im, err := Import(t.Context(), mustParse(t, "tar:"+name), options(st))
	if err != nil {
		t.Fatal(err)
	}
	return writeLayout(t, st, im)
}

// writeLayout writes a layout by hand: package export builds on this one.
func writeLayout(t *testing.T, st *store.Store, im *image.Image) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range im.Refs() {
		data, err := st.ReadBlob(d, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "blobs/sha256", d.Hex()), data)
	}
	put(t, filepath.Join(dir, layoutFile), []byte(`{"imageLayoutVersion":"1.0.0"}`))
	put(t, filepath.Join(dir, layoutIndex), fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"annotations":{%q:"v1"}}]}`,
		im.MediaType, im.Digest, im.Size, refNameKey))
	return dir
}

func inRegistry(t *testing.T, layout, host, name string, args ...string) {
	t.Helper()
	registrytest.Skopeo(t, append([]string{"copy", "--dest-tls-verify=false", "oci:" + layout + ":v1", "docker://" + host + "/" + name}, args...)...)
}

// wantComplete checks that everything in the image can be read.
func wantComplete(t *testing.T, st *store.Store, im *image.Image) {
	t.Helper()
	for _, l := range im.Layers {
		if err := layer.Verify(t.Context(), st, l); err != nil {
			t.Error(err)
		}
	}
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := tree.ReadFile("etc/hostname", 10); err != nil || string(data) != "x\n" {
		t.Errorf("etc/hostname is %q, %v", data, err)
	}
}

func TestEverySource(t *testing.T) {
	registrytest.Isolate(t)
	layout := makeImage(t, amd64, 100_000)
	host := registrytest.Start(t, false)
	tmp := t.TempDir()
	inRegistry(t, layout, host, "team/app:v1")
	registrytest.Skopeo(t, "copy", "oci:"+layout+":v1", "oci-archive:"+tmp+"/oci.tar:v1")
	dockerImage := "docker://" + host + "/team/docker:v1" // of Docker's schema 2, gzip
	root := rootTar(t, amd64, 1000)
	made := put(t, tmp+"/made.tar", oldDocker(t, root, store.DigestOf(root)))
	registrytest.Skopeo(t, "copy", "--dest-tls-verify=false", "--format", "v2s2", "docker-archive:"+made, dockerImage)
	registrytest.Skopeo(t, "copy", "--src-tls-verify=false", dockerImage, "docker-archive:"+tmp+"/docker.tar:team/app:v1")
	for _, name := range []string{"oci.tar", "docker.tar"} {
		data, err := os.ReadFile(filepath.Join(tmp, name))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(data) // into memory
		w.Close()
		put(t, filepath.Join(tmp, name+".gz"), b.Bytes())
	}
	put(t, tmp+"/root.tar", root)
	rootDir := filepath.Join(tmp, "root")
	if err := os.Mkdir(rootDir, 0o755); err != nil {
		t.Fatal(err)
	}
	registrytest.Run(t, "tar", "-C", rootDir, "-xf", tmp+"/root.tar")
	registrytest.Run(t, "zstd", "-q", tmp+"/root.tar", "-o", tmp+"/root.tar.zst")
	registrytest.Run(t, "xz", "-k", tmp+"/root.tar")
	makeSIF(t, tmp+"/root.sif", makeSquashfs(t, rootDir, tmp+"/root.sqsh"), sif.Spec{Arch: "amd64"})
	for _, tc := range []struct {
		ref  string
		same bool // the manifest is that of the original
	}{
		{"docker://" + host + "/team/app:v1", true},
		{host + "/team/app:v1", true},
		{"docker://" + host + "#team/app:v1", true},
		{host + "/team/docker:v1", false},
		{"oci:" + layout, true},
		{"oci:" + layout + ":v1", true},
		{layout, true},
		{"oci-archive:" + tmp + "/oci.tar", true},
		{"oci-archive:" + tmp + "/oci.tar:v1", true},
		{tmp + "/oci.tar.gz", true},
		{tmp + "/oci.tar", true},
		{"docker-archive:" + tmp + "/docker.tar", false},
		{"docker-archive:" + tmp + "/docker.tar:team/app:v1", false},
		{"docker-archive:" + tmp + "/docker.tar:app:v1", false},
		{tmp + "/docker.tar", false},
		{tmp + "/docker.tar.gz", false},
		{"tar:" + tmp + "/root.tar", false},
		{tmp + "/root.tar.zst", false},
		{tmp + "/root.tar.xz", false},
		{"dir:" + rootDir, false},
		{rootDir, false},
		{"sqsh:" + tmp + "/root.sqsh", false},
		{tmp + "/root.sqsh", false},
		{"sif:" + tmp + "/root.sif", false},
		{tmp + "/root.sif", false},
	} {
		t.Run(strings.NewReplacer(tmp, "TMP", layout, "LAYOUT", host, "HOST").Replace(tc.ref), func(t *testing.T) {
			st := storetest.New(t)
			ref := mustParse(t, tc.ref)
			im, err := Import(t.Context(), ref, options(st))
			if err != nil {
				t.Fatal(err)
			}
			wantComplete(t, st, im)
			if im.Config.Architecture != "amd64" {
				t.Errorf("architecture %q", im.Config.Architecture)
			}
			if _, err := os.Stat(filepath.Join(layout, "blobs/sha256", im.Digest.Hex())); (err == nil) != tc.same {
				t.Errorf("manifest %s is that of the original: %t, want %t", im.Digest, err == nil, tc.same)
			}
			wantPinned(t, st, ref, im.Digest)
		})
	}
}

// wantPinned checks that what Resolve says is what Import brings, and is then found without network.
func wantPinned(t *testing.T, st *store.Store, ref Ref, want store.Digest) {
	t.Helper()
	pinned, digest, err := Resolve(t.Context(), ref, options(st))
	if err != nil || digest != want || pinned.Digest != want {
		t.Errorf("resolved to %s, %v, want %s", digest, err, want)
	}
	again, err := Parse(pinned.String())
	if err != nil || again != pinned {
		t.Errorf("%s is read as %+v, %v, want %+v", pinned, again, err, pinned)
	}
	offline := Options{Store: st, Offline: true}
	if im, err := Import(t.Context(), pinned, offline); err != nil || im.Digest != want {
		t.Errorf("offline: %v", err)
	}
}

func TestLogin(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	layout := makeImage(t, amd64, 1000)
	inRegistry(t, layout, host, "app:v1", "--dest-creds", registrytest.User+":"+registrytest.Password)
	st := storetest.New(t)
	_, err := Import(t.Context(), mustParse(t, host+"/app:v1"), options(st))
	if err == nil || !strings.Contains(fault.HintOf(err), "sconce login "+host) || !strings.Contains(err.Error(), "401") {
		t.Errorf("without login: %v, hint %q", err, fault.HintOf(err))
	}
	// skopeo writes the file that podman reads.
	file := filepath.Join(home, "auth.json")
	registrytest.Run(t, "skopeo", "login", "--tls-verify=false", "--authfile", file, "-u", registrytest.User, "-p", registrytest.Password, host)
	t.Setenv("REGISTRY_AUTH_FILE", file)
	im, err := Import(t.Context(), mustParse(t, host+"/app:v1"), options(st))
	if err != nil {
		t.Fatal(err)
	}
	wantComplete(t, st, im)
	if _, err := Import(t.Context(), mustParse(t, "docker://eve@"+host+"/app:v1"), options(storetest.New(t))); err == nil {
		t.Error("joe's login was used for eve")
	}
}

// index puts several platforms under one tag of a layout.
func indexLayout(t *testing.T, entries string) string {
	t.Helper()
	one, two := makeImage(t, amd64, 1000), makeImage(t, arm64, 1000)
	registrytest.Run(t, "cp", "-r", two+"/blobs", one)
	var first, second v1.IndexManifest
	for dir, index := range map[string]*v1.IndexManifest{one: &first, two: &second} {
		data, err := os.ReadFile(filepath.Join(dir, layoutIndex))
		if err == nil {
			err = json.Unmarshal(data, index)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := first.Manifests[0], second.Manifests[0]
	entries = strings.NewReplacer("AMD", fmt.Sprintf(`"mediaType":%q,"digest":%q,"size":%d`, a.MediaType, a.Digest, a.Size),
		"ARM", fmt.Sprintf(`"mediaType":%q,"digest":%q,"size":%d`, b.MediaType, b.Digest, b.Size)).Replace(entries)
	inner := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}`, entries)
	d := store.DigestOf(inner)
	put(t, filepath.Join(one, "blobs/sha256", d.Hex()), inner)
	put(t, filepath.Join(one, layoutIndex), fmt.Appendf(nil,
		`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":%q,"size":%d,"annotations":{%q:"v1"}}]}`, d, len(inner), refNameKey))
	return one
}

func TestPlatforms(t *testing.T) {
	registrytest.Isolate(t)
	const attestation = `{ARM,"platform":{"os":"unknown","architecture":"unknown"},"annotations":{"vnd.docker.reference.type":"attestation-manifest"}}`
	host := registrytest.Start(t, false)
	for i, entries := range []string{
		`{ARM,"platform":{"os":"linux","architecture":"arm64","variant":"v8"}},{AMD,"platform":{"os":"linux","architecture":"amd64"}},` + attestation,
		`{ARM},{AMD}`, // without platforms the configs are asked
	} {
		layout := indexLayout(t, entries)
		name := fmt.Sprintf("%s/multi%d:v1", host, i)
		refs := []string{"oci:" + layout}
		if i == 0 { // skopeo 1.9 cannot copy an index whose entries have no platform
			entries := indexLayout(t, `{ARM,"platform":{"os":"linux","architecture":"arm64","variant":"v8"}},{AMD,"platform":{"os":"linux","architecture":"amd64"}}`)
			inRegistry(t, entries, host, strings.TrimPrefix(name, host+"/"), "--all")
			refs = append(refs, name)
		}
		for _, ref := range refs {
			for _, want := range []v1.Platform{{OS: "linux", Architecture: "arm64"}, {OS: "linux", Architecture: "arm64", Variant: "v8"}, {OS: "linux", Architecture: "amd64"}} {
				o := options(storetest.New(t))
				o.Platform = want
				im, err := Import(t.Context(), mustParse(t, ref), o)
				if err != nil {
					t.Fatalf("%s for %s: %v", ref, want, err)
				}
				if im.Config.Architecture != want.Architecture {
					t.Errorf("%s for %s is %s", ref, want, im.Config.Architecture)
				}
			}
			o := options(storetest.New(t))
			o.Platform = v1.Platform{OS: "linux", Architecture: "ppc64le"}
			_, err := Import(t.Context(), mustParse(t, ref), o)
			if err == nil || !strings.Contains(err.Error(), "amd64") || !strings.Contains(err.Error(), "arm64") || strings.Contains(err.Error(), "unknown") {
				t.Errorf("%s for ppc64le: %v, want an error that lists what there is", ref, err)
			}
		}
	}
}

// A platform is words, in an image as in an index: it is printed wherever an image is named.
func TestPlatformIsNoText(t *testing.T) {
	registrytest.Isolate(t)
	const forged = `"linux, 1 MB)\nerror: disk is broken"`
	layout := indexLayout(t, `{ARM,"platform":{"os":`+forged+`,"architecture":"arm64"}},{AMD,"platform":{"os":"linux","architecture":"amd64"}}`)
	o := options(storetest.New(t))
	o.Platform = v1.Platform{OS: "linux", Architecture: "amd64"}
	if _, err := Import(t.Context(), mustParse(t, "oci:"+layout), o); err == nil || !strings.Contains(err.Error(), "cannot be a part of a platform") || strings.Contains(err.Error(), "\n") {
		t.Errorf("in an index: %v", err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux, 1 MB)\nerror: disk is broken", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if p, err := ggcrlayout.Write(dir, empty.Index); err != nil || p.AppendImage(image) != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), mustParse(t, "oci:"+dir), options(storetest.New(t))); err == nil || !strings.Contains(err.Error(), "cannot be a part of a platform") {
		t.Errorf("in a configuration: %v", err)
	}
	if _, err := Outline(t.Context(), mustParse(t, "oci:"+dir), options(storetest.New(t))); err == nil || !strings.Contains(err.Error(), "cannot be a part of a platform") {
		t.Errorf("in a configuration that is looked at: %v", err)
	}
}

func TestSingleImageOfAnotherPlatform(t *testing.T) {
	registrytest.Isolate(t)
	layout := makeImage(t, arm64, 1000)
	o := options(storetest.New(t))
	if _, err := Import(t.Context(), mustParse(t, layout), o); err != nil {
		t.Errorf("no platform asked for: %v", err)
	}
	o.Platform = v1.Platform{OS: "linux", Architecture: "amd64"}
	var wrong *PlatformError
	if _, err := Import(t.Context(), mustParse(t, layout), o); !errors.As(err, &wrong) {
		t.Errorf("arm64 image for amd64: error %v", err)
	}
	name := put(t, filepath.Join(t.TempDir(), "r.tar"), rootTar(t, arm64, 10))
	if _, err := Import(t.Context(), mustParse(t, "tar:"+name), o); !errors.As(err, &wrong) {
		t.Errorf("arm64 root for amd64: error %v", err)
	}
}

// trouble fails requests in turn and then lets everything pass.
func TestFaultyRegistry(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	layout := makeImage(t, amd64, 4<<20)
	inRegistry(t, layout, host, "app:v1")
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tc := range []struct {
		name  string
		fail  func(w http.ResponseWriter, r *http.Request)
		times int64
		want  string
	}{
		{"429", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1000")
			w.WriteHeader(http.StatusTooManyRequests)
		}, 2, ""},
		{"500", status(500), 2, ""},
		{"hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 1, ""},
		{"cut before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 2, ""},
		{"403 for good", status(403), 1 << 30, "403 Forbidden"},
		{"404 for good", status(404), 1 << 30, "404 Not Found"},
		{"500 for good", status(500), 1 << 30, "gave up"},
	} {
		for _, part := range []string{"/manifests/", "/blobs/"} {
			t.Run(tc.name+part, func(t *testing.T) {
				var n atomic.Int64
				proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.Contains(r.URL.Path, part) || n.Add(1) > tc.times {
						return false
					}
					tc.fail(w, r)
					return true
				})
				st := storetest.New(t)
				im, err := Import(t.Context(), mustParse(t, proxy.Host+"/app:v1"), options(st))
				if tc.want != "" {
					if err == nil || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("error %v, want %q", err, tc.want)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				wantComplete(t, st, im)
			})
		}
	}
}

// cutBlobs ends the first times connections that carry a blob of more than half bytes, after half bytes.
func cutBlobs(host string, half int64, times int64) func(w http.ResponseWriter, r *http.Request) bool {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && n.Add(1) <= times+1 { // the first is the config
			registrytest.Forward(host, registrytest.CutWriter(w, half), r)
			return true
		}
		return false
	}
}

func TestBlobResumes(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	const size = 8 << 20
	inRegistry(t, makeImage(t, amd64, size), host, "app:v1")
	proxy := registrytest.NewProxy(t, host, cutBlobs(host, size/2, 1))
	st := storetest.New(t)
	im, err := Import(t.Context(), mustParse(t, proxy.Host+"/app:v1"), options(st))
	if err != nil {
		t.Fatal(err)
	}
	wantComplete(t, st, im)
	if sent := proxy.Sent.Load(); sent > size*5/4 {
		t.Errorf("%d bytes sent for a layer of %d that was cut in the middle", sent, size)
	}
}

func TestKilledPullGoesOn(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	const size = 8 << 20
	inRegistry(t, makeImage(t, amd64, size), host, "app:v1")
	var hung atomic.Bool
	reached := make(chan struct{})
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		registrytest.Forward(host, &hangWriter{ResponseWriter: w, left: size / 2, hung: &hung, reached: reached, done: r.Context().Done()}, r)
		return true
	})
	dir := t.TempDir()
	victim := process(dir, proxy.Host+"/app:v1")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	storetest.WaitForPartial(t, dir, size*3/8)
	_ = victim.Process.Kill()
	_ = victim.Wait() // it was killed: an error is right
	before := proxy.Sent.Load()
	if err := process(dir, proxy.Host+"/app:v1").Run(); err != nil {
		t.Fatal(err)
	}
	if again := proxy.Sent.Load() - before; again > size*3/4 {
		t.Errorf("%d bytes sent after the kill: nothing was resumed", again)
	}
}

// hangWriter passes some bytes of the first big answer and then waits for the client to die.
type hangWriter struct {
	http.ResponseWriter
	left    int
	hung    *atomic.Bool
	reached chan struct{}
	done    <-chan struct{}
}

func (w *hangWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if w.left -= n; w.left <= 0 && !w.hung.Swap(true) {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		close(w.reached)
		<-w.done
		return 0, io.ErrClosedPipe
	}
	return n, err
}

func TestPullsShareDownloads(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	inRegistry(t, makeImage(t, amd64, 4<<20), host, "app:v1")
	var mu sync.Mutex
	gets := map[string]int{}
	proxy := registrytest.NewProxy(t, host, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			mu.Lock()
			gets[r.URL.Path]++
			mu.Unlock()
			time.Sleep(200 * time.Millisecond) // long enough for the other process to arrive
		}
		return false
	})
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := process(dir, proxy.Host+"/app:v1").Run(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	mu.Lock() // the server's goroutines have no other order with this one
	defer mu.Unlock()
	for path, n := range gets {
		if n != 1 {
			t.Errorf("%s was downloaded %d times", path, n)
		}
	}
	if len(gets) != 2 {
		t.Errorf("%d blobs were downloaded, want the config and a layer", len(gets))
	}
}

func TestWrongBytesFromRegistry(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	inRegistry(t, makeImage(t, amd64, 1000), host, "app:v1")
	proxy := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		registrytest.Forward(host, &flipper{w}, r)
		return true
	})
	st := storetest.New(t)
	_, err := Import(t.Context(), mustParse(t, proxy.Host+"/app:v1"), options(st))
	var mismatch *store.MismatchError
	if !errors.As(err, &mismatch) || st.HasBlob(mismatch.Got) {
		t.Errorf("error %v, want a mismatch and nothing kept", err)
	}
}

// flipper changes a bit of everything.
type flipper struct{ http.ResponseWriter }

func (f *flipper) Write(p []byte) (int, error) {
	p = bytes.Clone(p)
	p[0] ^= 1
	return f.ResponseWriter.Write(p)
}

func TestMirror(t *testing.T) {
	home := registrytest.Isolate(t)
	real, mirror := registrytest.Start(t, false), registrytest.Start(t, false)
	layout := makeImage(t, amd64, 1000)
	inRegistry(t, layout, real, "team/app:v1")
	conf := fmt.Sprintf("[[registry]]\nprefix = \"quay.example\"\nlocation = %q\n[[registry.mirror]]\nlocation = %q\n", real, mirror+"/cache")
	put(t, filepath.Join(home, "registries.conf"), []byte(conf))
	ref := mustParse(t, "quay.example/team/app:v1")
	if _, err := Import(t.Context(), ref, options(storetest.New(t))); err != nil {
		t.Errorf("a mirror without the image: %v", err)
	}
	inRegistry(t, layout, mirror, "cache/team/app:v1")
	st := storetest.New(t)
	im, err := Import(t.Context(), ref, options(st))
	if err != nil {
		t.Fatal(err)
	}
	if got := registry.Origins(st, im.Layers[0].Digest); len(got) != 1 || got[0] != mirror+"/cache/team/app" {
		t.Errorf("the layer came from %v, want the mirror", got)
	}
}

func TestOffline(t *testing.T) {
	registrytest.Isolate(t)
	st := storetest.New(t)
	_, err := Import(t.Context(), mustParse(t, "debian:bookworm"), Options{Store: st, Offline: true})
	if !errors.Is(err, fetch.ErrOffline) || !strings.Contains(err.Error(), "docker.io/library/debian:bookworm") {
		t.Errorf("error %v", err)
	}
}

func TestStoredImages(t *testing.T) {
	st := storetest.New(t)
	name := put(t, filepath.Join(t.TempDir(), "root.tar"), rootTar(t, amd64, 10))
	im, err := Import(t.Context(), mustParse(t, name), options(st))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.PutImage(store.ImageRef{Name: "app", Tag: "v1", Digest: im.Digest}, im.Refs()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"app", "app:v1", "store:app:v1"} {
		ref, err := ParseIn(s, st)
		if err != nil || ref.Transport != Store {
			t.Fatalf("%s: %v, %v", s, ref, err)
		}
		if got, err := Import(t.Context(), ref, options(st)); err != nil || got.Digest != im.Digest {
			t.Errorf("%s: %v", s, err)
		}
	}
	for name, hint := range map[string]string{
		"other":            `no image "other" in the store (see`,
		"nvcr.io/nvidia/x": "",
		"docker://app:v2":  "",
		"docker://other:1": "",
	} {
		ref, err := ParseIn(name, st)
		if err != nil || ref.Transport != Docker {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
		got := fault.HintOf(Explain(errors.New("not there"), name, ref, st))
		if !strings.Contains(got, hint) || (hint == "") != (got == "") {
			t.Errorf("%s: the hint is %q, and not %q", name, got, hint)
		}
	}
}

// A slip in a tag leads to no stranger's image.
func TestOtherTag(t *testing.T) {
	st := storetest.New(t)
	im, err := Import(t.Context(), mustParse(t, put(t, filepath.Join(t.TempDir(), "root.tar"), rootTar(t, amd64, 10))), options(st))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.PutImage(store.ImageRef{Name: "app", Tag: "v1", Digest: im.Digest}, im.Refs()); err != nil {
		t.Fatal(err)
	}
	_, err = ParseIn("app:v2", st)
	if err == nil || !strings.Contains(err.Error(), `no image "app:v2" in the store, but there is app:v1`) || !strings.Contains(fault.HintOf(err), "docker://app:v2") {
		t.Errorf("%v, %s", err, fault.HintOf(err))
	}
	for _, name := range []string{"docker://app:v2", "team/app:v2", "apps", "apps:v2", "docker://apps:v1"} {
		if ref, err := ParseIn(name, st); err != nil || ref.Transport != Docker {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
	}
	// Nor does one in the name, when the tag is right.
	_, err = ParseIn("apps:v1", st)
	if err == nil || !strings.Contains(err.Error(), `no image "apps:v1" in the store, but there is app:v1`) || !strings.Contains(fault.HintOf(err), "docker://apps:v1") {
		t.Errorf("%v, %s", err, fault.HintOf(err))
	}
}

// What runs is what its user has, or has said where it is from: a name alone leads to no stranger's image.
func TestParseToRun(t *testing.T) {
	st := storetest.New(t)
	im, err := Import(t.Context(), mustParse(t, put(t, filepath.Join(t.TempDir(), "root.tar"), rootTar(t, amd64, 10))), options(st))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "team/tool"} {
		if err := st.PutImage(store.ImageRef{Name: name, Tag: "v1", Digest: im.Digest}, im.Refs()); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]Transport{
		"app": Store, "app:v1": Store, "team/tool": Store, string(im.Digest): Store,
		"docker://python": Docker, "docker.io/library/python": Docker, "nvcr.io/nvidia/pytorch:25.11-py3": Docker, "localhost/x": Docker, "somebody/else": Docker,
		"me@host#x": Docker, "python@sha256:" + strings.Repeat("0", 64): Docker,
	} {
		if ref, err := ParseToRun(name, st); err != nil || ref.Transport != want {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
	}
	for name, near := range map[string]string{"python": "", "python:3.12": "", "apps": "app:v1", "app:v2": "app:v1", "team/tool:v2": "team/tool:v1"} {
		_, err := ParseToRun(name, st)
		want := fmt.Sprintf("there is no image %q in the store", name)
		if near != "" {
			want += ", but there is " + near
		}
		if err == nil || err.Error() != want || !strings.Contains(fault.HintOf(err), "docker://"+name) {
			t.Errorf("%s: %v, %s", name, err, fault.HintOf(err))
		}
	}
}

// A file that is no image is not looked for in a registry, whose image of that name would be somebody else's.
func TestFileWithoutImage(t *testing.T) {
	st := storetest.New(t)
	t.Chdir(t.TempDir())
	put(t, "sconce.toml", []byte("name = \"app\"\n"))
	_, err := ParseIn("sconce.toml", st)
	if err == nil || !strings.Contains(err.Error(), `the file "sconce.toml" holds no image`) || !strings.Contains(fault.HintOf(err), "`sconce build`") {
		t.Errorf("%v, %s", err, fault.HintOf(err))
	}
	if err := os.Mkdir("debian", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"docker://sconce.toml", "debian"} {
		if ref, err := ParseIn(name, st); err != nil || ref.Transport != Docker {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
	}
}

// A registry that was not reached is told as such: what can be done about the network is the better hint.
func TestExplainsNoWayOut(t *testing.T) {
	st := storetest.New(t)
	nobody := fmt.Errorf("read the manifest: %w", &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "registry.invalid"}})
	err := Explain(nobody, "python", Ref{Transport: Docker, Value: "registry.invalid/library/python"}, st)
	if !errors.Is(err, nobody) || !strings.Contains(err.Error(), `no image "python" in the store`) || fault.HintOf(err) != "" {
		t.Errorf("%v, %q", err, fault.HintOf(err))
	}
}

func TestHelpfulRefusals(t *testing.T) {
	tmp := t.TempDir()
	for _, tc := range []struct{ ref, want, hint string }{
		{put(t, tmp+"/a.txt", []byte("hello")), "neither", ""},
		{put(t, tmp+"/empty", nil), "neither", ""},
		{tmp, "neither", ""},
		{"./no/such/file", "no such file", ""},
		{"docker-daemon:x", "docker-daemon", "docker save"},
		{"podman://x", "podman", "podman save"},
		{"library://x/y", "library", "apptainer pull image.sif library://x/y"},
		{"sqsh:", "path is missing", ""},
		{"https://host/x", "https", "docker://"},
		{"UPPER/case", "not a registry", ""},
		{"", "empty", ""},
		{"oci:", "path is missing", ""},
	} {
		_, err := Parse(tc.ref)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(fault.HintOf(err), tc.hint) {
			t.Errorf("%q: error %v with hint %q, want %q and %q", tc.ref, err, fault.HintOf(err), tc.want, tc.hint)
		}
	}
}

func TestParse(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("debian", 0o755); err != nil { // not an image, only a directory
		t.Fatal(err)
	}
	put(t, "a:b.tar", nil)
	const d = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for s, want := range map[string]string{
		"debian":                            "docker://docker.io/library/debian:latest",
		"debian:bookworm":                   "docker://docker.io/library/debian:bookworm",
		"debian:bookworm" + d:               "docker://docker.io/library/debian:bookworm" + d,
		"debian" + d:                        "docker://docker.io/library/debian" + d,
		"r.org:5000/a/b":                    "docker://r.org:5000/a/b:latest",
		"docker://nvcr.io#nvidia/cuda:12":   "docker://nvcr.io/nvidia/cuda:12",
		"docker://joe@nvcr.io#nvidia/cuda":  "docker://joe@nvcr.io/nvidia/cuda:latest",
		"docker://$oauthtoken@nvcr.io#a:1":  "docker://$oauthtoken@nvcr.io/a:1",
		"docker://joe@r.org/a:1":            "docker://joe@r.org/a:1",
		"docker://joe@debian":               "docker://joe@docker.io/library/debian:latest",
		"oci:dir":                           "oci:dir",
		"oci:dir:tag":                       "oci:dir:tag",
		"oci:dir:tag" + d:                   "oci:dir:tag" + d,
		"oci:dir" + d:                       "oci:dir" + d,
		"docker-archive:f.tar:team/app:1.0": "docker-archive:f.tar:team/app:1.0",
		"oci-archive:a:b.tar":               "oci-archive:a:b.tar",
		"tar:x:y":                           "tar:x:y",
		"sqsh:x:y.sqsh":                     "sqsh:x:y.sqsh",
		"sif:x.sif" + d:                     "sif:x.sif" + d,
		"store:app:v1":                      "store:app:v1",
	} {
		ref, err := Parse(s)
		if err != nil || ref.String() != want {
			t.Errorf("%s: %s, %v, want %s", s, ref, err, want)
		}
	}
	if ref := mustParse(t, "oci-archive:a:b.tar:v1"); ref.Value != "a:b.tar" || ref.Tag != "v1" {
		t.Errorf("a path with a colon: %+v", ref)
	}
	for _, s := range []string{"debian@sha256:12", "docker://a@b@c", "a b", "docker://", "r.org/a\x1b[31m"} {
		if ref, err := Parse(s); err == nil {
			t.Errorf("%q was read as %s", s, ref)
		}
	}
}

func TestLayoutTags(t *testing.T) {
	layout := makeImage(t, amd64, 10)
	_, err := Open(t.Context(), mustParse(t, "oci:"+layout+":v2"), options(storetest.New(t)))
	if err == nil || !strings.Contains(err.Error(), `"v2"; there is v1`) {
		t.Errorf("error %v does not say which tags there are", err)
	}
}

func TestDamagedLayout(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"cut":     func(p string) error { return os.Truncate(p, 500) },
		"changed": flipByte,
		"gone":    os.Remove,
		"a pipe": func(p string) error {
			return errors.Join(os.Remove(p), exec.Command("mkfifo", p).Run())
		},
	} {
		t.Run(name, func(t *testing.T) {
			layout := makeImage(t, amd64, 3000)
			st := storetest.New(t)
			im, err := Import(t.Context(), mustParse(t, layout), options(st))
			if err != nil {
				t.Fatal(err)
			}
			for _, victim := range []store.Digest{im.Layers[0].Digest, im.Digest} {
				path := filepath.Join(layout, "blobs/sha256", victim.Hex())
				good, err := os.ReadFile(path)
				if err == nil {
					err = harm(path)
				}
				if err != nil {
					t.Fatal(err)
				}
				fresh := storetest.New(t)
				if _, err := Import(t.Context(), mustParse(t, layout), options(fresh)); err == nil || !strings.Contains(err.Error(), victim.Hex()) {
					t.Errorf("error %v does not name the blob", err)
				}
				if fresh.HasBlob(victim) {
					t.Error("the damaged blob was kept")
				}
				_ = os.Remove(path)
				put(t, path, good)
			}
		})
	}
}

func flipByte(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return os.WriteFile(path, data, 0o600)
}

// dockerTar makes a docker archive of members in their order.
func dockerTar(members ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i+1 < len(members); i += 2 {
		h := &tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1]))}
		if target, ok := strings.CutPrefix(members[i+1], "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, target, 0
		}
		_ = w.WriteHeader(h) // into memory
		if h.Size > 0 {
			_, _ = io.WriteString(w, members[i+1])
		}
	}
	w.Close()
	return b.Bytes()
}

// oldDocker is an archive as old versions of docker save wrote it: a directory for each layer, the second a link.
func oldDocker(t testing.TB, layerBytes []byte, diffID store.Digest) []byte {
	t.Helper()
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[%q,%q]}}`, diffID, diffID)
	return dockerTar("aa/layer.tar", string(layerBytes), "bb/layer.tar", "-> ../aa/layer.tar", "c.json", config,
		"manifest.json", `[{"Config":"c.json","RepoTags":["app:v1"],"Layers":["aa/layer.tar","bb/layer.tar"]}]`)
}

// GNU tar makes a file that it is told twice a link to itself.
func TestArchiveOfFilesToldTwice(t *testing.T) {
	root := rootTar(t, amd64, 1000)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "layer.tar"), root)
	put(t, filepath.Join(dir, "c.json"), fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[%q]}}`, store.DigestOf(root)))
	put(t, filepath.Join(dir, "manifest.json"), []byte(`[{"Config":"c.json","RepoTags":["app:v1"],"Layers":["layer.tar"]}]`))
	file := filepath.Join(t.TempDir(), "a.tar")
	if out, err := exec.Command(tooltest.Path(t, "tar"), "--create", "--file", file, "--directory", dir, "layer.tar", "c.json", "manifest.json", "layer.tar").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(tooltest.Path(t, "tar"), "--list", "--verbose", "--file", file).Output(); err != nil || !strings.Contains(string(out), "layer.tar link to layer.tar") {
		t.Fatalf("this tar links nothing to itself: %v\n%s", err, out)
	}
	st := storetest.New(t)
	im, err := Import(t.Context(), mustParse(t, file), options(st))
	if err != nil {
		t.Fatal(err)
	}
	wantComplete(t, st, im)
}

func TestDockerArchiveForms(t *testing.T) {
	root := rootTar(t, amd64, 1000)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(root) // into memory
	w.Close()
	diffID := store.DigestOf(root)
	for name, data := range map[string][]byte{"plain": root, "compressed": zipped.Bytes()} {
		t.Run(name, func(t *testing.T) {
			file := put(t, filepath.Join(t.TempDir(), "a.tar"), oldDocker(t, data, diffID))
			st := storetest.New(t)
			im, err := Import(t.Context(), mustParse(t, file), options(st))
			if err != nil {
				t.Fatal(err)
			}
			wantComplete(t, st, im)
			if im.Layers[0].Digest != store.DigestOf(data) || len(im.Layers) != 2 {
				t.Errorf("the layer was changed: %+v", im.Layers)
			}
		})
		t.Run(name+" with a wrong hash", func(t *testing.T) {
			file := put(t, filepath.Join(t.TempDir(), "a.tar"), oldDocker(t, data, store.DigestOf([]byte("other"))))
			var mismatch *store.MismatchError
			if _, err := Import(t.Context(), mustParse(t, file), options(storetest.New(t))); !errors.As(err, &mismatch) {
				t.Errorf("error %v, want a MismatchError", err)
			}
		})
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"debian:12", "docker://u@r.org#a/b:c", "oci:d:t", "docker-archive:f:a:b", "tar:x", "sqsh:x", "sif:x", "a@sha256:" + strings.Repeat("0", 64)} {
		f.Add(s)
	}
	dir := f.TempDir()
	if err := os.Chdir(dir); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if looksLikePath(s) {
			return // the machine's own files decide
		}
		ref, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(ref.String())
		if err != nil || again != ref {
			t.Errorf("%q is %+v, which is written %q and read as %+v (%v)", s, ref, ref, again, err)
		}
	})
}

func FuzzDockerArchive(f *testing.F) {
	f.Add(oldDocker(f, []byte("layer"), store.DigestOf([]byte("layer"))))
	f.Add(dockerTar("manifest.json", `[{"Config":"c","Layers":null}]`, "c", "-> c"))
	st, err := store.Open(context.Background(), f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		name := put(t, filepath.Join(t.TempDir(), "a"), data)
		_, _ = recognise(name)
		for _, transport := range []Transport{DockerArchive, OCIArchive} {
			img, err := Open(t.Context(), Ref{Transport: transport, Value: name}, Options{Store: st})
			if err != nil {
				continue
			}
			if _, err := img.Digest(); err != nil {
				t.Errorf("opened, but without a digest: %v", err)
			}
		}
	})
}

// An image of the store may have the name of the directory that it was built from.
func TestParseInBesideADirectory(t *testing.T) {
	st := storetest.New(t)
	t.Chdir(t.TempDir())
	if err := os.Mkdir("app", 0o755); err != nil {
		t.Fatal(err)
	}
	digest, err := st.PutBlob([]byte("manifest"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.PutImage(store.ImageRef{Name: "app", Tag: "latest", Digest: digest}, []store.Digest{digest}); err != nil {
		t.Fatal(err)
	}
	if ref, err := ParseIn("app", st); err != nil || ref.Transport != Store || ref.Digest != digest {
		t.Errorf("%+v, %v", ref, err)
	}
	if err := os.WriteFile("app/oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if ref, err := ParseIn("app", st); err != nil || ref.Transport != OCI {
		t.Errorf("with a layout in the directory: %+v, %v", ref, err)
	}
}
