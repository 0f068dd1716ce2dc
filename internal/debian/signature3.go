package debian

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// signature3 is a signature packet of version 3 (RFC 9580, section 5.2.2), by RSA. Nobody makes them but for RPM packages, and there
// openSUSE and others still do; the library that reads all others no longer knows them.
type signature3 struct {
	hashed  []byte // what is hashed behind the text: the kind of signature, and when it was made
	made    time.Time
	key     uint64 // its id
	hash    crypto.Hash
	number  []byte // the signature itself
	leftTwo []byte // the first two bytes of the hash
}

// hashes3 are those of signatures that count, by their numbers (section 9.5).
var hashes3 = map[byte]crypto.Hash{8: crypto.SHA256, 9: crypto.SHA384, 10: crypto.SHA512}

const rsaAlgorithm = 1 // section 9.1

var errSignature3 = errors.New("its signature is damaged")

// isSignature3 tells a packet with such a signature.
func isSignature3(p *packet.OpaquePacket) bool { return len(p.Contents) > 0 && p.Contents[0] == 3 }

func parseSignature3(data []byte) (*signature3, error) {
	// version, 5, kind, time (4), key (8), algorithm, hash, two bytes of the hash, bits of the number (2)
	if len(data) < 21 || data[1] != 5 || data[2] != 0 {
		return nil, errSignature3
	}
	s := &signature3{
		hashed: data[2:7], made: time.Unix(int64(binary.BigEndian.Uint32(data[3:])), 0), key: binary.BigEndian.Uint64(data[7:]),
		hash: hashes3[data[16]], leftTwo: data[17:19], number: data[21:],
	}
	if data[15] != rsaAlgorithm || len(s.number) != (int(binary.BigEndian.Uint16(data[19:]))+7)/8 {
		return nil, errSignature3
	}
	return s, nil
}

// verify3 checks one such signature. Its errors are those of [Keyring.verifyOne].
func (k *Keyring) verify3(text []byte, s *signature3, now time.Time) error {
	keys := k.keys.KeysByIdUsage(s.key, packet.KeyFlagSign)
	if len(keys) == 0 {
		return pgperrors.ErrUnknownIssuer
	}
	if s.hash == 0 {
		return errors.New("it is signed with a hash that is no longer safe")
	}
	h := s.hash.New()
	h.Write(text)
	h.Write(s.hashed)
	sum := h.Sum(nil)
	if !bytes.HasPrefix(sum, s.leftTwo) {
		return errors.New("it is of something else")
	}
	err := pgperrors.ErrUnknownIssuer
	for _, key := range keys {
		public, ok := key.PublicKey.PublicKey.(*rsa.PublicKey)
		if !ok || len(s.number) > public.Size() {
			continue
		}
		if key.SelfSignature == nil || key.Revoked(now) || key.PublicKey.KeyExpired(key.SelfSignature, now) || s.made.Before(key.PublicKey.CreationTime) {
			return fmt.Errorf("the key %016X has expired, or is revoked", s.key)
		}
		padded := slices.Concat(make([]byte, public.Size()-len(s.number)), s.number)
		if rsa.VerifyPKCS1v15(public, s.hash, sum, padded) == nil {
			return nil
		}
		return errors.New("it is of something else")
	}
	return err
}
