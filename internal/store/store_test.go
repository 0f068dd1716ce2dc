package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(t *testing.T, s *store.Store, data string) store.Digest {
	t.Helper()
	d, err := s.PutBlob([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func record(t *testing.T, s *store.Store, key string, refs ...store.Digest) {
	t.Helper()
	if err := s.PutRecord("test", key, refs, key); err != nil {
		t.Fatal(err)
	}
}

func hasRecord(t *testing.T, s *store.Store, key string) bool {
	t.Helper()
	var v string
	ok, err := s.GetRecord("test", key, &v)
	if err != nil {
		t.Fatal(err)
	}
	if ok && v != key {
		t.Errorf("record %s holds %q", key, v)
	}
	return ok
}

// clean fails the test unless the store verifies.
func clean(t *testing.T, s *store.Store) store.VerifyReport {
	t.Helper()
	r, err := s.Verify(context.Background(), false)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Fatalf("the store is damaged: %+v", r.Damaged)
	}
	return r
}

func TestParseDigest(t *testing.T) {
	good := "sha256:" + strings.Repeat("0a", 32)
	if d, err := store.ParseDigest(good); err != nil || string(d) != good {
		t.Errorf("ParseDigest(%q) = %q, %v", good, d, err)
	}
	for _, bad := range []string{
		"", "sha256:", strings.Repeat("0a", 32), "sha512:" + strings.Repeat("0a", 32), good + "0", good[:70],
		"sha256:" + strings.Repeat("0A", 32), "sha256:" + strings.Repeat("../", 21) + "x",
	} {
		if _, err := store.ParseDigest(bad); err == nil {
			t.Errorf("ParseDigest(%q) accepts it", bad)
		}
	}
}

func TestBlobRoundTrip(t *testing.T) {
	s := open(t, t.TempDir())
	d := put(t, s, "hello")
	if d != store.DigestOf([]byte("hello")) {
		t.Fatalf("digest is %s", d)
	}
	f, err := s.OpenBlob(d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, _ := io.ReadAll(f); string(data) != "hello" {
		t.Errorf("blob holds %q", data)
	}
	st, _ := f.Stat()
	if st.Mode().Perm() != 0o444 {
		t.Errorf("mode is %v: a blob must not be writable, and readable for those who share the store", st.Mode())
	}
	if n, err := s.BlobSize(d); n != 5 || err != nil {
		t.Errorf("BlobSize = %d, %v", n, err)
	}
	if data, err := s.ReadBlob(d, 5); string(data) != "hello" || err != nil {
		t.Errorf("ReadBlob = %q, %v", data, err)
	}
	if _, err := s.ReadBlob(d, 4); err == nil {
		t.Error("ReadBlob ignores its limit")
	}
}

func TestBlobThatIsNotThere(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.OpenBlob(store.DigestOf([]byte("x"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenBlob: %v", err)
	}
	// A digest from a hostile manifest never becomes a path.
	if _, err := s.BlobPath("sha256:../../../etc/passwd"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("BlobPath: %v", err)
	}
}

func TestCommitChecksTheHash(t *testing.T) {
	s := open(t, t.TempDir())
	w, err := s.NewBlob()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "evil")
	want := store.DigestOf([]byte("good"))
	var mismatch *store.MismatchError
	if _, err := w.Commit(want); !errors.As(err, &mismatch) || mismatch.Got != store.DigestOf([]byte("evil")) {
		t.Fatalf("Commit: %v", err)
	}
	if s.HasBlob(want) || s.HasBlob(mismatch.Got) {
		t.Error("wrong bytes were kept")
	}
	if r := clean(t, s); r.Unused != 0 {
		t.Errorf("%d leftovers", r.Unused)
	}
}

func TestReadBlobNoticesDamage(t *testing.T) {
	s := open(t, t.TempDir())
	d := put(t, s, "hello")
	spoil(t, s, d)
	if _, err := s.ReadBlob(d, 100); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("ReadBlob: %v", err)
	}
}

// spoil changes a blob's bytes behind the store's back.
func spoil(t *testing.T, s *store.Store, d store.Digest) {
	t.Helper()
	p, err := s.BlobPath(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(p, 0o644), os.WriteFile(p, []byte("HELLO"), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestRecords(t *testing.T) {
	s := open(t, t.TempDir())
	d := put(t, s, "is based on this")
	record(t, s, "with-ref", d)
	record(t, s, "alone")
	record(t, s, "dangling", store.DigestOf([]byte("never stored")))
	for key, want := range map[string]bool{"with-ref": true, "alone": true, "dangling": false, "absent": false} {
		if got := hasRecord(t, s, key); got != want {
			t.Errorf("record %s: %v, want %v", key, got, want)
		}
	}
	keys, err := s.Keys("test")
	if err != nil || len(keys) != 3 {
		t.Errorf("Keys = %v, %v", keys, err)
	}
	if err := s.DeleteRecord("test", "alone"); err != nil || hasRecord(t, s, "alone") {
		t.Errorf("record survives its removal: %v", err)
	}
	for _, key := range []string{"", "ab", "../x", "a/b", ".hid", strings.Repeat("x", 300)} {
		if err := s.PutRecord("test", key, nil, 1); err == nil {
			t.Errorf("key %q is accepted", key)
		}
	}
}

func TestDamagedRecordIsNoRecord(t *testing.T) {
	s := open(t, t.TempDir())
	for i, content := range []string{"", "{", "null", `{"value":1,"refs":["x"]}`, `{"refs":[]}`, `{"value":{"no":"string"}}`} {
		key := fmt.Sprintf("key%d", i)
		record(t, s, key)
		path := filepath.Join(s.Dir(), "records-v1", "test", key[:2], key)
		if err := errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
		if hasRecord(t, s, key) {
			t.Errorf("%q passes for a record", content)
		}
	}
}

func TestStoreDirWithPatternCharacters(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "[a]*?"))
	record(t, s, "key")
	if keys, err := s.Keys("test"); len(keys) != 1 || err != nil {
		t.Errorf("Keys = %v, %v", keys, err)
	}
}

func TestPartialResumes(t *testing.T) {
	s := open(t, t.TempDir())
	d := store.DigestOf([]byte("first second"))
	for i, part := range []string{"first ", "second"} {
		p, err := s.OpenPartial(d)
		if err != nil {
			t.Fatal(err)
		}
		if p.Size() != int64(6*i) {
			t.Errorf("part %d goes on from %d", i, p.Size())
		}
		io.WriteString(p, part)
		if i == 1 {
			if err := p.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
	}
	if !s.HasBlob(d) {
		t.Error("no blob")
	}
}

func TestPartialWithWrongBytesStartsAgain(t *testing.T) {
	s := open(t, t.TempDir())
	p, err := s.OpenPartial(store.DigestOf([]byte("good")))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	io.WriteString(p, "evil")
	var mismatch *store.MismatchError
	if err := p.Commit(); !errors.As(err, &mismatch) {
		t.Fatalf("Commit: %v", err)
	}
	io.WriteString(p, "good")
	if err := p.Commit(); err != nil {
		t.Errorf("second attempt: %v", err)
	}
}

// A process killed in Commit after the file became read-only must not keep an ordinary user from resuming.
func TestPartialLeftReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		asUser(t)
		return
	}
	s := open(t, t.TempDir())
	d := store.DigestOf([]byte("good"))
	if err := os.WriteFile(filepath.Join(s.Dir(), "tmp-v1", "partial-"+d.Hex()), []byte("go"), 0o444); err != nil {
		t.Fatal(err)
	}
	p, err := s.OpenPartial(d)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(p, "od")
	if err := p.Commit(); err != nil || !s.HasBlob(d) {
		t.Errorf("Commit: %v", err)
	}
}

func TestTreeIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var made atomic.Int32
	var g sync.WaitGroup
	for range 8 {
		s := open(t, dir) // as many processes would
		g.Go(func() {
			got, err := s.Tree(context.Background(), "tree", func(tmp string) error {
				made.Add(1)
				time.Sleep(20 * time.Millisecond)
				return os.WriteFile(filepath.Join(tmp, "file"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(got, "file")); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
	if st, _ := os.Stat(filepath.Join(dir, "trees-v1", "tree")); st.Mode().Perm() != 0o755 {
		t.Errorf("the tree's mode is %v", st.Mode())
	}
}

func TestFailedTreeLeavesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	broken := errors.New("broken")
	_, err := s.Tree(context.Background(), "tree", func(tmp string) error {
		os.Mkdir(filepath.Join(tmp, "closed"), 0o000)
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("Tree: %v", err)
	}
	if r := clean(t, s); r.Trees != 0 || r.Unused != 0 {
		t.Errorf("left: %+v", r)
	}
}

func TestLockExcludes(t *testing.T) {
	s := open(t, t.TempDir())
	l, err := s.Lock(context.Background(), "thing", "makes x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, "thing", "makes x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	l.Unlock()
	l, err = s.Lock(context.Background(), "thing", "makes x")
	if err != nil {
		t.Fatal(err)
	}
	l.Unlock()
}

func TestSharedStoreIsRead(t *testing.T) {
	shared := t.TempDir()
	site := open(t, shared)
	d := put(t, site, "from the site")
	record(t, site, "site-record", d)
	ref := store.ImageRef{Name: "base", Tag: "1", Digest: d}
	if err := site.PutImage(ref, []store.Digest{d}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_SHARED_STORES", shared+":"+filepath.Join(shared, "absent"))
	mine := open(t, t.TempDir())
	if !mine.HasBlob(d) || !hasRecord(t, mine, "site-record") {
		t.Error("what the shared store has is not found")
	}
	if _, err := mine.FindImage("base:1"); err != nil {
		t.Error(err)
	}
	record(t, mine, "my-record", d)
	if !hasRecord(t, mine, "my-record") {
		t.Error("a record that is based on a shared blob is not believed")
	}
	// The owner cannot prune it while I read it.
	_, err := site.Prune(context.Background(), store.PruneOptions{NoWait: true})
	if !errors.Is(err, store.ErrBusy) {
		t.Errorf("prune of a shared store in use: %v", err)
	}
}

func TestUnreadableSharedStore(t *testing.T) {
	if os.Getuid() == 0 {
		asUser(t)
		return
	}
	for _, closed := range []string{"", "records-v1"} {
		shared := t.TempDir()
		record(t, open(t, shared), "site-record")
		dir := filepath.Join(shared, closed)
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
		t.Setenv("SCONCE_SHARED_STORES", shared)
		mine := open(t, t.TempDir())
		var v any
		if found, err := mine.GetRecord("test", "site-record", &v); found || err != nil {
			t.Errorf("%q closed: a record was found: %v, %v", closed, found, err)
		}
		if _, err := mine.Images(); err != nil {
			t.Errorf("%q closed: %v", closed, err)
		}
	}
}

func TestReadOnlyStore(t *testing.T) {
	if os.Getuid() == 0 {
		asUser(t)
		return
	}
	dir := t.TempDir()
	s := open(t, dir)
	d := put(t, s, "hello")
	s.Close()
	chmodAll(t, dir, 0o555)
	defer chmodAll(t, dir, 0o755)
	r := open(t, dir)
	if !r.ReadOnly() || !r.HasBlob(d) {
		t.Errorf("read-only %v, has blob %v", r.ReadOnly(), r.HasBlob(d))
	}
	_, putErr := r.PutBlob([]byte("new"))
	_, pruneErr := r.Prune(context.Background(), store.PruneOptions{})
	for _, err := range []error{putErr, pruneErr, r.PutRecord("test", "key", nil, 1)} {
		if !errors.Is(err, store.ErrReadOnly) {
			t.Errorf("a write says %v", err)
		}
	}
}

func chmodAll(t *testing.T, dir string, mode fs.FileMode) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, mode)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenInImpossiblePlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(context.Background(), file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Open: %v", err)
	}
}

func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	var g sync.WaitGroup
	for w := range 8 {
		s := open(t, dir)
		g.Go(func() {
			for i := range 40 {
				d, err := s.PutBlob([]byte(fmt.Sprint("blob ", i))) // everybody writes the same ones
				if err == nil {
					err = s.PutRecord("test", fmt.Sprintf("key-%d", i), []store.Digest{d}, w)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	if r := clean(t, open(t, dir)); r.Blobs != 40 || r.Records != 40 || r.Unused != 0 {
		t.Errorf("verify: %+v", r)
	}
}

func TestDiskFull(t *testing.T) {
	dir := tooltest.SmallDisk(t, "size=1m")
	s := open(t, dir)
	kept := put(t, s, "small")
	big := bytes.Repeat([]byte("x"), 2<<20)
	if _, err := s.PutBlob(big); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("PutBlob: %v", err)
	}
	p, err := s.OpenPartial(store.DigestOf(big))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write(big); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Partial.Write: %v", err)
	}
	p.Close()
	_, err = s.Tree(context.Background(), "tree", func(tmp string) error {
		return os.WriteFile(filepath.Join(tmp, "file"), big, 0o644)
	})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Tree: %v", err)
	}
	if r := clean(t, s); r.Blobs != 1 || r.Trees != 0 {
		t.Errorf("verify: %+v", r)
	}
	if _, err := s.Prune(context.Background(), store.PruneOptions{All: true}); err != nil {
		t.Error(err)
	}
	if _, err := s.PutBlob(big[:1<<19]); err != nil {
		t.Errorf("the space is not given back: %v", err)
	}
	_ = kept
}

// What a killed step left, directories without permissions among it, is counted, also for an ordinary user, whom the kernel stops there.
func TestUsage(t *testing.T) {
	if os.Getuid() == 0 {
		asUser(t)
		return
	}
	s := open(t, t.TempDir())
	d := put(t, s, "12345")
	record(t, s, "key", d)
	_, err := s.Tree(context.Background(), "tree", func(tmp string) error {
		a := filepath.Join(tmp, "a")
		return errors.Join(os.WriteFile(a, []byte("1234567"), 0o644), os.Link(a, filepath.Join(tmp, "b")))
	})
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := s.TempDir("step-*")
	if err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(tmp, "work", "work") // as the kernel makes it for an overlay
	if err := errors.Join(os.MkdirAll(closed, 0o755), os.Chmod(closed, 0)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte("123"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	got[1].Bytes = 0 // of the records, whose form may change
	want := []store.BucketUsage{
		{Name: "blobs", Objects: 1, Bytes: 5},
		{Name: "records", Objects: 1},
		{Name: "trees", Objects: 1, Bytes: 7},
		{Name: "temporary", Objects: 1, Bytes: 6},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What is unpacked lies in the scratch directory, and what is kept in the store.
func TestUseScratch(t *testing.T) {
	dir, scratch := t.TempDir(), t.TempDir()
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.UseScratch(t.Context(), scratch); err != nil {
		t.Fatal(err)
	}
	tree, err := s.Tree(t.Context(), "some-tree", func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := s.TempDir("x-*")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := s.CacheDir(t.Context(), "c", store.CacheShared, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Release()
	for _, path := range []string{tree, tmp, cache.Dir} {
		if !strings.HasPrefix(path, scratch+"/") {
			t.Errorf("%s is not in the scratch directory", path)
		}
	}
	if err := s.PutRecord("step", strings.Repeat("a", 64), nil, 1); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "records-v1/step/*/*"))
	if err != nil || len(kept) != 1 {
		t.Errorf("records in the store: %q, %v", kept, err)
	}
}

// A store that cannot be made is an error that says what to do, unless another has something: then it is a store that has nothing itself.
func TestStoreThatCannotBeMade(t *testing.T) {
	home, site := tooltest.SmallDisk(t, "size=1m,ro"), t.TempDir()
	s := open(t, site)
	d := put(t, s, "hello")
	dir := filepath.Join(home, "store")
	for _, shared := range [][]string{nil, {filepath.Join(home, "none")}} {
		if _, err := store.OpenShared(t.Context(), dir, shared); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(fault.HintOf(err), "SCONCE_STORE") {
			t.Errorf("with %q: %v", shared, err)
		}
	}
	r, err := store.OpenShared(t.Context(), dir, []string{site})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if usage, err := r.Usage(); err != nil || !r.ReadOnly() || !r.HasBlob(d) {
		t.Errorf("read-only %v, has blob %v, holds %v, %v", r.ReadOnly(), r.HasBlob(d), usage, err)
	}
	if _, err := r.PutBlob([]byte("new")); !errors.Is(err, store.ErrReadOnly) || strings.Contains(fault.HintOf(err), "SCONCE_SHARED_STORES") {
		t.Errorf("a write says %v (%s)", err, fault.HintOf(err))
	}
}
