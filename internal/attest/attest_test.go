package attest

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

var testImage = store.DigestOf([]byte("an image"))

// openssl runs it in dir.
func openssl(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(tooltest.Path(t, "openssl"), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openssl %v: %v\n%s", args, err, out)
	}
}

func withPassword(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(text), nil }
}

// TestKeysOfOpenssl signs with every form of key that openssl writes and judges with the public half that it writes.
func TestKeysOfOpenssl(t *testing.T) {
	for name, args := range map[string][]string{
		"ed25519":           {"genpkey", "-algorithm", "ed25519", "-out", "key"},
		"p256":              {"genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "key"},
		"sec1":              {"ecparam", "-name", "prime256v1", "-genkey", "-out", "key"},
		"ed25519 encrypted": {"genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:open", "-out", "key"},
		"p256 encrypted":    {"genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-aes-128-cbc", "-pass", "pass:open", "-out", "key"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			openssl(t, dir, args...)
			openssl(t, dir, "pkey", "-in", "key", "-passin", "pass:open", "-pubout", "-out", "pub")
			key, err := ReadPrivateKey(filepath.Join(dir, "key"), withPassword("open"))
			if err != nil {
				t.Fatal(err)
			}
			public, err := ReadPublicKey(filepath.Join(dir, "pub"))
			if err != nil {
				t.Fatal(err)
			}
			if public.ID() != key.Public().ID() {
				t.Errorf("the halves are %s and %s", public.ID(), key.Public().ID())
			}
			roundTrip(t, key, public)
			if !strings.HasSuffix(name, "encrypted") {
				return
			}
			if _, err := ReadPrivateKey(filepath.Join(dir, "key"), withPassword("wrong")); !errors.Is(err, errPassword) {
				t.Errorf("with a wrong password: %v", err)
			}
			if _, err := ReadPublicKey(filepath.Join(dir, "key")); err == nil || !strings.Contains(err.Error(), "encrypted") {
				t.Errorf("as a public key: %v", err)
			}
		})
	}
}

func roundTrip(t *testing.T, key *PrivateKey, public *PublicKey) {
	t.Helper()
	s, err := New(testImage, "team/image", TestResult, map[string]string{"result": "PASSED"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := Sign(s, key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Verify(data, testKey(t).Public(), public)
	if err != nil {
		t.Fatal(err)
	}
	if !got.IsAbout(testImage) || got.IsAbout(store.DigestOf(nil)) || string(got.Predicate) != `{"result":"PASSED"}` || got.PredicateType != TestResult {
		t.Errorf("got %+v", got)
	}
	if _, err := Verify(data, testKey(t).Public()); !errors.Is(err, ErrSignature) {
		t.Errorf("judged with another key: %v", err)
	}
	if _, err := Verify(data); !errors.Is(err, ErrSignature) {
		t.Errorf("judged without a key: %v", err)
	}
}

// testKey is a key made here.
func testKey(t *testing.T) *PrivateKey {
	t.Helper()
	dir := t.TempDir()
	openssl(t, dir, "genpkey", "-algorithm", "ed25519", "-out", "key")
	key, err := ReadPrivateKey(filepath.Join(dir, "key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSigstoreKey opens a key as cosign encrypts them.
func TestSigstoreKey(t *testing.T) {
	key := testKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(key.signer)
	if err != nil {
		t.Fatal(err)
	}
	var salt [32]byte
	var nonce [24]byte
	for _, b := range [][]byte{salt[:], nonce[:]} {
		if _, err := rand.Read(b); err != nil {
			t.Fatal(err)
		}
	}
	const n, r, p = 1 << 10, 8, 1
	derived, err := scrypt.Key([]byte("open"), salt[:], n, r, p, 32)
	if err != nil {
		t.Fatal(err)
	}
	sealed := secretbox.Seal(nil, der, &nonce, (*[32]byte)(derived))
	text := fmt.Sprintf(`{"kdf":{"name":"scrypt","params":{"N":%d,"r":%d,"p":%d},"salt":%q},"cipher":{"name":"nacl/secretbox","nonce":%q},"ciphertext":%q}`,
		n, r, p, b64(salt[:]), b64(nonce[:]), b64(sealed))
	file := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte(text)})
	got, err := ParsePrivateKey(file, withPassword("open"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Public().ID() != key.Public().ID() {
		t.Error("another key came out")
	}
	if _, err := ParsePrivateKey(file, withPassword("wrong")); !errors.Is(err, errPassword) {
		t.Errorf("with a wrong password: %v", err)
	}
	greedy := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte(strings.Replace(text, `"N":1024`, `"N":1073741824`, 1))})
	if _, err := ParsePrivateKey(greedy, withPassword("open")); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("with a greedy derivation: %v", err)
	}
}

func b64(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// TestVerifyDamaged changes each field of a bundle that a signature covers, and the form of the rest.
func TestVerifyDamaged(t *testing.T) {
	key := testKey(t)
	s, err := New(testImage, "", Provenance, map[string]int{"a": 1})
	if err != nil {
		t.Fatal(err)
	}
	data, err := Sign(s, key)
	if err != nil {
		t.Fatal(err)
	}
	change := func(how func(b *bundle)) []byte {
		var b bundle
		if err := json.Unmarshal(data, &b); err != nil {
			t.Fatal(err)
		}
		how(&b)
		out, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, damaged := range map[string][]byte{
		"payload":    change(func(b *bundle) { b.Envelope.Payload = []byte(strings.Replace(string(b.Envelope.Payload), "1", "2", 1)) }),
		"type":       change(func(b *bundle) { b.Envelope.PayloadType = "text/plain" }),
		"signature":  change(func(b *bundle) { b.Envelope.Signatures[0].Sig[3] ^= 1 }),
		"none":       change(func(b *bundle) { b.Envelope.Signatures = nil }),
		"envelope":   change(func(b *bundle) { b.Envelope = nil }),
		"media type": change(func(b *bundle) { b.MediaType = "text/plain" }),
		"no JSON":    []byte("{"),
		"empty":      nil,
	} {
		if got, err := Verify(damaged, key.Public()); err == nil {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
}

// TestKeyErrors reads what is no key, or no key that signs.
func TestKeyErrors(t *testing.T) {
	dir := t.TempDir()
	openssl(t, dir, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out", "p384")
	openssl(t, dir, "genpkey", "-algorithm", "ed25519", "-out", "key")
	openssl(t, dir, "pkey", "-in", "key", "-pubout", "-out", "pub")
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_EMPTY", "")
	for where, want := range map[string]string{
		filepath.Join(dir, "p384"):    "P-256 and Ed25519",
		filepath.Join(dir, "pub"):     "public key",
		filepath.Join(dir, "text"):    "no key in PEM",
		filepath.Join(dir, "missing"): "no such file",
		"env:SCONCE_TEST_EMPTY":       "not set",
	} {
		if _, err := ReadPrivateKey(where, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", where, err, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_KEY", string(text))
	key, err := ReadPrivateKey("env:SCONCE_TEST_KEY", nil)
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", key, key, key, key); strings.Count(shown, "(private key)") != 4 {
		t.Errorf("a key prints as %s", shown)
	}
}

// What is said of a key that is there, and cannot be used as it is, is about that key: nobody is sent to make another one, without a password.
func TestKeyHints(t *testing.T) {
	dir := t.TempDir()
	openssl(t, dir, "genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:secret", "-out", "key")
	openssl(t, dir, "pkey", "-in", "key", "-passin", "pass:secret", "-pubout", "-out", "pub")
	openssl(t, dir, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out", "p384")
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_EMPTY", "")
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, c := range map[string]struct {
		where    string
		password func() ([]byte, error)
		hint     string
	}{
		"encrypted":      {in("key"), nil, "set SCONCE_KEY_PASSWORD"},
		"wrong password": {in("key"), withPassword("guess"), "correct SCONCE_KEY_PASSWORD"},
		"public":         {in("pub"), nil, "name the private half"},
		"text":           {in("text"), nil, "begins with -----BEGIN"},
		"other curve":    {in("p384"), nil, "PKCS #8 of a P-256 or Ed25519 key"},
		"variable":       {"env:SCONCE_TEST_EMPTY", nil, "export SCONCE_TEST_EMPTY="},
		"missing":        {in("missing"), nil, "correct its path"},
	} {
		_, err := ReadPrivateKey(c.where, c.password)
		hint := fault.HintOf(err)
		if !strings.Contains(hint, c.hint) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%s: %v, code %d, hint %q, want %q", name, err, fault.CodeOf(err), hint, c.hint)
		}
		if strings.Contains(hint, "genpkey") && (name != "missing" || !strings.Contains(hint, "-aes256")) {
			t.Errorf("%s: the hint is to make another key: %q", name, hint)
		}
	}
	if _, err := ReadPublicKey(in("key")); !strings.Contains(fault.HintOf(err), "-pubout") {
		t.Errorf("an encrypted key as a public one: %v, hint %q", err, fault.HintOf(err))
	}
}

// An entry of a list of keys is a file, or the text itself, and its days are days.
func TestTrusted(t *testing.T) {
	dir := t.TempDir()
	openssl(t, dir, "genpkey", "-algorithm", "ed25519", "-out", "key")
	openssl(t, dir, "pkey", "-in", "key", "-pubout", "-out", "pub")
	text, err := os.ReadFile(filepath.Join(dir, "pub"))
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, where := range []string{"pub", "file:pub", filepath.Join(dir, "pub"), string(text)} {
		key, err := Trusted{Key: where, Since: "2026-01-02", Until: "2026-01-03"}.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		for when, want := range map[string]bool{
			"2026-01-01T23:59:59Z": false, "2026-01-02T00:00:00Z": true, "2026-01-03T23:59:59Z": true, "2026-01-03T23:59:59.5Z": true, "2026-01-04T00:00:00Z": false, "2026-01-04T00:30:00+01:00": true,
		} {
			if got := key.Counts(at(when)); got != want {
				t.Errorf("%s: what was signed at %s counts: %v", where, when, got)
			}
		}
		if key.Counts(time.Time{}) {
			t.Errorf("%s: a document counts that does not say when it was signed", where)
		}
		if (Trusted{Key: where}).Name() == string(text) {
			t.Errorf("%s: %v", where, key.Fingerprint())
		}
	}
	for _, wrong := range []Trusted{{Since: "yesterday"}, {Until: "2026-13-01"}, {Since: "2026-02-01", Until: "2026-01-01"}, {Key: "missing"}} {
		wrong.Key = cmp.Or(wrong.Key, "pub")
		if _, err := wrong.Read(dir); fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

// What a bundle says of its key is shown only where it is a fingerprint.
func TestSignedBy(t *testing.T) {
	for hint, shown := range map[string]bool{
		"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=": true, "team\\nit is fine": false, "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\\n": false, "": false,
	} {
		data := []byte(`{"mediaType":"` + BundleType + `","verificationMaterial":{"publicKey":{"hint":"` + hint + `"}},"dsseEnvelope":{"payloadType":"` + payloadType + `"}}`)
		if by := SignedBy(data); (by != "") != shown {
			t.Errorf("%s: shown as %q", hint, by)
		}
	}
}

// FuzzVerify reads anything as a bundle, and as a key.
func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"mediaType":"` + BundleType + `","dsseEnvelope":{"payload":"e30=","payloadType":"` + payloadType + `","signatures":[{"sig":"AA=="}]}}`))
	f.Add([]byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := Verify(data); err == nil {
			t.Error("believed without a key")
		}
		if strings.Contains(string(data), "BEGIN") && len(data) < 400 {
			_, _ = ParsePublicKey(data)
		}
	})
}

// TestConfusedBundles: a bundle that says something else than what is signed is not believed: another payload, another type of it, a hint at a key
// that did not sign, an entry of a log about something else (cosign CVE-2026-22703). Nothing that the key has not signed is looked at.
func TestConfusedBundles(t *testing.T) {
	key, forger := testKey(t), testKey(t)
	public := key.Public()
	sign := func(about store.Digest, by *PrivateKey) map[string]any {
		s, err := New(about, "image", TestResult, map[string]string{"result": "PASSED"})
		if err != nil {
			t.Fatal(err)
		}
		data, err := Sign(s, by)
		if err != nil {
			t.Fatal(err)
		}
		var b map[string]any
		if err := json.Unmarshal(data, &b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	envelope := func(b map[string]any) map[string]any { return b["dsseEnvelope"].(map[string]any) }
	other := store.DigestOf([]byte("another image"))
	entry := map[string]any{"logIndex": "1", "canonicalizedBody": base64.StdEncoding.EncodeToString([]byte("{}")), "inclusionPromise": map[string]any{"signedEntryTimestamp": "AAAA"}}
	for name, tc := range map[string]struct {
		change func(b map[string]any)
		by     *PrivateKey
		good   bool
	}{
		"as it is":                  {func(map[string]any) {}, key, true},
		"an entry of another's log": {func(b map[string]any) { b["verificationMaterial"].(map[string]any)["tlogEntries"] = []any{entry} }, key, true},
		"the entry and a forger":    {func(b map[string]any) { b["verificationMaterial"].(map[string]any)["tlogEntries"] = []any{entry} }, forger, false},
		"a hint at the right key": {func(b map[string]any) {
			b["verificationMaterial"].(map[string]any)["publicKey"] = map[string]any{"hint": public.ID()}
		}, forger, false},
		"a hint at another key": {func(b map[string]any) {
			b["verificationMaterial"].(map[string]any)["publicKey"] = map[string]any{"hint": forger.Public().ID()}
		}, key, true},
		"a certificate": {func(b map[string]any) {
			b["verificationMaterial"] = map[string]any{"certificate": map[string]any{"rawBytes": "AAAA"}}
		}, forger, false},
		"another payload":            {func(b map[string]any) { envelope(b)["payload"] = envelope(sign(other, forger))["payload"] }, key, false},
		"another's signature":        {func(b map[string]any) { envelope(b)["signatures"] = envelope(sign(other, key))["signatures"] }, key, false},
		"another type of payload":    {func(b map[string]any) { envelope(b)["payloadType"] = "application/vnd.in-toto+json; v=2" }, key, false},
		"a signature without a text": {func(b map[string]any) { envelope(b)["payload"] = "" }, key, false},
		"no signature":               {func(b map[string]any) { envelope(b)["signatures"] = []any{} }, key, false},
		"a signature of a message": {func(b map[string]any) {
			b["messageSignature"] = map[string]any{"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": testImage.Hex()}}
			delete(b, "dsseEnvelope")
		}, key, false},
	} {
		b := sign(testImage, tc.by)
		tc.change(b)
		data, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Verify(data, public)
		if (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (!s.IsAbout(testImage) || s.IsAbout(other)) {
			t.Errorf("%s: it is about %v", name, s.Subject)
		}
	}
}
