package engine_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// A uenv is found in a registry as uenv looks for it: by its tag the file, as oras names it, and by the file what describes it. With a
// registry that has an API for the latter, and with one that has none.
func TestPushUenv(t *testing.T) {
	registrytest.Isolate(t)
	locktest.Isolate(t)
	s := newSession(t)
	file := filepath.Join(t.TempDir(), "tools.squashfs")
	dir := t.TempDir()
	locktest.Write(t, dir, map[string]string{"opt/tools/bin/tool": "x", "opt/tools/meta/extra/reframe.yaml": "y: 1\n"})
	subject := open(t, s, "dir:"+dir)
	if _, err := s.Copy(t.Context(), subject, "uenv:"+file, engine.Writing{Uenv: engine.Uenv{Root: "/opt/tools", Mount: "/user-tools"}}); err != nil {
		t.Fatal(err)
	}
	const path = "/deploy/sys/gh200/tools/1.0"
	for kind, host := range map[string]string{"fallback": registrytest.Start(t, false), "API": registrytest.StartWithReferrers(t)} {
		t.Run(kind, func(t *testing.T) {
			name, err := s.PushUenv(t.Context(), file, host+path+":v1")
			if err != nil {
				t.Fatal(err)
			}
			base := "http://" + host + "/v2" + path
			var image, meta uenvManifest
			digest := fetchJSON(t, base+"/manifests/v1", &image)
			if !strings.HasSuffix(name, path+":v1@"+digest) || image.ArtifactType != "application/x-squashfs" || image.Config.MediaType != "application/vnd.oci.empty.v1+json" || len(image.Layers) != 1 {
				t.Fatalf("%s is %+v", name, image)
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			l := image.Layers[0]
			if got := fetchBlob(t, base, l); !bytes.Equal(got, want) || l.Annotations["org.opencontainers.image.title"] != "store.squashfs" {
				t.Errorf("the file comes back as %d bytes, %+v", len(got), l)
			}
			fetchJSON(t, base+"/manifests/"+referrerOf(t, base, digest), &meta)
			if meta.ArtifactType != "uenv/meta" || meta.Subject == nil || meta.Subject.Digest.String() != digest || len(meta.Layers) != 1 {
				t.Fatalf("about it there is %+v", meta)
			}
			wantUenvMeta(t, base, meta.Layers[0])
			again, err := s.PushUenv(t.Context(), file, host+path+":v1")
			if err != nil || again != name {
				t.Errorf("once more it is %s, %v", again, err)
			}
		})
	}
	for _, bad := range []string{"host/tools:v1", "host" + path, "host" + path + "@sha256:" + strings.Repeat("0", 64)} {
		if _, err := s.PushUenv(t.Context(), file, bad); fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%s: %v", bad, err)
		}
	}
	plain := filepath.Join(t.TempDir(), "x.sqsh")
	if _, err := s.Copy(t.Context(), subject, "plain:"+plain, engine.Writing{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PushUenv(t.Context(), plain, "host"+path+":v1"); err == nil || !strings.Contains(err.Error(), "no uenv") {
		t.Errorf("another squashfs: %v", err)
	}
}

type uenvManifest struct {
	ArtifactType string          `json:"artifactType"`
	Config       v1.Descriptor   `json:"config"`
	Layers       []v1.Descriptor `json:"layers"`
	Subject      *v1.Descriptor  `json:"subject"`
	Manifests    []v1.Descriptor `json:"manifests"`
}

// wantUenvMeta unpacks what describes a uenv as oras does.
func wantUenvMeta(t *testing.T, base string, l v1.Descriptor) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(fetchBlob(t, base, l)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	notes := l.Annotations
	if notes["org.opencontainers.image.title"] != "meta" || notes["io.deis.oras.content.unpack"] != "true" || notes["io.deis.oras.content.digest"] != string(store.DigestOf(plain)) {
		t.Errorf("annotations %v", notes)
	}
	found := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(data)
	}
	if !strings.Contains(found["meta/env.json"], `"/user-tools"`) || found["meta/extra/reframe.yaml"] != "y: 1\n" || len(found) != 4 {
		t.Errorf("meta has %q", found)
	}
}

// referrerOf asks a registry for what is about a manifest, or looks where it is kept for one that cannot be asked.
func referrerOf(t *testing.T, base, digest string) string {
	t.Helper()
	var list uenvManifest
	if get(t, base+"/referrers/"+digest, &list) != http.StatusOK || len(list.Manifests) == 0 {
		fetchJSON(t, base+"/manifests/"+strings.Replace(digest, ":", "-", 1), &list)
	}
	if len(list.Manifests) != 1 { // the types that this registry lists are those of configurations
		t.Fatalf("about it there is %+v", list.Manifests)
	}
	return list.Manifests[0].Digest.String()
}

func get(t *testing.T, url string, v any) int {
	t.Helper()
	status, data := download(t, url)
	if status == http.StatusOK {
		if err := json.Unmarshal(data, v); err != nil {
			t.Fatal(err)
		}
	}
	return status
}

// fetchJSON reads a manifest, and returns its digest.
func fetchJSON(t *testing.T, url string, v any) string {
	t.Helper()
	status, data := download(t, url)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", url, status, data)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
	return string(store.DigestOf(data))
}

func fetchBlob(t *testing.T, base string, d v1.Descriptor) []byte {
	t.Helper()
	status, data := download(t, base+"/blobs/"+d.Digest.String())
	if status != http.StatusOK || int64(len(data)) != d.Size {
		t.Fatalf("blob %s: %d, %d bytes", d.Digest, status, len(data))
	}
	return data
}

func download(t *testing.T, url string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, data
}
