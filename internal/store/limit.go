package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// limitFile is the file whose time says when the store was last measured.
const limitFile = "measured-v1"

// measureEvery is how often the store is measured at most. Measuring asks for every blob.
const measureEvery = time.Hour

// keptShare is how much of the limit is left full by [Store.KeepWithin], so that the next commands find room.
const keptShare = 0.8

// Limits say how much a store may hold.
type Limits struct {
	Bytes  int64 // in all, 0: no limit; the concern of whoever keeps the store
	OfUser OfUser
}

// KeepWithin removes what can be had again while the store, or what this user has in it, is above its limit: first what is unpacked, then what was
// used longest ago, never what a named image is based on. It does nothing when another process uses the store, or when the store was
// measured within the last hour and found to fit; that is left to a later command. ok reports whether anything was looked at.
func (s *Store) KeepWithin(ctx context.Context, limits Limits) (report PruneReport, ok bool, err error) {
	if limits.Bytes <= 0 && limits.OfUser == nil || s.readOnly || s.measuredLately() {
		return report, false, nil
	}
	o := PruneOptions{OlderThan: longAgo, Unpacked: true, NoWait: true}
	if o.KeepBytes, err = s.tooFull(limits.Bytes); err == nil {
		o.OfUser, err = s.tooMany(limits.OfUser)
	}
	if err != nil {
		return report, false, err
	}
	if o.KeepBytes == 0 && o.OfUser == nil {
		return report, true, s.noteMeasured()
	}
	report, err = s.Prune(ctx, o)
	if errors.Is(err, ErrBusy) {
		return report, false, nil
	}
	if err != nil {
		return report, false, err
	}
	return report, true, s.noteMeasured()
}

// tooFull returns what a store of more than limit bytes is to be brought down to, else 0.
func (s *Store) tooFull(limit int64) (int64, error) {
	if limit <= 0 || !s.Keeps() {
		return 0, nil
	}
	buckets, err := s.Usage()
	if err != nil {
		return 0, err
	}
	var held int64
	for _, b := range buckets {
		held += b.Bytes
	}
	if held <= limit {
		return 0, nil
	}
	return afterwards(limit), nil
}

// tooMany returns what this user is to be brought down to, nil when they have no more than they may.
func (s *Store) tooMany(limit OfUser) (OfUser, error) {
	me, err := s.uid()
	if err != nil || limit == nil || limit(me) <= 0 {
		return nil, err
	}
	users, err := s.Users()
	if err != nil {
		return nil, err
	}
	for _, u := range users {
		if u.UID == me && u.Total() > limit(me) {
			return func(uid uint32) int64 {
				if uid == me {
					return afterwards(limit(me))
				}
				return 0
			}, nil
		}
	}
	return nil, nil
}

// afterwards is what is left full of a limit, in bytes.
func afterwards(limit int64) int64 { return max(1, int64(float64(limit)*keptShare)) }

// longAgo is an age that nothing has.
const longAgo = 100 * 365 * 24 * time.Hour

func (s *Store) measuredLately() bool {
	st, err := os.Stat(s.path(limitFile))
	return err == nil && time.Since(st.ModTime()) < measureEvery
}

func (s *Store) noteMeasured() error {
	if err := os.WriteFile(s.path(limitFile), nil, 0o644); err != nil {
		return fmt.Errorf("write to store: %w", err)
	}
	now := time.Now()
	return os.Chtimes(s.path(limitFile), now, now)
}
