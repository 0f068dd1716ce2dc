package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/tocontainerfile"
)

// LockState is the lock of a recipe as it is found.
type LockState struct {
	Lock  *lock.Files // nil: there is none that can be read
	Drift []string    // how the recipe has moved away from it, a line for each difference
	Err   error       // why it cannot be read
}

// Fits reports whether there is a lock and it is one of the recipe as it is.
func (l LockState) Fits() bool { return l.Lock != nil && len(l.Drift) == 0 }

// ReadLock reads the lock and compares it with the recipe. The error is about what the recipe names; a lock that cannot be read is
// a state to be in.
func (r *Recipe) ReadLock() (LockState, error) {
	if r.lockless {
		return LockState{}, nil
	}
	l, err := lock.Read(r.pinned)
	if errors.Is(err, fs.ErrNotExist) {
		return LockState{}, nil
	}
	if err != nil {
		return LockState{Err: err}, nil //nolint:nilerr // a part of the answer
	}
	drift, err := l.Drift(r.pinned)
	return LockState{Lock: l, Drift: drift}, err
}

// LockName is the path of the lock as the user would write it, beside the recipe that the user named.
func (r *Recipe) LockName() string {
	if r.LockFile != "" {
		return r.LockFile
	}
	return filepath.Join(filepath.Dir(r.Path), filepath.Base(lock.Path(r.pinned)))
}

// CheckLock is nil when the lock fits the recipe, and else says how they differ.
func (r *Recipe) CheckLock() error {
	l, err := r.ReadLock()
	switch {
	case err != nil:
		return err
	case l.Err != nil:
		return l.Err
	case l.Lock == nil:
		return fault.Problem(fault.Hint(fmt.Errorf("%s has no lock", r.Path), "run `sconce lock`"))
	case len(l.Drift) > 0:
		return fault.Problem(r.driftError(l.Drift))
	}
	return nil
}

func (r *Recipe) driftError(drift []string) error {
	return fault.Hint(fmt.Errorf("%s does not fit %s:\n  %s", r.LockName(), r.Path, strings.Join(drift, "\n  ")),
		"run `sconce lock` to bring the lock up to date")
}

// LockOptions say what of an earlier lock is given up.
type LockOptions struct {
	Upgrade  bool     // take the newest of everything, the base included
	Packages []string // take the newest of these Python packages

	Canonical func(r *Recipe, key plan.Key) string // see [PlanOptions], of what the recipe is based on
	Trust     []*attest.PublicKey                  // likewise
}

// Locked is what a recipe means, pinned: all that is planned and built from it. Nothing more is read of the lock's files.
type Locked struct {
	*lock.Locked
	Conda    plan.Conda    // what the conda environment is made of, if there is one
	Fresh    bool          // nothing had to be decided
	Changes  []LockChange  // what was decided now, against the lock before; without one, all
	Warnings []LockWarning // of what was decided now
}

// Lock decides what the recipe leaves open, and writes the lock. One that fits stays as it is; one that cannot be read is written
// anew.
func (s *Session) Lock(ctx context.Context, r *Recipe, o LockOptions) (*Locked, error) {
	below, err := s.planBelow(ctx, r, PlanOptions{Canonical: o.Canonical, Trust: o.Trust})
	if err != nil {
		return nil, err
	}
	if below != nil {
		defer below.Close()
	}
	state, err := r.ReadLock()
	if err != nil {
		return nil, err
	}
	if state.Fits() && !o.Upgrade && len(o.Packages) == 0 {
		return r.pinnedBy(state.Lock)
	}
	return s.makeLock(ctx, r, below, state.Lock, o)
}

// fittingLock returns the lock of r, made or brought up to date unless only one that fits will do. One that cannot be read is an
// error: somebody has to look at it.
func (s *Session) fittingLock(ctx context.Context, r *Recipe, below *Plan, only bool) (*Locked, error) {
	state, err := r.ReadLock()
	switch {
	case err != nil:
		return nil, err
	case state.Err != nil:
		return nil, state.Err
	case state.Fits():
		return r.pinnedBy(state.Lock)
	case !only:
		return s.makeLock(ctx, r, below, state.Lock, LockOptions{})
	case r.lockless:
		return nil, fault.Usage(errors.New("--locked: what is built here has no lock"))
	case state.Lock == nil:
		return nil, fault.Problem(fault.Hint(fmt.Errorf("--locked: %s does not exist", r.LockName()), "run `sconce lock`"))
	}
	return nil, fault.Problem(fmt.Errorf("--locked: %w", r.driftError(state.Drift)))
}

// makeLock makes the lock of r, for which what it is based on is there. found is the one that there is, nil where there is none or it is of no use.
func (s *Session) makeLock(ctx context.Context, r *Recipe, below *Plan, found *lock.Files, o LockOptions) (*Locked, error) {
	if err := r.checkWrites(); err != nil {
		return nil, err
	}
	if below != nil && r.pinned.ResolvesOnBase() {
		if _, err := s.Bring(ctx, below, BuildOptions{}); err != nil {
			return nil, err
		}
	}
	r.pinned.LoginHosts = s.logins
	before := r.earlier(found)
	l, err := s.decide(ctx, r, lock.Options{
		Store: s.Store, Fetch: s.Fetch, Offline: s.Offline, Upgrade: o.Upgrade, UpgradePackages: o.Packages, Without: slim.Without(s.Store),
		UV: s.uv,
	})
	if err != nil {
		return nil, err
	}
	made, err := r.locked(l, false)
	if err != nil {
		return made, err
	}
	made.Warnings = s.driverWarnings(made, r)
	tellWarnings(ctx, made.Warnings)
	if before != nil {
		made.Changes = changes(before, made)
		tellChanges(ctx, r, made.Changes)
	} else {
		made.Changes = changes(&Locked{Locked: &lock.Locked{Lock: &lock.Lock{}}}, made)
	}
	return made, nil
}

// decide makes the lock of r. That of a recipe that keeps none is written nowhere; uv works in a directory of its own for it.
func (s *Session) decide(ctx context.Context, r *Recipe, o lock.Options) (*lock.Locked, error) {
	if !r.lockless {
		f, err := lock.Update(ctx, r.pinned, o)
		if err != nil {
			return nil, err
		}
		return f.Locked(r.pinned)
	}
	dir, remove, err := tempdir.Make("lock")
	if err != nil {
		return nil, err
	}
	defer remove()
	kept := *r.pinned
	kept.LockFile = filepath.Join(dir, "sconce.lock")
	f, err := lock.Make(ctx, &kept, nil, o)
	if err != nil {
		return nil, err
	}
	return f.Locked(&kept)
}

// earlier is what the lock that was found has decided, whether or not it fits; nil when it is of no use.
func (r *Recipe) earlier(found *lock.Files) *Locked {
	if found == nil {
		return nil
	}
	locked, err := r.pinnedBy(found)
	if err != nil {
		return nil
	}
	return locked
}

// pinnedBy is what the lock that was found says that r means.
func (r *Recipe) pinnedBy(found *lock.Files) (*Locked, error) {
	l, err := found.Locked(r.pinned)
	if err != nil {
		return nil, err
	}
	return r.locked(l, true)
}

func (r *Recipe) locked(l *lock.Locked, fresh bool) (locked *Locked, err error) {
	locked = &Locked{Locked: l, Fresh: fresh}
	if l.Conda != nil {
		locked.Conda = plan.Conda{Packages: l.CondaPackages, Variables: l.Variables}
		inside := locked.condaLock(r)
		inside.Sources = nil // paths of this machine
		locked.Conda.Lock, err = inside.Write()
	}
	return locked, err
}

// Containerfile writes what the recipe means, as its lock pins it, as a Containerfile. locked refuses to make a lock for it.
func (s *Session) Containerfile(ctx context.Context, r *Recipe, locked bool, o tocontainerfile.Options) (string, error) {
	if r.Below != nil {
		return "", fault.Usage(fault.Hint(fmt.Errorf("%s is based on another recipe, and a Containerfile on an image", r.Path),
			"publish that recipe's image, and name it as base.image"))
	}
	l, err := s.fittingLock(ctx, r, nil, locked)
	if err != nil {
		return "", err
	}
	o.GPU = r.Target.GPU
	return tocontainerfile.Write(r.pinned, l.Locked, o)
}
