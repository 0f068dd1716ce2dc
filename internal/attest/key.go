package attest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// PrivateKey signs: ECDSA on P-256, or Ed25519. It prints as nothing.
type PrivateKey struct {
	signer crypto.Signer
	after  []*PublicKey // see [PrivateKey.After]
}

// PublicKey judges signatures.
type PublicKey struct {
	key crypto.PublicKey // *ecdsa.PublicKey or ed25519.PublicKey
	id  string

	spans   []span // when what it signs counts: in any of them; none: always
	revoked bool   // it never does
}

// String keeps the key out of logs, whatever prints it.
func (*PrivateKey) String() string { return "(private key)" }

// GoString does so for %#v.
func (*PrivateKey) GoString() string { return "(private key)" }

// maxKey bounds a key's text, in bytes.
const maxKey = 64 << 10

// makeKey says how a user comes to a key.
const makeKey = "make one with `openssl genpkey -algorithm ed25519 -aes256 -out team.key` and its public half with `openssl pkey -in team.key -pubout -out team.pub`"

// Hints of what is wrong with a key that is there.
const (
	givePrivate  = "name the private half, which begins with -----BEGIN PRIVATE KEY----- or -----BEGIN ENCRYPTED PRIVATE KEY-----"
	giveText     = "give the text of a key in PEM, which begins with -----BEGIN; for a file write its path"
	givePassword = "set SCONCE_KEY_PASSWORD to the key's password"
	otherForm    = "write it as PKCS #8 of a P-256 or Ed25519 key: `openssl pkcs8 -topk8 -v2 aes256 -v2prf hmacWithSHA256 -in OLD -out NEW`"
)

// ReadPrivateKey reads a private key in PEM from a file, PATH or "file:PATH", or, for "env:NAME", from a variable of the environment. password opens an
// encrypted one.
func ReadPrivateKey(where string, password func() ([]byte, error)) (*PrivateKey, error) {
	text, err := readKey(where)
	if err != nil {
		return nil, err
	}
	key, err := ParsePrivateKey(text, password)
	return key, explain(where, err)
}

// ReadPublicKey reads a public key in PEM, or the public half of a private one that has no password, as [ReadPrivateKey] does.
func ReadPublicKey(where string) (*PublicKey, error) {
	text, err := readKey(where)
	if err != nil {
		return nil, err
	}
	key, err := ParsePublicKey(text)
	if errors.Is(err, errEncrypted) {
		err = fault.Hint(err, "name its public half: `openssl pkey -in team.key -pubout -out team.pub` writes it")
	}
	return key, explain(where, err)
}

// explain says which key cannot be read, and what can be done about that: it is there, so that another one is never the cure.
func explain(where string, err error) error {
	if err == nil {
		return nil
	}
	hint := fault.HintOf(err)
	switch {
	case hint != "":
	case errors.Is(err, errPublic):
		hint = givePrivate
	case errors.Is(err, errNoKey):
		hint = giveText
	case errors.Is(err, errEncrypted):
		hint = givePassword
	case errors.Is(err, errPassword):
		hint = "correct SCONCE_KEY_PASSWORD, which opens this key"
	default:
		hint = otherForm
	}
	return fault.Usage(fault.Hint(fmt.Errorf("read the key %s: %w", where, err), hint))
}

func readKey(where string) ([]byte, error) {
	where = strings.TrimPrefix(where, "file:")
	if name, ok := strings.CutPrefix(where, "env:"); ok {
		text, _ := Withhold(name)
		if text == "" {
			err := fault.Usage(fmt.Errorf("the key is to be in the variable %s, which is not set", name))
			return nil, fault.Hint(err, fmt.Sprintf(`set it to the text of the key: export %s="$(cat team.key)"`, quote.Word(name)))
		}
		return []byte(text), nil
	}
	f, err := os.Open(where)
	if err != nil {
		hint := "let yourself read it, or name another file"
		if errors.Is(err, fs.ErrNotExist) {
			hint = "correct its path; where there never was a key, " + makeKey
		}
		return nil, fault.Hint(fault.Usage(fmt.Errorf("read the key: %w", err)), hint)
	}
	defer f.Close()
	text, err := ctxio.ReadAtMost(f, maxKey)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("read the key %s: %w", where, err))
	}
	return text, nil
}

// What can be wrong with the text of a key.
var (
	errNoKey     = errors.New("there is no key in PEM in it")
	errPublic    = errors.New("it is a public key: who signs needs the private one")
	errEncrypted = errors.New("it is encrypted, and there is no password")
)

// findBlock returns the first block of a PEM text that is a key: openssl writes the curve's name before it.
func findBlock(text []byte) (*pem.Block, error) {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil, errNoKey
		}
		if strings.HasSuffix(block.Type, " KEY") {
			return block, nil
		}
		text = rest
	}
}

// ParsePrivateKey reads a private key in PEM: PKCS #8 (RFC 5208), also encrypted (RFC 8018), SEC 1 (RFC 5915), or cosign's own form.
func ParsePrivateKey(text []byte, password func() ([]byte, error)) (*PrivateKey, error) {
	block, err := findBlock(text)
	if err != nil {
		return nil, err
	}
	var der any
	switch {
	case strings.HasPrefix(block.Headers["Proc-Type"], "4,ENCRYPTED"):
		return nil, errors.New("it is encrypted in a way that protects little: convert it with `openssl pkcs8 -topk8 -in OLD -out NEW`")
	case block.Type == "PRIVATE KEY":
		der, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case block.Type == "EC PRIVATE KEY":
		der, err = x509.ParseECPrivateKey(block.Bytes)
	case strings.HasPrefix(block.Type, "ENCRYPTED "):
		der, err = decryptBlock(block, password)
	case block.Type == "PUBLIC KEY":
		err = errPublic
	default:
		err = fmt.Errorf("a %q is not understood", block.Type)
	}
	if err != nil {
		return nil, err
	}
	return newPrivateKey(der)
}

func newPrivateKey(key any) (*PrivateKey, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	if _, err := newPublicKey(signer.Public()); err != nil {
		return nil, err
	}
	return &PrivateKey{signer: signer}, nil
}

// ParsePublicKey reads a public key in PEM (RFC 5280, SubjectPublicKeyInfo).
func ParsePublicKey(text []byte) (*PublicKey, error) {
	block, err := findBlock(text)
	if err != nil {
		return nil, err
	}
	if block.Type != "PUBLIC KEY" {
		private, err := ParsePrivateKey(text, nil)
		if err != nil {
			return nil, err
		}
		return private.Public(), nil
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return newPublicKey(key)
}

func newPublicKey(key crypto.PublicKey) (*PublicKey, error) {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return nil, fmt.Errorf("a key on %s is not understood: P-256 and Ed25519 are", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("a key of type %T is not understood: P-256 and Ed25519 are", key)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return &PublicKey{key: key, id: base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// Public returns the public half.
func (k *PrivateKey) Public() *PublicKey {
	public, err := newPublicKey(k.signer.Public())
	if err != nil {
		panic(err) // the same was done when the key was read
	}
	return public
}

// ID is the SHA-256 of the key in base64, by which a bundle names it.
func (k *PublicKey) ID() string { return k.id }

func (k *PrivateKey) sign(message []byte) ([]byte, error) {
	if _, ok := k.signer.(ed25519.PrivateKey); ok {
		return k.signer.Sign(rand.Reader, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return k.signer.Sign(rand.Reader, sum[:], crypto.SHA256)
}

func (k *PublicKey) verify(message, sig []byte) bool {
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], sig)
	case ed25519.PublicKey:
		return ed25519.Verify(key, message, sig)
	}
	return false
}
