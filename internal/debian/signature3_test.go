package debian

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha1"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// rsaKey makes a key of the kind that signatures of version 3 have.
func rsaKey(t *testing.T, lifetime time.Duration) *openpgp.Entity {
	t.Helper()
	c := config(today.AddDate(-1, 0, 0), lifetime)
	c.Algorithm, c.RSABits = packet.PubKeyAlgoRSA, 2048
	e, err := openpgp.NewEntity("packages", "", "packages@example.org", c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// sign3 makes the packet.
func sign3(t *testing.T, e *openpgp.Entity, text string, hash crypto.Hash, number byte, when time.Time) []byte {
	t.Helper()
	hashed := binary.BigEndian.AppendUint32([]byte{0}, uint32(when.Unix()))
	h := hash.New()
	h.Write([]byte(text))
	h.Write(hashed)
	sum := h.Sum(nil)
	made, err := rsa.SignPKCS1v15(rand.Reader, e.PrivateKey.PrivateKey.(*rsa.PrivateKey), hash, sum)
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte{3, 5}, hashed...)
	body = binary.BigEndian.AppendUint64(body, e.PrimaryKey.KeyId)
	body = append(body, rsaAlgorithm, number)
	body = append(body, sum[:2]...)
	made = bytes.TrimLeft(made, "\x00")
	body = binary.BigEndian.AppendUint16(body, uint16(8*len(made)))
	body = append(body, made...)
	return append(binary.BigEndian.AppendUint16([]byte{0x80 | signatureTag<<2 | 1}, uint16(len(body))), body...)
}

func TestSignature3(t *testing.T) {
	key, other, old := rsaKey(t, 0), rsaKey(t, 0), rsaKey(t, 24*time.Hour)
	k := &Keyring{}
	for _, e := range []*openpgp.Entity{key, old} {
		if err := k.Add(publicKey(t, e, false)); err != nil {
			t.Fatal(err)
		}
	}
	const text = "a header"
	good := sign3(t, key, text, crypto.SHA256, 8, today)
	if err := k.Verify([]byte(text), good, today); err != nil {
		t.Error(err)
	}
	if err := k.Verify([]byte(text), slices.Concat(sign3(t, other, text, crypto.SHA512, 10, today), sign3(t, key, text, crypto.SHA512, 10, today)), today); err != nil {
		t.Errorf("the second of two: %v", err)
	}
	var unknown *UnknownKeyError
	if err := k.Verify([]byte(text), sign3(t, other, text, crypto.SHA256, 8, today), today); !errors.As(err, &unknown) {
		t.Errorf("another's: %v", err)
	}
	for name, sig := range map[string][]byte{
		"of another text":    sign3(t, key, "another", crypto.SHA256, 8, today),
		"of an expired key":  sign3(t, old, text, crypto.SHA256, 8, today),
		"of an unsafe hash":  sign3(t, key, text, crypto.SHA1, 2, today),
		"of the wrong hash":  sign3(t, key, text, crypto.SHA256, 10, today),
		"before its own key": sign3(t, key, text, crypto.SHA256, 8, today.AddDate(-2, 0, 0)),
		"cut off":            good[:len(good)-1],
	} {
		if err := k.Verify([]byte(text), sig, today); err == nil {
			t.Errorf("%s is believed", name)
		}
	}
	for at := 3; at < len(good); at++ {
		changed := slices.Clone(good)
		changed[at] ^= 1
		if k.Verify([]byte(text), changed, today) == nil {
			t.Errorf("byte %d is another, and that is believed", at)
		}
	}
}
