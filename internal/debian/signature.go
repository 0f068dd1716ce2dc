package debian

import (
	"bytes"
	"crypto"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// archiveKeys are the keys with which Debian and Ubuntu sign their archives, as their packages debian-archive-keyring and
// ubuntu-keyring have them. Their copyright files say that keys fall under no copyright. docs/guide/bootstrap.md lists the
// fingerprints.
//
//go:embed keys/*.gpg
var archiveKeys embed.FS

// Keyring is keys of archives. The zero value has none.
type Keyring struct {
	keys openpgp.EntityList
}

// ArchiveKeys returns the keys of Debian's and of Ubuntu's archive that came with this program.
func ArchiveKeys() *Keyring {
	k := &Keyring{}
	files, err := archiveKeys.ReadDir("keys")
	if err != nil {
		panic(err) // it is a part of the program
	}
	for _, f := range files {
		data, err := archiveKeys.ReadFile("keys/" + f.Name())
		if err == nil {
			err = k.Add(data)
		}
		if err != nil {
			panic(err) // likewise
		}
	}
	return k
}

// armorBegins is how files of keys and signatures begin that are text.
const armorBegins = "-----BEGIN PGP"

// Add adds the public keys of a file, armored (.asc) or not (.gpg).
func (k *Keyring) Add(file []byte) error {
	read := openpgp.ReadKeyRing
	if bytes.HasPrefix(bytes.TrimSpace(file), []byte(armorBegins)) {
		read = openpgp.ReadArmoredKeyRing
	}
	keys, err := read(bytes.NewReader(file))
	if err != nil {
		return fmt.Errorf("it has no OpenPGP keys that can be read: %w", err)
	}
	k.keys = append(k.keys, keys...)
	return nil
}

// Fingerprints returns those of the keys, in upper case.
func (k *Keyring) Fingerprints() []string {
	var all []string
	for _, e := range k.keys {
		all = append(all, fmt.Sprintf("%X", e.PrimaryKey.Fingerprint))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// UnknownKeyError says that a text is signed with keys that nobody has named.
type UnknownKeyError struct {
	IDs []string // the ids of the keys, 16 hexadecimal digits each
}

func (e *UnknownKeyError) Error() string {
	return "it is signed with a key that is not known here: " + strings.Join(e.IDs, ", ")
}

// ErrUnsigned says that a text has no signature.
var ErrUnsigned = errors.New("it is not signed")

// OpenSigned returns what a clear-signed text (RFC 9580, section 7) says, once one of the keyring's keys has signed it. It says
// nothing that is not signed: nothing may stand before or behind.
func (k *Keyring) OpenSigned(text []byte, now time.Time) ([]byte, error) {
	if !bytes.HasPrefix(text, []byte("-----BEGIN PGP SIGNED MESSAGE-----")) {
		return nil, ErrUnsigned
	}
	block, rest := clearsign.Decode(text)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("its signature is damaged")
	}
	return block.Plaintext, k.verify(block.Bytes, block.ArmoredSignature.Body, now)
}

// Unsigned returns what a clear-signed text says, whoever signed it, or the text itself.
func Unsigned(text []byte) []byte {
	if block, _ := clearsign.Decode(text); block != nil {
		return block.Plaintext
	}
	return text
}

// Verify checks that one of the keyring's keys has made the signature of text.
func (k *Keyring) Verify(text, signature []byte, now time.Time) error {
	var r io.Reader = bytes.NewReader(signature)
	if bytes.HasPrefix(bytes.TrimSpace(signature), []byte(armorBegins)) {
		block, err := armor.Decode(r)
		if err != nil {
			return fmt.Errorf("its signature is damaged: %w", err)
		}
		r = block.Body
	}
	return k.verify(text, r, now)
}

// maxSignatures bounds how many are looked at. Debian makes three: of the keys of two releases, and of one of them for stable.
const maxSignatures = 32

// goodHashes are those of signatures that count.
var goodHashes = []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512}

// verify wants one good signature of several.
func (k *Keyring) verify(text []byte, signatures io.Reader, now time.Time) error {
	packets := packet.NewOpaqueReader(signatures)
	var unknown UnknownKeyError
	var bad error
	for range maxSignatures {
		p, err := packets.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("its signature is damaged: %w", err)
		}
		if p.Tag != signatureTag {
			continue
		}
		id, err := k.verifyPacket(text, p, now)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errNoSignature):
		case errors.Is(err, pgperrors.ErrUnknownIssuer):
			unknown.IDs = append(unknown.IDs, fmt.Sprintf("%016X", id))
		default:
			bad = err
		}
	}
	switch {
	case bad != nil:
		return fmt.Errorf("its signature is not good: %w", bad)
	case len(unknown.IDs) > 0:
		return &unknown
	}
	return ErrUnsigned
}

const signatureTag = 2 // of packets, RFC 9580, section 5

// errNoSignature says of a packet that nobody can check it here.
var errNoSignature = errors.New("it is no signature that is known here")

// verifyPacket checks one signature, and returns the id of the key that it names.
func (k *Keyring) verifyPacket(text []byte, p *packet.OpaquePacket, now time.Time) (id uint64, err error) {
	if isSignature3(p) {
		s, err := parseSignature3(p.Contents)
		if err != nil {
			return 0, err
		}
		return s.key, k.verify3(text, s, now)
	}
	parsed, err := p.Parse()
	var unsupported pgperrors.UnsupportedError
	if errors.As(err, &unsupported) {
		return 0, errNoSignature
	}
	if err != nil {
		return 0, err
	}
	sig, ok := parsed.(*packet.Signature)
	if !ok || sig.IssuerKeyId == nil {
		return 0, errNoSignature
	}
	if !slices.Contains(goodHashes, sig.Hash) {
		return *sig.IssuerKeyId, errors.New("it is signed with a hash that is no longer safe")
	}
	return *sig.IssuerKeyId, k.verifyOne(text, sig, now)
}

func (k *Keyring) verifyOne(text []byte, sig *packet.Signature, now time.Time) error {
	var one bytes.Buffer
	if err := sig.Serialize(&one); err != nil {
		return err
	}
	_, err := openpgp.CheckDetachedSignature(k.keys, bytes.NewReader(text), &one, &packet.Config{Time: func() time.Time { return now }})
	return err
}
