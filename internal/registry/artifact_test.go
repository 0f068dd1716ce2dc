package registry

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store/storetest"
)

const (
	testType       = "application/vnd.example.marker.v1"
	testConfigType = "application/vnd.example.marker.config.v1+json"
)

// TestArtifact sends one with everything and one with nothing to a real registry, by tag and by digest, and reads them back.
func TestArtifact(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	c := client(t)
	st := storetest.New(t)
	blob, err := putBlob(st, []byte("a log"))
	if err != nil {
		t.Fatal(err)
	}
	about := describe(string(types.OCIManifestSchema1), []byte("an image"))
	for tag, a := range map[string]*Artifact{
		"empty": {Type: testType, ConfigType: testConfigType, Config: []byte(`{}`)},
		"full": {
			Type: testType, ConfigType: testConfigType, Config: []byte(`{"passed":true}`), Annotations: map[string]string{"a": "b"}, Subject: &about,
			Blobs: []v1.Descriptor{{MediaType: "text/plain", Digest: hashOf(blob.Digest), Size: blob.Size}},
		},
	} {
		o := PushOptions{Store: st, Fetch: c}
		digest, err := PushArtifact(t.Context(), a, host+"/team/app", tag, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := PushArtifact(t.Context(), a, host+"/team/other", "", o); err != nil { // by its digest
			t.Fatal(err)
		}
		for path, reference := range map[string]string{"team/app": tag, "team/other": string(digest)} {
			repo := New(Endpoint{Host: host, Path: path}, Options{Fetch: c})
			manifest, _, err := repo.Manifest(t.Context(), reference)
			if err != nil {
				t.Fatal(err)
			}
			got, err := repo.Artifact(t.Context(), st, manifest, testType)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Config, a.Config) || got.ConfigType != a.ConfigType || got.Annotations["a"] != a.Annotations["a"] ||
				len(got.Blobs) != len(a.Blobs) || (got.Subject == nil) != (a.Subject == nil) {
				t.Errorf("sent %+v, got %+v", a, got)
			}
			if a.Subject != nil && got.Subject.Digest != a.Subject.Digest {
				t.Errorf("its subject is %v", got.Subject)
			}
			if _, err := repo.Artifact(t.Context(), st, manifest, "application/other"); err == nil || !strings.Contains(err.Error(), "something else") {
				t.Errorf("read as another type: %v", err)
			}
		}
	}
}

// TestArtifactDocumentAsBlob reads one whose manifest does not have the document, as other programs write them.
func TestArtifactDocumentAsBlob(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	c := client(t)
	st := storetest.New(t)
	a := &Artifact{Type: testType, ConfigType: testConfigType, Config: []byte(`{"passed":true}`)}
	if _, err := PushArtifact(t.Context(), a, host+"/app", "v1", PushOptions{Store: st, Fetch: c}); err != nil {
		t.Fatal(err)
	}
	manifest, err := a.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(manifest, []byte(`,"data":"`))
	manifest = slices.Concat(manifest[:i], manifest[i+bytes.IndexByte(manifest[i:], '}'):])
	fresh := client(t)
	repo := New(Endpoint{Host: host, Path: "app"}, Options{Fetch: fresh})
	if _, err := repo.Artifact(t.Context(), st, manifest, testType); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedArtifact reads documents that a registry may answer with.
func TestDamagedArtifact(t *testing.T) {
	for _, text := range []string{
		"", "{", "[]", "null", `{"artifactType":"x"}`, `{"artifactType":"x","config":{"mediaType":"y","size":-1}}`,
		`{"artifactType":"x","config":{"mediaType":"y","digest":"sha512:00","size":5}}`,
		`{"artifactType":"x","config":{"mediaType":"y","digest":"sha256:` + strings.Repeat("0", 64) + `","size":99999999}}`,
	} {
		if _, _, err := parseArtifact([]byte(text)); err == nil {
			t.Errorf("%s is taken for an artifact", text)
		}
	}
}
