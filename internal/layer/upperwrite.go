package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// same reports whether the base has the same at a node's path, but for the content of a regular file.
func (u *upperReader) same(n *upperNode) bool {
	b := n.base
	return b.Type == n.Type && (b.Mode == n.Mode || n.Type == Symlink) && b.UID == n.UID && b.GID == n.GID && b.Size == n.Size && b.Link == n.Link &&
		b.Major == n.Major && b.Minor == n.Minor && maps.Equal(b.Xattrs, n.Xattrs) && (u.opts.Started.IsZero() || !n.written && n.ModTime.Equal(b.ModTime))
}

// compareFiles finds out what is as it was.
func (u *upperReader) compareFiles() error {
	for i := range u.nodes {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		if err := u.compare(&u.nodes[i]); err != nil {
			return fmt.Errorf("compare %s: %w", quotePath(u.nodes[i].Path), err)
		}
	}
	for _, names := range u.groups {
		u.keepTogether(names)
	}
	return nil
}

// compare finds out whether a file is as it was. One whose content alone is as it was keeps the capabilities that were
// not there to be copied up, and its time if times do not count.
func (u *upperReader) compare(n *upperNode) error {
	if n.base == nil || n.Type == Dir || n.base.Type != n.Type {
		return nil
	}
	if n.Type != Regular {
		n.unchanged = u.same(n)
		return nil
	}
	if n.base.Size != n.Size {
		return nil
	}
	equal, err := u.sameContent(n)
	if err != nil || !equal {
		return err
	}
	if u.opts.Started.IsZero() {
		n.keepTime()
	}
	if given := n.base.Xattrs[capability]; n.inherited && !n.chowned && given != "" && n.Xattrs[capability] == "" {
		n.setCapability(given)
	}
	n.unchanged = u.same(n)
	return nil
}

// keepTogether makes sure that a file with several names is in the layer under all of them, unless the base has it under
// the same ones.
func (u *upperReader) keepTogether(names []int) {
	first := u.nodes[names[0]]
	together := !slices.ContainsFunc(names, func(i int) bool {
		n := &u.nodes[i]
		return !n.unchanged || n.base.Inode != first.base.Inode || n.base.Links != len(names)
	})
	if together {
		return
	}
	from := slices.IndexFunc(names, func(i int) bool { return u.nodes[i].inherited })
	if from < 0 {
		from = 0
	}
	e, written := u.nodes[names[from]].Entry, u.nodes[names[from]].written
	for k, i := range names {
		n := &u.nodes[i]
		n.unchanged = false
		n.UID, n.GID, n.Mode, n.Xattrs, n.ModTime, n.written = e.UID, e.GID, e.Mode, e.Xattrs, e.ModTime, written
		if k > 0 {
			n.Type, n.Link, n.Size, n.Xattrs = HardLink, first.Path, 0, nil
		}
	}
}

func (u *upperReader) sameContent(n *upperNode) (bool, error) {
	if n.Size == 0 {
		return true, nil
	}
	ours, err := u.openFile(n)
	if err != nil {
		return false, err
	}
	defer ours.Close()
	theirs, err := u.opts.Base.Open(n.Path)
	if err != nil {
		return false, err
	}
	defer theirs.Close()
	return u.equalStreams(ours, theirs)
}

// compareSize is how much of two contents is compared at once, in bytes.
const compareSize = 256 << 10

func (u *upperReader) equalStreams(a, b io.Reader) (bool, error) {
	if u.copies[0] == nil {
		u.copies = [2][]byte{make([]byte, compareSize), make([]byte, compareSize)}
	}
	for {
		n, errA := io.ReadFull(a, u.copies[0])
		m, errB := io.ReadFull(b, u.copies[1])
		endA, endB := ended(errA), ended(errB)
		switch {
		case errA != nil && !endA:
			return false, errA
		case errB != nil && !endB:
			return false, errB
		case !bytes.Equal(u.copies[0][:n], u.copies[1][:m]):
			return false, nil
		case endA || endB:
			return endA && endB, nil
		}
		if u.ctx.Err() != nil {
			return false, context.Cause(u.ctx)
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// openFile opens a regular file, also when its owner may not read it.
func (u *upperReader) openFile(n *upperNode) (*os.File, error) {
	fd, err := u.open(n.Path, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) {
		if err := u.chmod(n.Path, n.disk|0o400); err != nil {
			return nil, err
		}
		fd, err = u.open(n.Path, unix.O_RDONLY|unix.O_NONBLOCK)
		err = errors.Join(err, u.chmod(n.Path, n.disk))
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), n.Path), nil
}

// write adds what has changed, and the directories above it.
func (u *upperReader) write(w *Writer) error {
	var above []*upperNode // unchanged directories that lead to the node
	for i := range u.nodes {
		n := &u.nodes[i]
		for len(above) > 0 && !isBelow(n.Path, above[len(above)-1].Path) {
			above = above[:len(above)-1]
		}
		if n.unchanged {
			if n.Type == Dir && n.Path != "." {
				above = append(above, n)
			}
			continue
		}
		for _, d := range above {
			if err := w.Add(d.Entry, nil); err != nil {
				return err
			}
		}
		above = above[:0]
		var content Content
		if n.Type == Regular && n.Size > 0 {
			content = func() (io.ReadCloser, error) { return u.openFile(n) }
		}
		if err := w.Add(n.Entry, content); err != nil {
			return err
		}
	}
	return nil
}
