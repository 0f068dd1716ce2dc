package attest

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
)

// Believe is a key that is trusted without limits, by where it is.
func Believe(where string) Trusted { return Trusted{Key: where} }

// Trusted is a public key whose signatures are believed, as a pipeline's file or the configuration lists it.
type Trusted struct {
	Key     string `toml:"key"`     // its file, or "env:NAME", or the PEM text itself
	Since   string `toml:"since"`   // a day, or a time (RFC 3339), from which on what it signs counts; "": always
	Until   string `toml:"until"`   // likewise, to which: a day counts to its end
	Revoked bool   `toml:"revoked"` // nothing that it has signed counts, whenever that was
	Comment string `toml:"comment"` // for people
}

// pemStart is how a PEM text begins (RFC 7468).
const pemStart = "-----BEGIN "

// Read reads the key. A file is looked for in dir. What it signed counts in the time that t says.
func (t Trusted) Read(dir string) (*PublicKey, error) {
	where := strings.TrimPrefix(t.Key, "file:")
	var key *PublicKey
	var err error
	switch {
	case strings.Contains(where, pemStart):
		if key, err = ParsePublicKey([]byte(where)); err != nil {
			err = fault.Usage(fmt.Errorf("read the public key: %w", err))
		}
	case strings.HasPrefix(where, "env:") || filepath.IsAbs(where):
		key, err = ReadPublicKey(where)
	default:
		key, err = ReadPublicKey(filepath.Join(dir, where))
	}
	if err != nil {
		return nil, err
	}
	if err := t.CheckDays(); err != nil {
		return nil, fault.Usage(fmt.Errorf("key %s: %w", t.Name(), err))
	}
	limited := *key
	limited.revoked = t.Revoked
	if t.Since != "" || t.Until != "" {
		since, until, _ := t.days()
		limited.spans = []span{{since, until}}
	}
	return &limited, nil
}

// CheckDays reports dates that cannot be.
func (t Trusted) CheckDays() error {
	_, _, err := t.days()
	return err
}

func (t Trusted) days() (since, until time.Time, err error) {
	if since, err = parseDay(t.Since, 0); err != nil {
		return since, until, fmt.Errorf("since: %w", err)
	}
	if until, err = parseDay(t.Until, 24*time.Hour-time.Nanosecond); err != nil {
		return since, until, fmt.Errorf("until: %w", err)
	}
	if !until.IsZero() && until.Before(since) {
		err = fmt.Errorf("until %s is before since %s", t.Until, t.Since)
	}
	return since, until, err
}

// Name is what people call the key: where it is, never its text.
func (t Trusted) Name() string {
	if strings.Contains(t.Key, pemStart) {
		return "in PEM"
	}
	return t.Key
}

// parseDay reads a time, or a day, of which the time is so far from its beginning. "" is the zero time.
func parseDay(text string, within time.Duration) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no date: write 2026-11-27, or 2026-11-27T10:00:00Z", text)
	}
	return at.Add(within), nil
}

// span is a time in which what a key signs counts; zero: without an end.
type span struct{ since, until time.Time }

// Counts reports whether a document that the key has signed is believed, by the time that the document says it is of. Where that counts for some
// time alone, a document that does not say its time, or damaged, could be of any, and is not believed.
func (k *PublicKey) Counts(at time.Time) bool {
	if k.revoked || len(k.spans) == 0 {
		return !k.revoked
	}
	return !at.IsZero() && slices.ContainsFunc(k.spans, func(s span) bool {
		return !at.Before(s.since) && (s.until.IsZero() || !at.After(s.until))
	})
}

// together is what a list of keys says of one of them, in all of its entries: it is revoked where one says so, and counts whenever one says so.
func together(key *PublicKey, keys []*PublicKey) *PublicKey {
	all := *key
	all.spans = nil
	always := false
	for _, other := range keys {
		if other.Is(key) {
			all.revoked = all.revoked || other.revoked
			all.spans = append(all.spans, other.spans...)
			always = always || len(other.spans) == 0
		}
	}
	if always {
		all.spans = nil
	}
	return &all
}

// Revoked reports whether nothing counts that the key has signed.
func (k *PublicKey) Revoked() bool { return k.revoked }

// Is reports whether two are the same key, however long they count.
func (k *PublicKey) Is(other *PublicKey) bool { return other != nil && k.id == other.id }

// Fingerprint is the key's SHA-256 as people compare it.
func (k *PublicKey) Fingerprint() string { return fingerprint(k.id) }

func fingerprint(id string) string { return "SHA256:" + strings.TrimRight(id, "=") }

// After returns the key as the successor of others: who writes with it may write over what they have signed, and believes them besides it.
func (k *PrivateKey) After(others []*PublicKey) *PrivateKey {
	if k == nil || len(others) == 0 {
		return k
	}
	return &PrivateKey{signer: k.signer, after: others}
}

// Trust is whose signatures count for who writes with the key: its own, and those of the keys that it comes after.
func (k *PrivateKey) Trust() []*PublicKey { return append([]*PublicKey{k.Public()}, k.after...) }

// ErrUncounted is the error of a bundle that a known key has signed which does not count: it is as if the bundle were not there.
var ErrUncounted = errors.New("the key that it is signed with does not count")

// SignedBy returns the fingerprint of the key that a bundle says it is signed with, to tell people of it: nothing is judged. "": it says none.
func SignedBy(data []byte) string {
	b, err := parseBundle(data)
	if err != nil || b.Material.PublicKey == nil {
		return ""
	}
	if sum, err := base64.StdEncoding.Strict().DecodeString(b.Material.PublicKey.Hint); err != nil || len(sum) != sha256.Size || strings.ContainsAny(b.Material.PublicKey.Hint, "\r\n") {
		return "" // it is no fingerprint, but what somebody wants people to read
	}
	return fingerprint(b.Material.PublicKey.Hint)
}
