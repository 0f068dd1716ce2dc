package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"sconce.dev/sconce/internal/progress"
)

// Pass says how far a verification has come that goes through the store slice by slice.
type Pass struct {
	Bytes int64     `json:"bytes"`           // of blobs that this pass has hashed, before this slice and in it
	Of    int64     `json:"of"`              // bytes of all blobs
	Began time.Time `json:"began"`           // when this pass began
	Ended bool      `json:"ended"`           // the pass came to its end; the next slice begins another
	Last  time.Time `json:"last,omitzero"`   // when the pass before ended, or this one; zero: none has
	After string    `json:"after,omitempty"` // the last file that was hashed, below the store's directory
}

const passKey = "blobs"

// saveEvery is how often a slice notes where it is, so that one that is killed is not all lost.
const saveEvery = 30 * time.Second

// VerifySlice is [Store.Verify] in portions: it hashes blobs in the order of their digests, one after the other, from where the slice
// before it ended, until slice is over, and at least one. When it has come to the last blob it reads the records and looks for
// leftovers, and the next slice begins anew. The report is about this slice; the pass is about all slices so far. Of several at once, each waits
// for the one before it.
func (s *Store) VerifySlice(ctx context.Context, remove bool, slice time.Duration) (VerifyReport, Pass, error) {
	if err := s.writable(); err != nil { // it could not note where it is
		return VerifyReport{}, Pass{}, err
	}
	lock, err := s.Lock(ctx, string(KindPass), "verifies the store")
	if err != nil {
		return VerifyReport{}, Pass{}, err
	}
	defer lock.Unlock()
	v := &verifier{store: s, remove: remove}
	pass, err := v.slice(ctx, time.Now().Add(slice))
	if err != nil {
		err = fmt.Errorf("verify store %s: %w", s.dir, err)
	}
	return v.sorted(), pass, err
}

// slice goes on with a pass until the time is over, and notes how far it came, whatever happens.
func (v *verifier) slice(ctx context.Context, until time.Time) (Pass, error) {
	var p Pass
	if found, err := v.store.GetRecord(KindPass, passKey, &p); err != nil {
		return p, err
	} else if !found || p.Ended {
		p = Pass{Began: time.Now(), Last: p.Last}
	}
	err := v.sliceOfBlobs(ctx, &p, until)
	if errors.Is(err, errSliceOver) {
		return p, v.savePass(p)
	}
	if err == nil {
		err = errors.Join(walkFiles(v.store.path(recordBucket), v.record), v.leftovers())
	}
	if err == nil {
		p.Ended, p.After, p.Last = true, "", time.Now()
	}
	return p, errors.Join(err, v.savePass(p))
}

func (v *verifier) savePass(p Pass) error { return v.store.PutRecord(KindPass, passKey, nil, p) }

var errSliceOver = errors.New("the slice is over")

// sliceOfBlobs hashes blobs until the time is over, which is errSliceOver, or there are no more.
func (v *verifier) sliceOfBlobs(ctx context.Context, p *Pass, until time.Time) error {
	dir := v.store.path(blobBucket)
	use, err := countFiles("blobs", dir)
	if err != nil {
		return err
	}
	p.Of = use.Bytes
	after := v.store.path(p.After)
	task := progress.Begin(ctx, "verify", "blobs", p.Of)
	task.Add(p.Bytes)
	saved := time.Now()
	err = walkFiles(dir, func(path string, info fs.FileInfo) error { // in lexical order, which is that of digests
		if path <= after {
			return nil
		}
		if v.report.Blobs > 0 && !time.Now().Before(until) {
			return errSliceOver
		}
		if err := v.blob(ctx, task, path, info); err != nil {
			return err
		}
		p.Bytes += info.Size()
		if p.After, err = filepath.Rel(v.store.dir, path); err != nil {
			return err
		}
		if time.Since(saved) < saveEvery {
			return nil
		}
		saved = time.Now()
		return v.savePass(*p)
	})
	if errors.Is(err, errSliceOver) {
		_ = task.End(nil)
		return err
	}
	return task.End(err)
}
