// Package evidencetest makes keys and small images in registries for tests.
package evidencetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// Key makes a P-256 key, and returns it and the files of its two halves.
func Key(t testing.TB) (key *attest.PrivateKey, private, public string) {
	t.Helper()
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(made.Public())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "team.key"), filepath.Join(dir, "team.pub")
	for name, block := range map[string]*pem.Block{private: {Type: "PRIVATE KEY", Bytes: der}, public: {Type: "PUBLIC KEY", Bytes: pub}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if key, err = attest.ReadPrivateKey(private, nil); err != nil {
		t.Fatal(err)
	}
	return key, private, public
}

// noRoots is a list of whom to trust besides the key, without which cosign asks the network for one.
const noRoots = `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`

// Cosign has cosign judge the statements of a type about an image, HOST/PATH@DIGEST, by a key and without network. It returns those that it
// believes.
func Cosign(t testing.TB, public, predicateType, image string) ([]attest.Statement, error) {
	t.Helper()
	home := t.TempDir()
	roots := filepath.Join(home, "roots.json")
	if err := os.WriteFile(roots, []byte(noRoots), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tooltest.Path(t, "cosign"), "verify-attestation", "--key", public, "--type", predicateType, "--new-bundle-format",
		"--insecure-ignore-tlog", "--trusted-root", roots, image)
	cmd.Env = append(os.Environ(), "TUF_ROOT="+filepath.Join(home, "tuf"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	t.Logf("%s%s", stderr.String(), out)
	if err != nil {
		return nil, err
	}
	var all []attest.Statement
	for line := range strings.Lines(string(out)) {
		var envelope struct{ Payload []byte }
		var s attest.Statement
		if err := json.Unmarshal([]byte(line), &envelope); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if err := json.Unmarshal(envelope.Payload, &s); err != nil {
			t.Fatalf("%v in %s", err, envelope.Payload)
		}
		all = append(all, s)
	}
	return all, nil
}

// Client returns a store of its own and a client that waits for nothing.
func Client(t testing.TB) (*store.Store, *fetch.Client) {
	t.Helper()
	st := storetest.New(t)
	return st, fetch.New(st, fetch.Options{Backoff: time.Millisecond, MaxWait: 10 * time.Millisecond, Attempts: 3})
}

// Image sends a small image that says text to a repository, HOST/PATH, under a tag, and returns its digest.
func Image(t testing.TB, name, tag, text string) store.Digest {
	t.Helper()
	st, client := Client(t)
	layer, err := st.PutBlob([]byte("a layer of " + text))
	if err != nil {
		t.Fatal(err)
	}
	size, err := st.BlobSize(layer)
	if err != nil {
		t.Fatal(err)
	}
	// An image's manifest and that of an artifact have the same form.
	im := &registry.Artifact{
		ConfigType: string(types.OCIConfigJSON), Config: []byte(`{"architecture":"amd64","os":"linux","config":{"Labels":{"text":"` + text + `"}},"rootfs":{"type":"layers","diff_ids":["` + string(layer) + `"]}}`),
		Blobs: []v1.Descriptor{{MediaType: types.OCIUncompressedLayer, Digest: v1.Hash{Algorithm: "sha256", Hex: layer.Hex()}, Size: size}},
	}
	d, err := registry.PushArtifact(t.Context(), im, name, tag, registry.PushOptions{Store: st, Fetch: client})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
