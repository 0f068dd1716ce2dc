package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
)

// partialPrefix begins the names of partial downloads in tmp-v1, which outlive their process.
const partialPrefix = "partial-"

// Partial is a download that survives its process: bytes of a blob whose digest is known beforehand, kept under that
// digest until they are complete. The caller must hold the lock named after the digest.
type Partial struct {
	store *Store
	f     *os.File
	want  Digest
	hash  hash.Hash
	size  int64

	followers followers
}

// OpenPartial opens what was downloaded of blob d so far, hashing it on the way. Size says from where to go on.
func (s *Store) OpenPartial(d Digest) (*Partial, error) {
	if err := errors.Join(s.writable(), d.valid()); err != nil {
		return nil, err
	}
	path := s.path(tmpBucket, partialPrefix+d.Hex())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, fs.ErrPermission) && os.Chmod(path, 0o644) == nil {
		// A process was killed in Commit, after it had made the file read-only.
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("resume blob %s: %w", d, err)
	}
	p := &Partial{store: s, f: f, want: d, hash: sha256.New()}
	if p.size, err = io.Copy(p.hash, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("resume blob %s: %w", d, err)
	}
	return p, nil
}

// Arrived returns how many bytes an earlier attempt has left of a blob that did not come to its end.
func (s *Store) Arrived(d Digest) int64 {
	if d.valid() != nil {
		return 0
	}
	st, err := os.Stat(s.path(tmpBucket, partialPrefix+d.Hex()))
	if err != nil {
		return 0
	}
	return st.Size()
}

// Size returns how many bytes are here.
func (p *Partial) Size() int64 { return p.size }

// Write appends downloaded bytes.
func (p *Partial) Write(b []byte) (int, error) {
	n, err := p.f.Write(b)
	p.hash.Write(b[:n])
	p.size += int64(n)
	p.followers.tell(p.size, nil)
	return n, err
}

// Reset throws away what is here, for a server that cannot resume or bytes that turned out wrong.
func (p *Partial) Reset() error {
	p.hash.Reset()
	if p.size > 0 {
		p.followers.tell(p.size, errWrongBytes)
	}
	p.size = 0
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	_, err := p.f.Seek(0, io.SeekStart)
	return err
}

// Commit makes the bytes the blob they are said to be. When their hash is another, they are thrown away and the error is
// a [*MismatchError].
func (p *Partial) Commit() error {
	if got := SumDigest(p.hash); got != p.want {
		err := &MismatchError{Want: p.want, Got: got, Size: p.size}
		return errors.Join(err, p.Reset())
	}
	f := p.f
	p.f = nil
	if err := p.store.publishBlob(f, p.want); err != nil {
		p.followers.tell(p.size, errAbandoned)
		return err
	}
	p.followers.tell(p.size, io.EOF)
	return nil
}

// Close keeps what was downloaded for the next attempt.
func (p *Partial) Close() error {
	if p.f == nil {
		return nil
	}
	p.followers.tell(p.size, errAbandoned)
	err := p.f.Close()
	p.f = nil
	return err
}
