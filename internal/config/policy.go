package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/users"
)

// PolicyFile is the file in a store by which whoever keeps it says what the store is to hold, for all who use it.
const PolicyFile = "policy.toml"

// Policy is what such a file says. The zero value says nothing.
type Policy struct {
	MaxSize  *Size            // of the store
	MaxAge   time.Duration    // what nothing has used for so long goes; 0: nothing is said
	UserSize int64            // bytes that a user's blobs, trees and records may take; 0: no limit
	Users    map[uint32]int64 // of one user, by id, before UserSize; 0: no limit
}

// policy is the file.
type policy struct {
	MaxSize  *string           `toml:"max-size"`
	MaxAge   *string           `toml:"max-age"`
	UserSize *string           `toml:"user-size"`
	Users    map[string]string `toml:"users"`
}

var policyKeys = []string{"max-size", "max-age", "user-size", "users"}

// LoadPolicy reads the policy of the store in dir, if there is one.
func LoadPolicy(dir string) (Policy, error) {
	path := filepath.Join(dir, PolicyFile)
	var f policy
	_, err := read(path, &f, policyKeys)
	if errors.Is(err, fs.ErrNotExist) {
		return Policy{}, nil
	}
	var p Policy
	if err == nil {
		p, err = f.mean()
	}
	if err != nil {
		return p, fault.Usage(fmt.Errorf("policy %s: %w", path, err))
	}
	return p, nil
}

// mean is what the words of the file mean.
func (f policy) mean() (Policy, error) {
	p := Policy{Users: map[uint32]int64{}}
	var err error
	if f.MaxSize != nil {
		size, err := ParseSize(*f.MaxSize)
		if err != nil {
			return p, fmt.Errorf("max-size: %w", err)
		}
		p.MaxSize = &size
	}
	if f.MaxAge != nil {
		if p.MaxAge, err = units.ParseAge(*f.MaxAge); err != nil || p.MaxAge == 0 {
			return p, fmt.Errorf("max-age %q: it is a time like 12h, 30d or 2w", *f.MaxAge)
		}
	}
	if f.UserSize != nil {
		if p.UserSize, err = userSize(*f.UserSize); err != nil {
			return p, fmt.Errorf("user-size: %w", err)
		}
	}
	for name, text := range f.Users {
		uid, known := users.ID(name)
		if !known {
			continue // one who has left, or is known on other machines only
		}
		if p.Users[uid], err = userSize(text); err != nil {
			return p, fmt.Errorf("users: %s: %w", name, err)
		}
	}
	return p, nil
}

// userSize reads "500GB" or "none", which is 0.
func userSize(text string) (int64, error) {
	size, err := ParseSize(text)
	if err == nil && size.Share > 0 {
		err = errors.New(`write a size like "500GB", or "none" for no limit`)
	}
	return size.Bytes, err
}

// OfUser is how many bytes a user may have; 0 is no limit.
func (p Policy) OfUser(uid uint32) int64 {
	if n, said := p.Users[uid]; said {
		return n
	}
	return p.UserSize
}
