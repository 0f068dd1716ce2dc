package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
)

// slice verifies for no longer than one blob takes.
func slice(t *testing.T, s *store.Store, remove bool) (store.VerifyReport, store.Pass) {
	t.Helper()
	r, pass, err := s.VerifySlice(t.Context(), remove, time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	return r, pass
}

// Slices go through all blobs, each once, whatever process takes them; the one after the last begins anew.
func TestSlicesGoThroughTheStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	size := int64(0)
	for i := range 5 {
		text := fmt.Sprint("blob ", i)
		put(t, s, text)
		size += int64(len(text))
	}
	stray := filepath.Join(dir, "blobs-v1", "sha256", "00stray") // no blob: it must not hold the slices up
	if err := os.WriteFile(stray, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	image(t, s, "broken", put(t, s, "lost"))
	if err := os.Remove(filepath.Join(dir, "blobs-v1", "sha256", store.DigestOf([]byte("lost")).Hex()[:2], store.DigestOf([]byte("lost")).Hex())); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		hashed, damaged, last := 0, 0, int64(0)
		for n := range 7 {
			r, pass := slice(t, open(t, dir), false)
			hashed, damaged = hashed+r.Blobs, damaged+len(r.Damaged)
			if pass.Of != size || pass.Bytes < last {
				t.Errorf("round %d, slice %d: %d of %d bytes, after %d of %d", round, n, pass.Bytes, pass.Of, last, size)
			}
			last = pass.Bytes
			if pass.Ended {
				if hashed != 6 || damaged != 2 || last != size || pass.Last.IsZero() || r.Records == 0 {
					t.Errorf("round %d: a pass hashed %d files, found %d damaged: %+v %+v", round, hashed, damaged, pass, r)
				}
				break
			}
			if n == 6 {
				t.Fatalf("round %d: no end after seven slices: %+v", round, pass)
			}
		}
	}
}

// What is damaged is found and removed.
func TestSliceRemovesDamage(t *testing.T) {
	s := open(t, t.TempDir())
	d := put(t, s, "good")
	spoil(t, s, d)
	r, pass, err := s.VerifySlice(t.Context(), true, time.Hour)
	if err != nil || len(r.Damaged) != 1 || !r.Damaged[0].Removed || !pass.Ended || exists(s, d) {
		t.Errorf("%+v %+v, %v", r, pass, err)
	}
	if r, _ := slice(t, s, true); !r.OK() {
		t.Errorf("after the removal: %+v", r)
	}
}

// An interrupted slice keeps what it has done, and takes nothing for damaged.
func TestSliceInterrupted(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "one")
	put(t, s, "two")
	_, before := slice(t, s, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.VerifySlice(ctx, true, time.Hour); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	r, pass := slice(t, s, true)
	if r.Blobs != 1 || !r.OK() || !pass.Ended || !pass.Began.Equal(before.Began) {
		t.Errorf("after the interruption: %+v %+v", r, pass)
	}
}
