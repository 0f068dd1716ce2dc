package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/users"
)

// CacheInfo is how much the store holds, and may.
type CacheInfo struct {
	Dir        string              `json:"dir"`
	ReadOnly   bool                `json:"readOnly"`
	Shared     string              `json:"sharedStores,omitempty"`
	Images     int                 `json:"images"`
	Bytes      int64               `json:"bytes"`           // of all buckets
	Limit      int64               `json:"limit,omitempty"` // that the store is kept within, in bytes; 0: none
	Buckets    []store.BucketUsage `json:"buckets"`
	FileSystem host.FileSystem     `json:"fileSystem"`
}

// CacheInfo looks at the store, and clears away what processes that were killed have left in temporary directories.
func (s *Session) CacheInfo(set Settings) (CacheInfo, error) {
	tempdir.Sweep()
	in := CacheInfo{
		Dir: s.Store.Dir(), ReadOnly: s.Store.ReadOnly(), Shared: strings.Join(set.Shared(), ":"), FileSystem: host.FileSystemOf(s.Store.Dir()),
	}
	limits, _, err := set.Limits(s.Store)
	if err != nil {
		return in, err
	}
	in.Limit = limits.Bytes
	if in.Buckets, err = s.Store.Usage(); err != nil {
		return in, err
	}
	for _, b := range in.Buckets {
		in.Bytes += b.Bytes
	}
	images, err := s.Store.Images()
	in.Images = len(images)
	return in, err
}

// CacheUser is a user of the store.
type CacheUser struct {
	Name string `json:"name"` // the number where it is not known
	store.UserUsage
	Limit int64 `json:"limit,omitempty"` // bytes that the user may have; 0: no limit
}

// CacheUsers says who has what in the store.
func (s *Session) CacheUsers(set Settings) ([]CacheUser, error) {
	limits, _, err := set.Limits(s.Store)
	if err != nil {
		return nil, err
	}
	found, err := s.Store.Users()
	if err != nil {
		return nil, err
	}
	all := make([]CacheUser, len(found))
	for i, u := range found {
		all[i] = CacheUser{Name: users.Name(u.UID), UserUsage: u}
		if limits.OfUser != nil {
			all[i].Limit = limits.OfUser(u.UID)
		}
	}
	return all, nil
}

// PruneOptions are what [store.PruneOptions] are, in which the store's policy says what nobody else does.
type PruneOptions struct {
	store.PruneOptions
	AnyAge  bool // OlderThan is the usual one, which a policy goes before
	AnySize bool // KeepBytes is not said, likewise
}

// Prune removes from the store what is not needed.
func (s *Session) Prune(ctx context.Context, set Settings, o PruneOptions) (store.PruneReport, error) {
	limits, policy, err := set.Limits(s.Store)
	if err != nil {
		return store.PruneReport{}, err
	}
	o.OfUser = limits.OfUser
	if o.AnyAge && policy.MaxAge > 0 {
		o.OlderThan = policy.MaxAge
	}
	if o.AnySize && policy.MaxSize != nil && s.Store.Keeps() {
		o.KeepBytes = limits.Bytes
	}
	if !o.DryRun {
		tempdir.Sweep()
	}
	r, err := s.Store.Prune(ctx, o.PruneOptions)
	for _, over := range r.Over {
		progress.Warn(ctx, fmt.Sprintf("%s has %s of at most %s: images need it", users.Name(over.UID), units.Size(over.Bytes), units.Size(over.Limit)), "")
	}
	return r, err
}

// VerifiedStore is what came of checking the store.
type VerifiedStore struct {
	store.VerifyReport
	Pass *store.Pass `json:"pass,omitempty"` // of a slice
}

// VerifyStore checks the store, or for the time of a slice a part of it; then it yields cores and disk to all others.
func (s *Session) VerifyStore(ctx context.Context, remove bool, slice time.Duration) (VerifiedStore, error) {
	var r VerifiedStore
	var err error
	if slice > 0 {
		host.StepBack()
		r.Pass = new(store.Pass)
		r.VerifyReport, *r.Pass, err = s.Store.VerifySlice(ctx, remove, slice)
	} else {
		r.VerifyReport, err = s.Store.Verify(ctx, remove)
	}
	if r.Damaged == nil {
		r.Damaged = []store.Damage{} // [] rather than null
	}
	return r, err
}

// MakeStore makes the store in dir, an absolute path, for others to read, or for the members of a group to write to.
func MakeStore(ctx context.Context, dir, group string, open Opener) (*Session, error) {
	var err error
	if group == "" {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
	} else {
		err = makeGroupStore(dir, group)
	}
	if err != nil {
		return nil, fmt.Errorf("make store %s: %w", dir, err)
	}
	return open(ctx)
}

func makeGroupStore(dir, group string) error {
	gid, ok := users.GroupID(group)
	if !ok {
		return fault.Usage(fmt.Errorf("there is no group %q on this machine", group))
	}
	err := store.InitGroup(dir, int(gid))
	if errors.Is(err, os.ErrPermission) {
		err = fault.Hint(err, "its keeper is a member of the group, or root")
	}
	return err
}

// Tidy keeps the store within its limit, now that a command is done. Its own trouble is a warning: what was asked for is there.
func (s *Session) Tidy(ctx context.Context, set Settings) {
	limits, _, err := set.Limits(s.Store)
	if err != nil {
		progress.Warn(ctx, err.Error(), "")
		return
	}
	r, _, err := s.Store.KeepWithin(ctx, limits)
	if len(r.Over) > 0 {
		limit := limits.OfUser(r.Over[0].UID)
		progress.Warn(ctx, fmt.Sprintf("what you have in the store %s is %s, above your limit of %s: named images need it", s.Store.Dir(), units.Size(r.Over[0].Bytes), units.Size(limit)),
			"`sconce images rm` takes names away; "+config.PolicyFile+" in the store sets the limit")
		return
	}
	switch {
	case err != nil && ctx.Err() == nil:
		progress.Warn(ctx, fmt.Sprintf("the store is not kept within its limit: %v", err), "`sconce cache prune` does it by hand")
	case s.Store.Keeps() && limits.Bytes > 0 && r.Kept > limits.Bytes:
		progress.Warn(ctx, fmt.Sprintf("the store holds %s, above its limit of %s: named images need it", units.Size(r.Kept), units.Size(limits.Bytes)),
			"`sconce images rm` takes names away; store-size in the configuration, or SCONCE_STORE_SIZE, sets the limit")
	case r.Bytes > 0:
		progress.Notef(ctx, fmt.Sprintf("the store was above its limit: removed %s, unpacked trees first", units.Size(r.Bytes)))
	}
}
