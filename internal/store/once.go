package store

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"sconce.dev/sconce/internal/progress"
)

// Once is something that is done once under a key, whoever needs it: by one process of all that use the store, and with
// Shared by one machine of all that share.
type Once[T any] struct {
	Kind Kind
	Key  string

	Refs  func(T) []Digest // the blobs that the result is based on: a record whose blobs are gone is none; nil: none
	Valid func(T) bool     // looks at a record: one that it refuses is none; nil: all are good
	Again bool             // it is done again, whatever is recorded
	Does  string           // what doing it is called for those who wait: "makes torch"; "": by its kind

	Shared  *Shared                              // where other machines keep theirs; nil: nowhere
	Confirm func(ctx context.Context, v T) error // looks whether what another machine says is true, before a record says it too
}

// Do returns what is recorded under the key, else what do makes, and records that. found says that nothing had to be made
// here. While one process makes it, others that want the same wait.
//
// The order is: record, lock, record again (another process may have made it meanwhile), other machines, do, record, other
// machines. In a store that can only be read, nothing is locked and nothing recorded.
func (o Once[T]) Do(ctx context.Context, s *Store, do func(ctx context.Context) (T, error)) (v T, found bool, err error) {
	if v, found, err = o.Recorded(s); found || err != nil {
		return v, found, err
	}
	if s.ReadOnly() {
		v, err = do(ctx)
		return v, false, err
	}
	lock, err := s.Lock(ctx, string(o.Kind)+" "+o.Key, cmp.Or(o.Does, "makes the same "+string(o.Kind)))
	if err != nil {
		return v, false, err
	}
	defer lock.Unlock()
	if v, found, err = o.Recorded(s); found || err != nil {
		return v, found, err
	}
	if v, found = o.fetch(ctx, s); found {
		return v, true, o.record(s, v)
	}
	if v, err = do(ctx); err != nil {
		return v, false, err
	}
	if err := o.record(s, v); err != nil {
		return v, false, err
	}
	o.send(ctx, s, v)
	return v, false, nil
}

// Recorded returns what is recorded under the key, if it is.
func (o Once[T]) Recorded(s *Store) (v T, found bool, err error) {
	if o.Again {
		return v, false, nil
	}
	found, err = s.GetRecord(o.Kind, o.Key, &v)
	if found && o.Valid != nil && !o.Valid(v) {
		found = false
	}
	if !found {
		var none T
		v = none
	}
	return v, found, err
}

func (o Once[T]) refs(v T) []Digest {
	if o.Refs == nil {
		return nil
	}
	return o.Refs(v)
}

func (o Once[T]) record(s *Store, v T) error { return s.PutRecord(o.Kind, o.Key, o.refs(v), v) }

// fetch takes what another machine made. A cache that fails is no reason to fail.
func (o Once[T]) fetch(ctx context.Context, s *Store) (v T, found bool) {
	if o.Again || !o.Shared.readable(ctx) {
		return v, false
	}
	found, err := o.Shared.Remote.Get(ctx, s, string(o.Kind), o.Key, &v)
	if found && err == nil {
		err = o.Confirm(ctx, v)
	}
	o.Shared.doubt(ctx, "read", err)
	if !found || err != nil {
		var none T
		return none, false
	}
	return v, true
}

func (o Once[T]) send(ctx context.Context, s *Store, v T) {
	if o.Shared == nil || o.Shared.Remote == nil {
		return
	}
	if !o.Shared.Push {
		o.Shared.tellUnsent(ctx)
		return
	}
	o.Shared.doubt(ctx, "write", o.Shared.Remote.Put(ctx, s, string(o.Kind), o.Key, v, o.refs(v)))
}

// Remote keeps records, and the blobs that they stand on, where other machines find them.
type Remote interface {
	// Get brings what was put under key into the store, its JSON into v, and reports whether there is such a thing.
	Get(ctx context.Context, s *Store, kind, key string, v any) (bool, error)
	// Put keeps v and the blobs that it is based on.
	Put(ctx context.Context, s *Store, kind, key string, v any, blobs []Digest) error
}

// Shared is a remote as one build uses it. It is shared by pointer: what is wrong with it is said once.
type Shared struct {
	Remote Remote                    // nil: the user does not let it be used
	Unread func(ctx context.Context) // is called, without a Remote, where it would be read
	Push   bool                      // what is made here goes there
	Unsent string                    // why it does not, where that is worth a note; ""

	warned, told sync.Once
}

// readable reports whether results of others may be taken, and says where they may not.
func (x *Shared) readable(ctx context.Context) bool {
	if x == nil {
		return false
	}
	if x.Remote == nil && x.Unread != nil {
		x.Unread(ctx)
	}
	return x.Remote != nil
}

// tellUnsent says, once, that what was made is not sent.
func (x *Shared) tellUnsent(ctx context.Context) {
	if x.Unsent != "" {
		x.told.Do(func() { progress.Notef(ctx, x.Unsent) })
	}
}

// Has reports whether other machines have made what is under key, as far as the remote can say so without bringing it. There is
// nothing in no remote.
func (x *Shared) Has(ctx context.Context, kind Kind, key string) bool {
	if !x.readable(ctx) {
		return false
	}
	r, ok := x.Remote.(interface {
		Has(ctx context.Context, kind, key string) (bool, error)
	})
	if !ok {
		return false
	}
	found, err := r.Has(ctx, string(kind), key)
	x.doubt(ctx, "read", err)
	return found && err == nil
}

// doubt warns of a remote that does not do what it should.
func (x *Shared) doubt(ctx context.Context, doing string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	x.warned.Do(func() {
		progress.Warn(ctx, fmt.Sprintf("cannot %s the registry's cache of steps: %v", doing, err), "see registry under [cache]; the build goes on without it")
	})
}
