package attest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// errPassword is the error of a password that does not open a key.
var errPassword = errors.New("the password is wrong, or the key is damaged")

func decryptBlock(block *pem.Block, password func() ([]byte, error)) (any, error) {
	if password == nil {
		return nil, errEncrypted
	}
	secret, err := password()
	if err != nil {
		return nil, err
	}
	var der []byte
	switch block.Type {
	case "ENCRYPTED PRIVATE KEY":
		der, err = openPKCS8(block.Bytes, secret)
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		der, err = openSigstore(block.Bytes, secret)
	default:
		err = fmt.Errorf("an %q is not understood", block.Type)
	}
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errPassword
	}
	return key, nil
}

// The object identifiers of what openssl encrypts with (RFC 8018, appendix A and B; NIST's for AES and SHA-2).
var (
	oidPBES2      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}
	oidPBKDF2     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}
	oidHMACSHA256 = asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 9}
	oidAES128CBC  = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 2}
	oidAES256CBC  = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42}
)

// maxRounds bounds the work that a key file can ask for.
const maxRounds = 10_000_000

type encryptedKey struct {
	Algorithm pkix.AlgorithmIdentifier
	Data      []byte
}

type pbes2 struct {
	Derivation pkix.AlgorithmIdentifier
	Cipher     pkix.AlgorithmIdentifier
}

type pbkdf2Parameters struct {
	Salt      []byte
	Rounds    int
	KeyLength int                      `asn1:"optional"`
	PRF       pkix.AlgorithmIdentifier `asn1:"optional"`
}

// openPKCS8 decrypts what `openssl genpkey -aes256` writes: PBES2 with PBKDF2, HMAC-SHA-256 and AES in CBC.
func openPKCS8(data, password []byte) ([]byte, error) {
	var e encryptedKey
	var scheme pbes2
	var d pbkdf2Parameters
	var iv []byte
	ok := readDER(data, &e) && readDER(e.Algorithm.Parameters.FullBytes, &scheme) &&
		readDER(scheme.Derivation.Parameters.FullBytes, &d) && readDER(scheme.Cipher.Parameters.FullBytes, &iv)
	length := map[string]int{oidAES128CBC.String(): 16, oidAES256CBC.String(): 32}[scheme.Cipher.Algorithm.String()]
	known := ok && e.Algorithm.Algorithm.Equal(oidPBES2) && scheme.Derivation.Algorithm.Equal(oidPBKDF2) && d.PRF.Algorithm.Equal(oidHMACSHA256)
	if !known || length == 0 || d.Rounds < 1 || d.Rounds > maxRounds || len(iv) != aes.BlockSize {
		return nil, errors.New("its encryption is not understood: `openssl pkcs8 -topk8 -v2 aes256 -v2prf hmacWithSHA256 -in OLD -out NEW` writes one that is")
	}
	key, err := pbkdf2.Key(sha256.New, string(password), d.Salt, d.Rounds, length)
	if err != nil {
		return nil, err
	}
	return decryptCBC(key, iv, e.Data)
}

func readDER(data []byte, into any) bool {
	rest, err := asn1.Unmarshal(data, into)
	return err == nil && len(rest) == 0
}

func decryptCBC(key, iv, data []byte) ([]byte, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 || len(data)%aes.BlockSize != 0 {
		return nil, errPassword
	}
	out := make([]byte, len(data))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(out, data)
	padding := int(out[len(out)-1])
	if padding == 0 || padding > aes.BlockSize {
		return nil, errPassword
	}
	return out[:len(out)-padding], nil
}

// sigstoreKey is how cosign encrypts its keys: scrypt and NaCl's secretbox, in JSON.
type sigstoreKey struct {
	KDF struct {
		Name   string `json:"name"`
		Params struct {
			N int `json:"N"`
			R int `json:"r"`
			P int `json:"p"`
		} `json:"params"`
		Salt []byte `json:"salt"`
	} `json:"kdf"`
	Cipher struct {
		Name  string `json:"name"`
		Nonce []byte `json:"nonce"`
	} `json:"cipher"`
	Ciphertext []byte `json:"ciphertext"`
}

// maxScrypt bounds the memory that such a key can ask for, in bytes: 128 * N * r.
const maxScrypt = 512 << 20

func openSigstore(data, password []byte) ([]byte, error) {
	var k sigstoreKey
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	p := k.KDF.Params
	if k.KDF.Name != "scrypt" || k.Cipher.Name != "nacl/secretbox" || len(k.Cipher.Nonce) != 24 {
		return nil, fmt.Errorf("its encryption, %q and %q, is not understood", k.KDF.Name, k.Cipher.Name)
	}
	if p.N < 2 || p.N > maxScrypt || p.R < 1 || p.R > 64 || p.P < 1 || p.P > 16 || 128*p.N*p.R > maxScrypt {
		return nil, errors.New("its encryption asks for more memory than a key needs")
	}
	derived, err := scrypt.Key(password, k.KDF.Salt, p.N, p.R, p.P, 32)
	if err != nil {
		return nil, err
	}
	out, ok := secretbox.Open(nil, k.Ciphertext, (*[24]byte)(k.Cipher.Nonce), (*[32]byte)(derived))
	if !ok {
		return nil, errPassword
	}
	return out, nil
}
