package fileop

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
)

// maxArchive is the most bytes that an archive may decompress to. Memory and time depend on the limits that [layer.Archive] has.
var maxArchive int64 = 64 << 30

// magicBzip2 starts a bzip2 stream, before a digit.
const magicBzip2 = "BZh"

// decompress returns the uncompressed bytes of r.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	if head, _ := br.Peek(len(magicBzip2)); string(head) == magicBzip2 {
		return io.NopCloser(bzip2.NewReader(br)), nil
	}
	return layer.Decompress(br)
}

// isArchive reports whether a file is a tar, compressed or not: whether there is an entry at its beginning.
func isArchive(n *node) (bool, error) {
	if n.Size == 0 {
		return false, nil
	}
	r, err := n.open()
	if err != nil {
		return false, err
	}
	defer r.Close()
	z, err := decompress(r)
	if err != nil {
		return false, nil // it is something else
	}
	defer z.Close()
	var head bytes.Buffer
	// A pax header may stand before that of the first entry, and is no longer than this. What is cut off does not matter.
	_, _ = io.Copy(&head, io.LimitReader(z, 4<<20))
	_, err = tar.NewReader(&head).Next()
	return err == nil, nil
}

// extract unpacks an archive into the destination and reports whether n is one.
func (j *job) extract(n *node) (bool, error) {
	if ok, err := isArchive(n); !ok || err != nil {
		return false, err
	}
	err := j.extractArchive(n)
	if err == nil {
		return true, nil
	}
	err = fmt.Errorf("unpack %s: %w", quote(n.Path), err)
	if fault.HintOf(err) == "" {
		err = fault.Hint(err, "COPY copies an archive as it is")
	}
	return true, err
}

func (j *job) extractArchive(n *node) error {
	dir, err := j.stage.enter(j.Dest, j.unpacker())
	if err != nil {
		return err
	}
	ix, err := j.spool(n)
	if err != nil {
		return err
	}
	for _, e := range ix.Entries {
		if j.ctx.Err() != nil {
			return context.Cause(j.ctx)
		}
		if err := j.unpack(dir, ix, e); err != nil {
			return fmt.Errorf("entry %s: %w", quote(e.Path), err)
		}
	}
	return nil
}

// spool writes the uncompressed archive to a temporary file and reads its headers.
func (j *job) spool(n *node) (*layer.Index, error) {
	r, err := n.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	z, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	f, err := j.tempFile()
	if err != nil {
		return nil, err
	}
	size, err := io.Copy(f, ctxio.Reader(j.ctx, io.LimitReader(z, maxArchive+1)))
	if err != nil {
		return nil, err
	}
	if size > maxArchive {
		return nil, fmt.Errorf("it has more than %d bytes when it is decompressed", maxArchive)
	}
	ix, err := layer.Archive(j.st, f).Index(j.ctx)
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without the temporary file's name
	}
	return ix, err
}

// unpack puts an entry of an archive into the directory dir of the image: like a program that extracts the archive there and has
// that directory as its root, so that nothing of the archive comes to lie anywhere else. What stands in the way of the entry is replaced, but for a directory by a directory.
func (j *job) unpack(dir *place, ix *layer.Index, e layer.IndexEntry) error {
	if j.owner != nil {
		e.UID, e.GID = j.owner.uid, j.owner.gid
	}
	maps.DeleteFunc(e.Xattrs, func(name, _ string) bool { return !inImage(name) })
	if e.Path == "." {
		return nil // the directory that was packed; the one that it is unpacked into stays as it is, as with BuildKit
	}
	above, name, err := j.stage.reachBelow(dir, e.Path, false, j.unpacker())
	if err != nil {
		return err
	}
	if above == nil {
		return errors.New("it leads to the destination itself")
	}
	old := j.stage.below(above, name)
	if e.Type == layer.HardLink {
		return j.link(dir, above, name, e.Link)
	}
	if old != nil && old.Type == layer.Dir && e.Type == layer.Dir {
		return setDir(old, e.Entry)
	}
	var content layer.Content
	if e.Type == layer.Regular {
		content = func() (io.ReadCloser, error) { return ix.OpenContent(e) }
	}
	_, err = j.stage.put(above, name, e.Entry, content, nil)
	return err
}

// inImage reports whether an extended attribute is part of a file, and not what a machine, or a mount of overlay, notes about it.
func inImage(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// setDir gives a directory the attributes of an entry.
func setDir(dir *place, e layer.Entry) error {
	e.Path = dir.Path
	dir.Entry = e
	dir.change()
	return nil
}

// link gives a file of the image another name. target is relative to dir.
func (j *job) link(dir, above *place, name, target string) error {
	in, base, err := j.stage.reachBelow(dir, target, false, nil)
	if err != nil {
		return err
	}
	var t *place
	if in != nil {
		t = j.stage.below(in, base)
	}
	if t == nil || t.Type == layer.Dir {
		return fmt.Errorf("it is a hard link to %s, which is no file", quote(target))
	}
	if in == above && base == name {
		return nil
	}
	if t.file == nil {
		t.file = t
	}
	t.change() // a layer cannot link to a file of another
	_, err = j.stage.put(above, name, t.Entry, t.content, t.file)
	return err
}
