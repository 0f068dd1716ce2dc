// Package system installs packages by the base's own package manager, the same ones every time.
//
// It works in two halves, as package bootstrap does, so that the second needs no network but for files whose hashes are
// known:
//
//   - [Resolve] lets the base's own manager say, in a sandbox whose changes are thrown away, what installing some packages
//     means today, and pins each one by version, URL, size and SHA-256. This is what a lock keeps.
//   - [Layer] downloads exactly those packages and lets the manager install them, and nothing else, without a network.
//
// Packages that others only recommend are left out: images shall be small, and who needs one names it.
//
//	system.go   what is pinned                resolve.go  asking a manager in the sandbox
//	apt.go      Debian's manager              layer.go    from pinned packages to a layer
package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/step"
	"sconce.dev/sconce/internal/store"
)

// Version is the version of the code that installs: it enters every key.
const Version = 1

// Package is one pinned package file.
type Package struct {
	Name         string
	Version      string
	Architecture string
	URL          string // file: is a path within the base
	Size         int64  // bytes
	SHA256       store.Digest
}

// Pinned is what installing some packages on a base means. Neither Packages nor Remove has anything when the base has it
// all.
type Pinned struct {
	Manager  string    `toml:"manager"`                      // apt
	Asked    []string  `toml:"asked,multiline"`              // NAME or NAME:ARCHITECTURE of what was asked for by name, not by another package
	Packages []Package `toml:"packages,omitempty,multiline"` // new ones, and newer ones of the base's
	Remove   []string  `toml:"remove,omitempty,multiline"`   // packages of the base that go, because others conflict with them
}

// Request says what is wanted.
type Request struct {
	On       []layer.Descriptor // the base, lowest first
	Platform v1.Platform        // of the base
	Packages []string           // as the recipe names them: NAME, NAME=VERSION, NAME:ARCHITECTURE
}

// Empty reports whether the base has everything already, so that there is nothing to install.
func (p *Pinned) Empty() bool { return len(p.Packages) == 0 && len(p.Remove) == 0 }

// Key identifies what is installed: on equal bases, equal keys make equal layers. Where packages are downloaded from makes
// no difference.
func (p *Pinned) Key() string {
	q := *p
	q.Packages = make([]Package, len(p.Packages))
	for i, pkg := range p.Packages {
		pkg.URL = ""
		q.Packages[i] = pkg
	}
	data, err := json.Marshal(struct {
		Version int
		Pinned  Pinned
	}{Version, q})
	if err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Resolve asks the base's package manager, over the network, what installing r.Packages means today.
func Resolve(ctx context.Context, st *store.Store, r Request) (*Pinned, error) {
	return nil, errors.ErrUnsupported
}

// Layer makes the layer that p pins, on the base. The result is remembered in the store under key, which must say what
// the base is and hold p.Key(); "" forgets it.
func Layer(ctx context.Context, r *step.Runner, f *fetch.Client, key string, on []layer.Descriptor, p *Pinned) (layer.Descriptor, error) {
	return layer.Descriptor{}, errors.ErrUnsupported
}
