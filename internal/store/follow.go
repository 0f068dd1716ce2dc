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
	f, err := os.Open(p.f.Name())
	if err != nil {
		return nil, fmt.Errorf("read blob %s as it arrives: %w", p.want, err)
	}
	r := &follower{f: f, size: p.size}
	r.changed.L = &r.mu
	p.followers = append(p.followers, r)
	return r, nil
}

// follower reads a partial download. A [Partial] tells it what happens to that.
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
	errAbandoned  = errors.New("the download has ended before the blob was complete")
)

// tell passes on how much is here, and whether that is all.
func (p *Partial) tell(end error) {
	for _, r := range p.followers {
		r.mu.Lock()
		if r.end == nil {
			r.size, r.end = p.size, end
		}
		r.mu.Unlock()
		r.changed.Broadcast()
	}
}

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
