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

// KeepWithin removes what can be had again while the store holds more than limit bytes: first what is unpacked, then what was used
// longest ago, never what a named image stands on. It does nothing when another process uses the store, or when the store was
// measured within the last hour and found to fit; that is left to a later command. ok reports whether anything was looked at.
func (s *Store) KeepWithin(ctx context.Context, limit int64) (report PruneReport, ok bool, err error) {
	if limit <= 0 || s.readOnly || s.measuredLately() {
		return report, false, nil
	}
	buckets, err := s.Usage()
	if err != nil {
		return report, false, err
	}
	var held int64
	for _, b := range buckets {
		held += b.Bytes
	}
	if held <= limit {
		return report, true, s.noteMeasured()
	}
	report, err = s.Prune(ctx, PruneOptions{
		OlderThan: longAgo, KeepBytes: max(1, int64(float64(limit)*keptShare)), Unpacked: true, NoWait: true,
	})
	if errors.Is(err, ErrBusy) {
		return report, false, nil
	}
	if err != nil {
		return report, false, err
	}
	return report, true, s.noteMeasured()
}

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
