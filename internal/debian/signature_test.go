package debian

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

var today = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func config(when time.Time, lifetime time.Duration) *packet.Config {
	return &packet.Config{
		Time: func() time.Time { return when }, Algorithm: packet.PubKeyAlgoEdDSA, DefaultHash: crypto.SHA256,
		KeyLifetimeSecs: uint32(lifetime.Seconds()),
	}
}

func newKey(t *testing.T, lifetime time.Duration) *openpgp.Entity {
	t.Helper()
	e, err := openpgp.NewEntity("archive", "", "archive@example.org", config(today.AddDate(-1, 0, 0), lifetime))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func publicKey(t *testing.T, e *openpgp.Entity, armored bool) []byte {
	t.Helper()
	var b bytes.Buffer
	if !armored {
		if err := e.Serialize(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err == nil {
		err = errors.Join(e.Serialize(w), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func clearSign(t *testing.T, text string, keys ...*openpgp.Entity) []byte {
	t.Helper()
	var private []*packet.PrivateKey
	for _, e := range keys {
		private = append(private, e.PrivateKey)
	}
	var b bytes.Buffer
	w, err := clearsign.EncodeMulti(&b, private, config(today, 0))
	if err == nil {
		_, err = w.Write([]byte(text))
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSignatures(t *testing.T) {
	ours, others, old := newKey(t, 0), newKey(t, 0), newKey(t, 24*time.Hour)
	k := &Keyring{}
	for i, e := range []*openpgp.Entity{ours, old} {
		if err := k.Add(publicKey(t, e, i == 0)); err != nil {
			t.Fatal(err)
		}
	}
	const text = "Suite: x\n- dash\nend\n"
	for _, signers := range [][]*openpgp.Entity{{ours}, {others, ours}, {old, ours}} { // one good one is enough
		got, err := k.OpenSigned(clearSign(t, text, signers...), today)
		if string(got) != text || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	good := clearSign(t, text, ours)
	var unknown *UnknownKeyError
	if _, err := k.OpenSigned(clearSign(t, text, others), today); !errors.As(err, &unknown) ||
		!slices.Equal(unknown.IDs, []string{fmt.Sprintf("%016X", others.PrimaryKey.KeyId)}) {
		t.Errorf("another's key: %v", err)
	}
	for why, bad := range map[string][]byte{
		"not signed":            []byte(text),
		"signature is not good": bytes.Replace(good, []byte("Suite: x"), []byte("Suite: y"), 1),
		"damaged":               append(slices.Clone(good), "Suite: z\n"...),
		"key expired":           clearSign(t, text, old),
	} {
		if _, err := k.OpenSigned(bad, today); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if _, err := k.OpenSigned(append([]byte("Suite: z\n"), good...), today); !errors.Is(err, ErrUnsigned) {
		t.Errorf("text before the signed one: %v", err)
	}
	for _, sign := range []func(*bytes.Buffer) error{
		func(b *bytes.Buffer) error {
			return openpgp.DetachSign(b, ours, strings.NewReader(text), config(today, 0))
		},
		func(b *bytes.Buffer) error {
			return openpgp.ArmoredDetachSign(b, ours, strings.NewReader(text), config(today, 0))
		},
	} {
		var signature bytes.Buffer
		if err := sign(&signature); err != nil {
			t.Fatal(err)
		}
		if err := k.Verify([]byte(text), signature.Bytes(), today); err != nil {
			t.Error(err)
		}
		if k.Verify([]byte(text+" "), signature.Bytes(), today) == nil || k.Verify([]byte(text), signature.Bytes()[:20], today) == nil {
			t.Error("what is not signed is believed")
		}
	}
	if err := k.Verify([]byte(text), nil, today); !errors.Is(err, ErrUnsigned) {
		t.Errorf("no signature: %v", err)
	}
	if k.Add([]byte("no key")) == nil || k.Add([]byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")) == nil {
		t.Error("what is no key is one")
	}
}

// The keys that come with the program are those whose fingerprints the guide lists.
func TestArchiveKeys(t *testing.T) {
	known := ArchiveKeys().Fingerprints()
	for _, want := range []string{
		"4D64FEC119C2029067D6E791F8D2585B8783D481", "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8", "05AB90340C0C5E797F44A8C8254CF3B5AEC0A8F0", // Debian 12
		"41587F7DB8C774BCCF131416762F67A0B2C39DE4", "04B54C3CDCA79751B16BC6B5225629DF75B188BD", "5E04A1E3223A19A20706E20F9904613D4CCE68C6", // 13
		"F6ECB3762474EDA9D21B7022871920D1991BC93C", // Ubuntu
	} {
		if !slices.Contains(known, want) {
			t.Errorf("%s is not among %v", want, known)
		}
	}
}

func TestRelease(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	text := "Suite: stable\nCodename: x\nDate: Mon, 29 Jun 2026 10:00:00 UTC\nValid-Until: Thu, 02 Jul 2026 10:00:00 +0000\nAcquire-By-Hash: yes\n" +
		"Architectures: all amd64\nComponents: main updates/contrib\nSHA256:\n " + sum + " 12 main/binary-amd64/Packages\n"
	r, err := ParseRelease([]byte(text))
	if err != nil || !r.ByHash || !r.SeparateAll || r.Files["main/binary-amd64/Packages"] != (File{12, sum}) {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, suite := range []string{"stable", "x", "x/updates"} { // the last as security updates were called before Debian 11
		if err := r.Check(suite, today); err != nil {
			t.Error(err)
		}
	}
	var expired *ExpiredError
	if err := r.Check("x", today.AddDate(0, 0, 3)); !errors.As(err, &expired) {
		t.Errorf("expired: %v", err)
	}
	if err := r.Check("y", today); err == nil || !strings.Contains(err.Error(), "not for y") {
		t.Errorf("of another suite: %v", err)
	}
	if err := r.Check("x", today.AddDate(0, 0, -10)); err == nil || !strings.Contains(err.Error(), "still to come") {
		t.Errorf("of the future: %v", err)
	}
	for _, change := range [][2]string{
		{"Date: Mon", "Date: x"},
		{"Valid-Until: Thu", "Valid-Until: soon"},
		{sum, "ab"},
		{" 12 ", " -1 "},
		{" 12 ", " "},
		{"main/binary", "../binary"},
		{"SHA256:", "SHA1:"},
		{"Suite:", "Suite"},
	} {
		if r, err := ParseRelease([]byte(strings.Replace(text, change[0], change[1], 1))); err == nil {
			t.Errorf("with %q for %q: %+v", change[1], change[0], r)
		}
	}
}

func FuzzRelease(f *testing.F) {
	f.Add([]byte("Suite: stable\nDate: Mon, 29 Jun 2026 10:00:00 UTC\nSHA256:\n " + strings.Repeat("ab", 32) + " 12 main/binary-amd64/Packages\n"))
	k := ArchiveKeys()
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = ParseRelease(text)
		_, _ = k.OpenSigned(append([]byte("-----BEGIN PGP SIGNED MESSAGE-----\n"), text...), today)
		_ = k.Verify(text, text, today)
	})
}
