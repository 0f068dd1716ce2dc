package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Follow returns what is here of a download and what arrives, for one reader in another goroutine. It gives io.EOF only when
// the blob is complete and has been committed: what was read until then is not to be believed, and when bytes have turned out
// wrong the error says so. The caller closes it.
func (p *Partial) Follow() (io.ReadCloser, error) {
	r, err := p.followers.add(p.f, p.size)
	if err != nil {
		err = fmt.Errorf("read blob %s as it arrives: %w", p.want, err)
	}
	return r, err
}

// Follow is [Partial.Follow] of a blob that is being written.
func (w *BlobWriter) Follow() (io.ReadCloser, error) { return w.followers.add(w.f, w.size) }

// followers read a file while it is written.
type followers []*follower

func (all *followers) add(f *os.File, size int64) (io.ReadCloser, error) {
	own, err := os.Open(f.Name())
	if err != nil {
		return nil, err
	}
	r := &follower{f: own, size: size}
	r.changed.L = &r.mu
	*all = append(*all, r)
	return r, nil
}

// tell passes on how much is here, in bytes, and whether that is all.
func (all followers) tell(size int64, end error) {
	for _, r := range all {
		r.mu.Lock()
		if r.end == nil {
			r.size, r.end = size, end
		}
		r.mu.Unlock()
		r.changed.Broadcast()
	}
}

// follower reads a file of which whoever writes it tells what happens to it.
type follower struct {
	f  *os.File
	at int64

	mu      sync.Mutex
	changed sync.Cond
	size    int64 // what may be read
	end     error // io.EOF after the commit; nil as long as more may come
}

var (
	errWrongBytes = errors.New("what arrived first was wrong, and was thrown away")
	errAbandoned  = errors.New("the blob was given up before it was complete")
)

// wait returns how much can be read, at least a byte unless there is an error.
func (r *follower) wait() (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.end == nil && r.size <= r.at {
		r.changed.Wait()
	}
	if r.end != nil && (r.size <= r.at || !errors.Is(r.end, io.EOF)) {
		return 0, r.end
	}
	return r.size - r.at, nil
}

func (r *follower) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := r.wait()
	if err != nil {
		return 0, err
	}
	m, err := r.f.ReadAt(b[:min(int64(len(b)), n)], r.at)
	r.at += int64(m)
	if m > 0 || errors.Is(err, io.EOF) { // thrown away meanwhile: the next wait tells
		err = nil
	}
	return m, err
}

func (r *follower) Close() error { return r.f.Close() }
