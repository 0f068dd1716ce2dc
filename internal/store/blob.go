package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
)

// Digest names bytes by their hash, as OCI does: "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

const digestPrefix = "sha256:"

// ParseDigest checks that s is a SHA-256 digest.
func ParseDigest(s string) (Digest, error) {
	hexed, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(hexed) != 2*sha256.Size || strings.Trim(hexed, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%q is not a digest of the form sha256:<64 hexadecimal digits>", s)
	}
	return Digest(s), nil
}

// DigestOf returns the digest of data.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// SumDigest returns the digest that h, a SHA-256 hash, has summed up.
func SumDigest(h hash.Hash) Digest {
	return Digest(digestPrefix + hex.EncodeToString(h.Sum(nil)))
}

// Hex returns the digest's hexadecimal digits.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// Short returns the first twelve hexadecimal digits, enough for a person.
func (d Digest) Short() string { return d.Hex()[:min(12, len(d.Hex()))] }

// valid guards every path that is made from a digest.
func (d Digest) valid() error {
	_, err := ParseDigest(string(d))
	return err
}

func (s *Store) blobPath(d Digest) string {
	return s.path(blobBucket, "sha256", d.Hex()[:2], d.Hex())
}

// BlobPath returns the file that holds blob d, in this store or a shared one. The file must not be changed. What another member of a
// group has put there is hashed first.
func (s *Store) BlobPath(d Digest) (string, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// lookUp returns the store that has blob d, which counts as use.
func (s *Store) lookUp(d Digest) (*Store, fs.FileInfo, error) {
	if err := d.valid(); err != nil {
		return nil, nil, err
	}
	at, st := s.findBlob(d)
	if at == nil {
		return nil, nil, fmt.Errorf("blob %s in store %s: %w", d, s.dir, fs.ErrNotExist)
	}
	at.touchBlob(at.blobPath(d), st)
	return at, st, nil
}

// findBlob returns the store that has blob d, or nil. It does not count as use.
func (s *Store) findBlob(d Digest) (*Store, fs.FileInfo) {
	for _, at := range s.all() {
		if at != s && at.dir == s.dir { // the keeper's view of the same blobs
			continue
		}
		if st, err := at.statBlob(at.blobPath(d)); err == nil {
			return at, st
		}
	}
	return nil, nil
}

// statBlob is os.Stat, but in a store of a group nothing leads out of it.
func (s *Store) statBlob(path string) (fs.FileInfo, error) {
	if s.group == nil {
		return os.Stat(path)
	}
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	}
	return info, err
}

// HasBlob reports whether blob d is here.
func (s *Store) HasBlob(d Digest) bool {
	_, _, err := s.lookUp(d)
	return err == nil
}

// BlobSize returns the size of blob d in bytes.
func (s *Store) BlobSize(d Digest) (int64, error) {
	_, st, err := s.lookUp(d)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// OpenBlob opens blob d for reading. The error wraps fs.ErrNotExist when it is not here.
func (s *Store) OpenBlob(d Digest) (*os.File, error) {
	at, _, err := s.lookUp(d)
	if err != nil {
		return nil, err
	}
	if at.group == nil {
		return os.Open(at.blobPath(d))
	}
	f, err := os.OpenFile(at.blobPath(d), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := s.believe(at, d, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadBlob reads blob d, which must not be larger than limit bytes: manifests and configs, never layers. Its hash is
// checked, since a small document decides what else is believed.
func (s *Store) ReadBlob(d Digest, limit int64) ([]byte, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ctxio.ReadAtMost(f, limit)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d, err)
	}
	if got := DigestOf(data); got != d {
		return nil, fmt.Errorf("blob %s in store %s is damaged (its hash is %s); run `sconce cache verify --remove`", d, s.dir, got)
	}
	return data, nil
}

// writebackStep is how many bytes are written before the kernel is asked to start putting them on disk, so that the
// sync at the end has little left to wait for.
const writebackStep = 8 << 20

// BlobWriter receives a new blob's bytes. Exactly one of Commit and Close ends it; Close after Commit does nothing, so
// it can be deferred.
type BlobWriter struct {
	store   *Store
	f       *os.File
	hash    hash.Hash
	size    int64
	flushed int64

	followers followers
}

// NewBlob starts a new blob.
func (s *Store) NewBlob() (*BlobWriter, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	f, err := s.tempFile("blob-*")
	if err != nil {
		return nil, err
	}
	return &BlobWriter{store: s, f: f, hash: sha256.New()}, nil
}

// Write appends p to the blob.
func (w *BlobWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.hash.Write(p[:n])
	w.size += int64(n)
	w.followers.tell(w.size, nil)
	if w.size-w.flushed >= writebackStep {
		// Only a hint: where the file system does not know it, the sync at the end does the work.
		_ = unix.SyncFileRange(int(w.f.Fd()), w.flushed, w.size-w.flushed, unix.SYNC_FILE_RANGE_WRITE)
		w.flushed = w.size
	}
	return n, err
}

// Size returns the number of bytes written so far.
func (w *BlobWriter) Size() int64 { return w.size }

// Commit puts the blob under its digest. When want is not empty and differs from it, nothing is kept and the error is a
// [*MismatchError].
func (w *BlobWriter) Commit(want Digest) (Digest, error) {
	defer w.Close()
	got := SumDigest(w.hash)
	if want != "" && want != got {
		w.followers.tell(w.size, errWrongBytes)
		return "", &MismatchError{Want: want, Got: got, Size: w.size}
	}
	if err := w.store.publishBlob(w.f, got); err != nil {
		return "", fmt.Errorf("store blob %s: %w", got, err)
	}
	w.f = nil
	w.followers.tell(w.size, io.EOF)
	return got, nil
}

// Close discards the blob unless it was committed.
func (w *BlobWriter) Close() error {
	if w.f == nil {
		return nil
	}
	w.followers.tell(w.size, errAbandoned)
	name := w.f.Name()
	w.f.Close()
	w.f = nil
	return os.Remove(name)
}

// MismatchError says that bytes do not have the hash they should have.
type MismatchError struct {
	Want, Got Digest
	Size      int64
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("wrong hash: expected %s, got %s (%d bytes)", e.Want, e.Got, e.Size)
}

// PutBlob stores data and returns its digest.
func (s *Store) PutBlob(data []byte) (Digest, error) {
	d := DigestOf(data)
	if s.HasBlob(d) {
		return d, nil
	}
	w, err := s.NewBlob()
	if err != nil {
		return "", err
	}
	defer w.Close()
	if _, err := w.Write(data); err != nil {
		return "", fmt.Errorf("store blob: %w", err)
	}
	return w.Commit(d)
}

// tempFile makes a file in tmp-v1.
func (s *Store) tempFile(pattern string) (*os.File, error) {
	f, err := os.CreateTemp(s.path(tmpBucket), pattern)
	if err != nil {
		return nil, fmt.Errorf("write to store: %w", err)
	}
	return f, nil
}

// publishBlob makes f the blob d, which it is. A member of a group cannot replace another's: theirs is as good when its hash is right.
func (s *Store) publishBlob(f *os.File, d Digest) error {
	err := s.publish(f, s.blobPath(d))
	if s.group == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	theirs, openErr := s.OpenBlob(d)
	if openErr != nil {
		return errors.Join(openErr, err)
	}
	return theirs.Close()
}

// publish syncs f, makes it read-only for all, and moves it to path. f is closed in any case.
func (s *Store) publish(f *os.File, path string) error {
	err := errors.Join(f.Chmod(0o444), f.Sync(), f.Close())
	if err == nil {
		err = s.makeDirs(filepath.Dir(path))
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeDirs makes dir and what is missing above it, each on disk before anything is put into it.
func (s *Store) makeDirs(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := s.makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := s.makeDir(dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}
