package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// month is more than the age at which prune removes things.
const month = 31 * 24 * time.Hour

// age makes a file look as if it had last been used that long ago.
func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	at := time.Now().Add(-d)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func ageBlob(t *testing.T, s *store.Store, digest store.Digest, d time.Duration) {
	t.Helper()
	p, err := s.BlobPath(digest)
	if err != nil {
		t.Fatal(err)
	}
	age(t, p, d)
}

func ageRecord(t *testing.T, s *store.Store, key string, d time.Duration) {
	t.Helper()
	age(t, filepath.Join(s.Dir(), "records-v1", "test", key[:2], key), d)
}

func image(t *testing.T, s *store.Store, name string, refs ...store.Digest) store.ImageRef {
	t.Helper()
	r := store.ImageRef{Name: name, Tag: "1", Digest: refs[0], Created: time.Now()}
	if err := s.PutImage(r, refs); err != nil {
		t.Fatal(err)
	}
	return r
}

func prune(t *testing.T, s *store.Store, o store.PruneOptions) store.PruneReport {
	t.Helper()
	o.NoWait = true
	r, err := s.Prune(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	clean(t, s)
	return r
}

// exists looks without counting as use.
func exists(s *store.Store, d store.Digest) bool {
	_, err := os.Stat(filepath.Join(s.Dir(), "blobs-v1", "sha256", d.Hex()[:2], d.Hex()))
	return err == nil
}

func TestPruneByAge(t *testing.T) {
	s := open(t, t.TempDir())
	ofImage, fresh, old, ofFreshRecord, ofOldRecord := put(t, s, "image"), put(t, s, "fresh"), put(t, s, "old"), put(t, s, "a"), put(t, s, "b")
	image(t, s, "kept", ofImage)
	record(t, s, "fresh-record", ofFreshRecord)
	record(t, s, "old-record", ofOldRecord)
	record(t, s, "old-alone")
	ageRecord(t, s, "old-record", month)
	ageRecord(t, s, "old-alone", month)
	for _, d := range []store.Digest{ofImage, old, ofFreshRecord, ofOldRecord} {
		ageBlob(t, s, d, month)
	}

	dry := prune(t, s, store.PruneOptions{DryRun: true})
	if !exists(s, old) || !exists(s, ofOldRecord) {
		t.Fatal("a dry run removes")
	}
	wet := prune(t, s, store.PruneOptions{})
	if !cmp.Equal(dry, wet) {
		t.Errorf("the dry run promises %+v, but it was %+v", dry, wet)
	}
	if wet.Blobs != 2 || wet.Records != 2 || wet.Bytes == 0 {
		t.Errorf("report: %+v", wet)
	}
	for d, want := range map[store.Digest]bool{ofImage: true, fresh: true, ofFreshRecord: true, old: false, ofOldRecord: false} {
		if exists(s, d) != want {
			t.Errorf("blob %s is there: %v", d.Short(), !want)
		}
	}
	if !hasRecord(t, s, "fresh-record") || hasRecord(t, s, "old-record") || hasRecord(t, s, "old-alone") {
		t.Error("wrong records")
	}
}

func TestPruneAllKeepsWhatImagesNeed(t *testing.T) {
	s := open(t, t.TempDir())
	ofImage, other := put(t, s, "image"), put(t, s, "other")
	ref := image(t, s, "kept", ofImage)
	record(t, s, "step", ofImage)
	record(t, s, "other", other)
	if _, err := s.Tree(context.Background(), "tree", func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if r := prune(t, s, store.PruneOptions{All: true}); r.Blobs != 1 || r.Trees != 1 || r.Records != 1 {
		t.Errorf("report: %+v", r)
	}
	if !exists(s, ofImage) || !hasRecord(t, s, "step") {
		t.Error("the image lost something")
	}
	if err := s.DeleteImage(ref); err != nil {
		t.Fatal(err)
	}
	prune(t, s, store.PruneOptions{All: true})
	if exists(s, ofImage) {
		t.Error("an image without a name stays")
	}
}

func TestPruneToSize(t *testing.T) {
	s := open(t, t.TempDir())
	var blobs []store.Digest
	for i, c := range []string{"1234567890", "abcdefghij", "ABCDEFGHIJ"} {
		d := put(t, s, c)
		ageBlob(t, s, d, time.Duration(10-i)*24*time.Hour)
		blobs = append(blobs, d)
	}
	if r := prune(t, s, store.PruneOptions{KeepBytes: 25}); r.Kept != 20 || r.Bytes != 10 {
		t.Errorf("report: %+v", r)
	}
	if exists(s, blobs[0]) || !exists(s, blobs[1]) || !exists(s, blobs[2]) {
		t.Error("not the one used longest ago was removed")
	}
}

// Looking a blob up is use; verifying the store is not.
func TestUseKeepsABlob(t *testing.T) {
	s := open(t, t.TempDir())
	used, unused := put(t, s, "used"), put(t, s, "unused")
	record(t, s, "record", unused)
	ageRecord(t, s, "record", month)
	ageBlob(t, s, used, month)
	ageBlob(t, s, unused, month)
	if !s.HasBlob(used) {
		t.Fatal("no blob")
	}
	clean(t, s)
	prune(t, s, store.PruneOptions{})
	if !exists(s, used) || exists(s, unused) {
		t.Errorf("used: %v, unused: %v", exists(s, used), exists(s, unused))
	}
}

func TestPruneTemporary(t *testing.T) {
	s := open(t, t.TempDir())
	tmp := filepath.Join(s.Dir(), "tmp-v1")
	stale, fresh := filepath.Join(tmp, "partial-"+put(t, s, "1").Hex()), filepath.Join(tmp, "partial-"+put(t, s, "2").Hex())
	closed := filepath.Join(tmp, "tree-1", "closed")
	err := errors.Join(
		os.WriteFile(stale, nil, 0o644), os.WriteFile(fresh, nil, 0o644), os.WriteFile(filepath.Join(tmp, "blob-1"), nil, 0o600),
		os.MkdirAll(filepath.Join(closed, "below"), 0o755), os.Chmod(closed, 0), os.Mkdir(filepath.Join(s.Dir(), "trees-v1", "half"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	age(t, stale, 25*time.Hour)
	if r := prune(t, s, store.PruneOptions{}); r.Temps != 3 || r.Trees != 1 {
		t.Errorf("report: %+v", r)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Error("a download that can be resumed was removed")
	}
}

type notes chan string

func (n notes) Emit(e progress.Event) {
	if e.Kind == progress.Note {
		n <- e.Text
	}
}

func TestPruneWaitsForOthers(t *testing.T) {
	dir := t.TempDir()
	s, other := open(t, dir), open(t, dir)
	d := put(t, other, "in use")
	if _, err := s.Prune(context.Background(), store.PruneOptions{All: true, NoWait: true}); !errors.Is(err, store.ErrBusy) {
		t.Fatalf("prune of a store in use: %v", err)
	}
	said := make(notes, 1)
	done := make(chan error)
	go func() {
		_, err := s.Prune(progress.With(context.Background(), said), store.PruneOptions{All: true})
		done <- err
	}()
	<-said
	if !other.HasBlob(d) {
		t.Error("prune removed what another process uses")
	}
	other.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s.HasBlob(d) {
		t.Error("prune did nothing")
	}
}

func TestPruneCanBeInterrupted(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	open(t, dir)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Prune(ctx, store.PruneOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Prune: %v", err)
	}
}

// Two prunes at once must both end, and neither may lose its hold on the store.
func TestTwoPrunes(t *testing.T) {
	dir := t.TempDir()
	done := make(chan error)
	for range 2 {
		s := open(t, dir)
		go func() {
			_, err := s.Prune(context.Background(), store.PruneOptions{})
			s.Close()
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestPruneHoldsTheStoreAfterwards(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	prune(t, s, store.PruneOptions{})
	if _, err := open(t, dir).Prune(context.Background(), store.PruneOptions{NoWait: true}); !errors.Is(err, store.ErrBusy) {
		t.Errorf("after its prune, the store is not in use any more: %v", err)
	}
}
