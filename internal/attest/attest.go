// Package attest makes and reads signed statements about images: an in-toto Statement (in-toto/attestation, v1) in a DSSE envelope
// (secure-systems-lab/dsse, v1.0.2) in a Sigstore bundle (v0.3) that names a public key. Everything is done without network: who
// has the public key can judge, with this package or with `cosign verify-attestation`.
package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"sconce.dev/sconce/internal/store"
)

// The types that such documents say they are.
const (
	BundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	statementType = "https://in-toto.io/Statement/v1"
	payloadType   = "application/vnd.in-toto+json"
)

// Types of predicates.
const (
	TestResult = "https://in-toto.io/attestation/test-result/v0.1"
	Provenance = "https://slsa.dev/provenance/v1"
	CycloneDX  = "https://cyclonedx.org/bom"
	SPDX       = "https://spdx.dev/Document"
)

// MaxBundle bounds a bundle, in bytes: the list of what a large image holds is some megabytes.
const MaxBundle = 64 << 20

// Statement says something about images.
type Statement struct {
	Type          string          `json:"_type"`
	Subject       []Subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`

	signer *PublicKey // of a statement that was verified
}

// Signer is the key that has signed a statement that was verified.
func (s *Statement) Signer() *PublicKey { return s.signer }

// Subject is what a statement is about.
type Subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"` // "sha256": hex
}

// New returns the statement that predicate, which becomes JSON, holds for the image of a digest.
func New(image store.Digest, name, predicateType string, predicate any) (*Statement, error) {
	data, err := json.Marshal(predicate)
	if err != nil {
		return nil, err
	}
	about := Subject{Name: name, Digest: map[string]string{"sha256": image.Hex()}}
	return &Statement{Type: statementType, Subject: []Subject{about}, PredicateType: predicateType, Predicate: data}, nil
}

// IsAbout reports whether the statement is about the image of a digest.
func (s *Statement) IsAbout(image store.Digest) bool {
	for _, about := range s.Subject {
		if about.Digest["sha256"] == image.Hex() {
			return true
		}
	}
	return false
}

// bundle is a Sigstore bundle with what a signature by a key needs (sigstore/protobuf-specs, sigstore_bundle.proto).
type bundle struct {
	MediaType string       `json:"mediaType"`
	Material  verification `json:"verificationMaterial"`
	Envelope  *envelope    `json:"dsseEnvelope"`
}

type verification struct {
	PublicKey *keyHint `json:"publicKey,omitempty"`
}

type keyHint struct {
	Hint string `json:"hint"`
}

// envelope is a DSSE envelope.
type envelope struct {
	Payload     []byte      `json:"payload"` // base64 in JSON
	PayloadType string      `json:"payloadType"`
	Signatures  []signature `json:"signatures"`
}

// signature has no key id: those who know one by another name than the bundle's hint would not try the key.
type signature struct {
	Sig []byte `json:"sig"`
}

// pae is what is signed for a payload: DSSE's "Pre-Authentication Encoding".
func pae(payloadType string, payload []byte) []byte {
	out := []byte("DSSEv1 " + strconv.Itoa(len(payloadType)) + " " + payloadType + " " + strconv.Itoa(len(payload)) + " ")
	return append(out, payload...)
}

// Sign returns a bundle with the statement, signed.
func Sign(s *Statement, key *PrivateKey) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return SignPayload(payload, key)
}

// SignPayload is [Sign] for a statement that is written already: another key signs the same bytes.
func SignPayload(payload []byte, key *PrivateKey) ([]byte, error) {
	sig, err := key.sign(pae(payloadType, payload))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	data, err := json.Marshal(bundle{
		MediaType: BundleType, Material: verification{PublicKey: &keyHint{key.Public().ID()}},
		Envelope: &envelope{Payload: payload, PayloadType: payloadType, Signatures: []signature{{sig}}},
	})
	if err == nil && len(data) > MaxBundle {
		err = fmt.Errorf("a statement of %d bytes is too long", len(data))
	}
	return data, err
}

// ErrSignature is the error of a bundle that none of the keys has signed.
var ErrSignature = errors.New("it is not signed by a key that is trusted")

// maxSignatures bounds how many signatures of an envelope are looked at.
const maxSignatures = 16

// Payload returns what a bundle holds, whoever has signed it: nothing is to be decided by it. nil: it holds nothing.
func Payload(data []byte) []byte {
	var b bundle
	if len(data) > MaxBundle || json.Unmarshal(data, &b) != nil || b.Envelope == nil {
		return nil
	}
	return b.Envelope.Payload
}

// parseBundle reads a bundle as far as its envelope.
func parseBundle(data []byte) (*bundle, error) {
	var b bundle
	if len(data) > MaxBundle {
		return nil, errors.New("the bundle is too long")
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("the bundle is damaged: %w", err)
	}
	if b.MediaType != BundleType || b.Envelope == nil || b.Envelope.PayloadType != payloadType {
		return nil, fmt.Errorf("it is no bundle of a statement: media type %q", b.MediaType)
	}
	return &b, nil
}

// Verify reads a bundle that one of the keys has signed. Nothing of another is believed. The error is [ErrUncounted] when only keys have signed
// it that are revoked; whether others count depends on the time that the statement says, see [PublicKey.Counts].
func Verify(data []byte, keys ...*PublicKey) (*Statement, error) {
	b, err := parseBundle(data)
	if err != nil {
		return nil, err
	}
	signer := b.Envelope.signer(keys)
	switch {
	case signer == nil:
		return nil, ErrSignature
	case signer.revoked:
		return nil, fmt.Errorf("%s is revoked: %w", signer.Fingerprint(), ErrUncounted)
	}
	var s Statement
	if err := json.Unmarshal(b.Envelope.Payload, &s); err != nil {
		return nil, fmt.Errorf("its statement is damaged: %w", err)
	}
	if s.Type != statementType {
		return nil, fmt.Errorf("it is no statement of in-toto v1: %q", s.Type)
	}
	s.signer = signer
	return &s, nil
}

// signer is the key of some that has signed an envelope, nil for none: one that is revoked only where no other has.
func (e *envelope) signer(keys []*PublicKey) (found *PublicKey) {
	message := pae(e.PayloadType, e.Payload)
	for _, s := range e.Signatures[:min(len(e.Signatures), maxSignatures)] {
		for _, key := range keys {
			if !key.verify(message, s.Sig) {
				continue
			}
			if key = together(key, keys); !key.revoked {
				return key
			}
			found = key
		}
	}
	return found
}
