package evidence

import (
	"os/exec"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestCosign has cosign judge verdicts, with the right key and with another one, without network.
func TestCosign(t *testing.T) {
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/team/staging"
			image := evidencetest.Image(t, at, "canonical", "image")
			key, _, public := evidencetest.Key(t)
			_, _, stranger := evidencetest.Key(t)
			b := open(t, at, key)
			for _, test := range []string{"gpu", "all-reduce"} {
				e := Evidence{Key: Key{image, hash(test), "clariden"}, Name: test, Result: Passed, Details: []byte(`{"busbw":135}`)}
				if err := b.Put(t.Context(), e, strings.NewReader("log")); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Attach(t.Context(), image, "sbom", attest.CycloneDX, map[string]string{"bomFormat": "CycloneDX"}, nil); err != nil {
				t.Fatal(err)
			}
			verify := func(public, kind string) error {
				_, err := evidencetest.Cosign(t, public, kind, at+"@"+string(image))
				return err
			}
			for _, kind := range []string{attest.TestResult, attest.CycloneDX} {
				if err := verify(public, kind); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				if verify(stranger, kind) == nil {
					t.Errorf("%s: accepted with another key", kind)
				}
			}
			if verify(public, attest.Provenance) == nil {
				t.Error("accepted what is not there")
			}
		})
	}
}

// TestOras has oras find what is about an image.
func TestOras(t *testing.T) {
	oras := tooltest.Path(t, "oras")
	for name, start := range registries {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			at := start(t) + "/team/staging"
			image := evidencetest.Image(t, at, "canonical", "image")
			key, _, _ := evidencetest.Key(t)
			b := open(t, at, key)
			k := Key{image, hash("gpu"), "clariden"}
			if err := b.Put(t.Context(), Evidence{Key: k, Name: "gpu", Result: Passed}, nil); err != nil {
				t.Fatal(err)
			}
			e, err := b.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(oras, "discover", "--plain-http", "--output", "json", at+":canonical").CombinedOutput()
			if err != nil || !strings.Contains(string(out), string(e.Manifest)) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
