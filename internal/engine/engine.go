// Package engine is the way from a recipe, or from an image wherever it is, to a delivered image: open, lock, plan, build, check,
// slim, copy, deliver.
//
// A [Session] holds what all of it shares. A recipe becomes a [Plan], which [Session.Build] builds, names, checks and delivers; a
// name becomes a [Subject], which is read no further than a question needs. Nothing here prints or knows of flags: what
// happened is returned, also beside an error, and progress is reported as events.
package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/uv"
)

// Options say where a session works and what it may use.
type Options struct {
	Dir      string       // of the store
	Shared   []string     // directories of further stores, which are only read
	Scratch  string       // directory on a local disk for what is unpacked and what steps write; "": the store's, see [store.Store.UseScratch]
	Offline  bool         // use no network
	Version  string       // of sconce: servers are told, and what a check has found holds for it alone
	Check    config.Check // how this machine wants images judged
	Logins   []string     // hosts that may see logins although only a recipe names them
	Cache    CachePermissions
	UV       *config.UV    // the release of uv to use; nil: nobody asks for one
	Patience time.Duration // how long servers in trouble are asked again; 0: see [fetch.Options]
}

// Session is what the parts of the way share. The store is open until Close.
type Session struct {
	Store   *store.Store
	Fetch   *fetch.Client // puts what it downloads into Store
	Offline bool
	Version string

	Cores  int   // that a build may use
	Memory int64 // likewise, in bytes; 0: what there is when it begins

	check     config.Check
	logins    []string // see Options
	cache     CachePermissions
	unread    map[string]bool // caches of which a note says that they are not read
	uv        *uv.Release     // that is asked for; nil: none
	scratch   bool            // the user says where to unpack
	unpacking sync.Once       // see unpackElsewhere
	mu        sync.Mutex
	repos     map[string]*registry.Repository // by name, see Repository
}

// Opener opens a session, for what may turn out to need none.
type Opener func(context.Context) (*Session, error)

// New opens the store, and makes it when it is missing.
func New(ctx context.Context, o Options) (*Session, error) {
	st, err := store.OpenShared(ctx, o.Dir, o.Shared)
	if err != nil {
		return nil, err
	}
	if o.Scratch != "" {
		if err := st.UseScratch(ctx, o.Scratch); err != nil {
			return nil, errors.Join(err, st.Close())
		}
	} else if !st.ReadOnly() {
		st.ChooseScratch(func(tmp string) (string, func(), error) { return chooseScratch(ctx, tmp) })
	}
	return &Session{
		Store: st, Fetch: fetch.New(st, fetch.Options{Offline: o.Offline, Patience: o.Patience, LoginHosts: o.Logins, UserAgent: "sconce/" + o.Version}),
		Offline: o.Offline, Version: o.Version, Cores: runtime.GOMAXPROCS(0), check: o.Check, logins: o.Logins, cache: o.Cache,
		uv: releaseOf(o.UV), scratch: o.Scratch != "",
	}, nil
}

// Close closes the store.
func (s *Session) Close() error { return s.Store.Close() }

// memory is what a build that begins now may use, in bytes.
func (s *Session) memory() int64 {
	if s.Memory > 0 {
		return s.Memory
	}
	return host.AvailableMemory().Available
}
