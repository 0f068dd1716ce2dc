package fileop

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

func newSum() hash.Hash { return sha256.New() }

// Digest returns the digest of what would be copied and how: the destination, owner and changes that were asked for, and of each
// file its name, type, permissions, content, target, and which names are one file; of the files of an image also owners, times and
// extended attributes. Patterns count by what they match. It does not depend on the machine, the directory, or times there. Remote
// files count by address and digest.
func (c Copy) Digest(ctx context.Context, from Files) (store.Digest, error) {
	list, err := c.chosen(ctx, from)
	if err != nil {
		return "", err
	}
	asked := len(c.Sources) // several make the destination a directory, whatever they match
	c.Sources, c.Exclude = nil, nil
	how, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	h := newSum()
	fmt.Fprintf(h, "copy 2 %d %s\n", min(asked, 2), how)
	if err := hashAll(ctx, list); err != nil {
		return "", fmt.Errorf("copy to %s: %w", quote(c.Dest), err)
	}
	s := summing{h: h}
	for _, p := range list {
		if p.node == nil {
			continue
		}
		fmt.Fprintf(h, "source %q %q\n", p.name, p.rel)
		if err := s.start(p.node); err != nil {
			return "", err
		}
		for _, dir := range layer.Parents(p.rel) {
			n, err := p.base.find(dir, true)
			if err != nil {
				return "", err
			}
			s.add(n, dir)
		}
		if err := p.node.walk("", func(n *node, at string) error { s.add(n, at); return nil }); err != nil {
			return "", err
		}
	}
	return store.SumDigest(h), nil
}

// chosen are the sources of the copy, without what it excludes.
func (c Copy) chosen(ctx context.Context, from Files) ([]picked, error) {
	exclude, err := newPatterns(c.Exclude)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("exclude %w", err))
	}
	list, err := c.pick(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("copy to %s: %w", quote(c.Dest), err)
	}
	for i := range list {
		if list[i].node, err = list[i].without(exclude); err != nil {
			return nil, fmt.Errorf("copy to %s: %w", quote(c.Dest), err)
		}
	}
	return list, nil
}

type summing struct {
	h     hash.Hash
	names map[any]int // how many names a file has in the source; elsewhere it may have more, which does not matter
	files map[any]int // numbers of those that have several, as they came
}

// start begins with another source.
func (s *summing) start(n *node) error {
	s.names, s.files = map[any]int{}, map[any]int{}
	return n.walk("", func(n *node, _ string) error {
		if n.file != nil {
			s.names[n.file]++
		}
		return nil
	})
}

// add writes a line about a file that no other file has.
func (s *summing) add(n *node, at string) {
	fmt.Fprintf(s.h, "%q %d %o %d:%d %d %q %d:%d %s", at, n.Type, n.Mode, n.UID, n.GID, n.Size, n.Link, n.Major, n.Minor, n.known())
	if !n.ModTime.IsZero() {
		fmt.Fprintf(s.h, " time %d", n.ModTime.Unix())
	}
	for _, k := range slices.Sorted(maps.Keys(n.Xattrs)) {
		fmt.Fprintf(s.h, " %q=%q", k, n.Xattrs[k])
	}
	if s.names[n.file] > 1 {
		number, ok := s.files[n.file]
		if !ok {
			number = len(s.files)
			s.files[n.file] = number
		}
		fmt.Fprintf(s.h, " file %d", number)
	}
	fmt.Fprintln(s.h)
}

// hashAll finds out the hash of every regular file among the sources.
func hashAll(ctx context.Context, list []picked) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	seen := map[*node]bool{}
	var walkErr error
	for _, p := range list {
		if p.node == nil {
			continue
		}
		walkErr = p.node.walk("", func(n *node, _ string) error {
			switch {
			case n.refused != nil:
				return n.refused
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case n.Type == layer.Regular && !seen[n]:
				seen[n] = true
				group.Go(func() error { return n.sum(ctx) })
			}
			return nil
		})
		if walkErr != nil {
			break
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return walkErr
}

func (n *node) known() store.Digest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hash
}

// hashBuffer is how much of a file is read at once to hash it, in bytes.
const hashBuffer = 256 << 10

var buffers = sync.Pool{New: func() any { return new([hashBuffer]byte) }}

// sum finds out the hash of a regular file, if it is not known.
func (n *node) sum(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hash != "" {
		return nil
	}
	r, err := n.open()
	if err != nil {
		return err
	}
	defer r.Close()
	buf, ok := buffers.Get().(*[hashBuffer]byte)
	if !ok {
		buf = new([hashBuffer]byte)
	}
	defer buffers.Put(buf)
	h := newSum()
	if _, err := io.CopyBuffer(h, ctxio.Reader(ctx, r), buf[:]); err != nil {
		return err
	}
	n.hash = store.SumDigest(h)
	return nil
}
