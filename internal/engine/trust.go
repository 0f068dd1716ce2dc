package engine

import (
	"sconce.dev/sconce/internal/attest"
)

// TrustedKeys reads public keys: from files or "env:NAME", or as the configuration lists them.
func TrustedKeys[K string | attest.Trusted](list []K) ([]*attest.PublicKey, error) {
	var keys []*attest.PublicKey
	for _, one := range list {
		t, ok := any(one).(attest.Trusted)
		if !ok {
			t = attest.Believe(any(one).(string))
		}
		key, err := t.Read("")
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Believed are the keys whose evidence counts: those of flags, else those of the configuration.
func (s Settings) Believed(flags []string) []attest.Trusted {
	if len(flags) == 0 && s.Config.Keys != nil {
		return *s.Config.Keys
	}
	all := make([]attest.Trusted, len(flags))
	for i, where := range flags {
		all[i] = attest.Believe(where)
	}
	return all
}

// SigningKey is [SigningKey] for a key that comes after those of the configuration: it may write over what they have signed.
func (s Settings) SigningKey(where string) (*attest.PrivateKey, error) {
	key, err := SigningKey(where)
	if err != nil || key == nil {
		return nil, err
	}
	before, err := TrustedKeys(s.Believed(nil))
	return key.After(before), err
}

// KnownKey is a key whose signatures are judged here, and what says so.
type KnownKey struct {
	Key         string `json:"key"` // where it is
	Fingerprint string `json:"fingerprint"`
	From        string `json:"from"`            // the file that names it
	Signs       bool   `json:"signs,omitempty"` // it is the private key that a pipeline signs with
	Since       string `json:"since,omitempty"`
	Until       string `json:"until,omitempty"`
	Revoked     bool   `json:"revoked,omitempty"`
	Comment     string `json:"comment,omitempty"`
	Problem     string `json:"problem,omitempty"` // why it cannot be read
	Err         error  `json:"-"`                 // likewise
}

// KnowKey describes a key of a list in a file; relative paths begin in dir.
func KnowKey(t attest.Trusted, dir, from string) KnownKey {
	k := KnownKey{Key: t.Name(), From: from, Since: t.Since, Until: t.Until, Revoked: t.Revoked, Comment: t.Comment}
	key, err := t.Read(dir)
	if err != nil {
		k.Problem, k.Err = err.Error(), err
		return k
	}
	k.Fingerprint = key.Fingerprint()
	return k
}

// KnownKeys describes the keys of the configuration.
func (s Settings) KnownKeys() []KnownKey {
	all := []KnownKey{}
	if s.Config.Keys == nil {
		return all
	}
	from := ""
	for _, said := range s.Config.Settings {
		if said.Key == "keys" {
			from = said.From
		}
	}
	for _, t := range *s.Config.Keys {
		all = append(all, KnowKey(t, "", from))
	}
	return all
}
