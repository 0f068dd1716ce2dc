package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// What the names of files begin and end with that many nodes share.
const (
	sharedPrefix = "sha256-"
	sharedExt    = ".sqsh"
	uenvExt      = ".squashfs"
)

// Share returns the path of a squashfs file of the image in dir, which is named after the manifest's digest and made once, whoever
// of all nodes that share dir is the first to ask for it. If it is there already in one of the directories ready, it is that one.
func (s *Session) Share(ctx context.Context, from *Subject, dir string, w Writing, ready ...string) (string, error) {
	pinned, digest, err := source.Resolve(ctx, from.Ref, from.how)
	if err != nil {
		return "", err
	}
	for _, d := range ready {
		if path := filepath.Join(d, sharedName(digest, w.Squashfs)); used(path) {
			return path, nil
		}
	}
	path := filepath.Join(dir, sharedName(digest, w.Squashfs))
	return path, s.shareOnce(ctx, pinned, from.how, source.Squashfs, path, s.writing(w), sharedFile{there: used})
}

// sharedName is the name of an image's file. One that is compressed otherwise is another file.
func sharedName(d store.Digest, o squashfs.Options) string {
	name := sharedPrefix + d.Hex()
	if def := squashfs.DefaultOptions(); o.Key() != def.Key() {
		name += "-" + store.DigestOf([]byte(o.Key())).Short()
	}
	return name + sharedExt
}

// sharedFile is how a file is known to be that of an image, besides by its name, and what is noted of one that was made.
type sharedFile struct {
	there func(path string) bool
	note  func(path string) error // nil: another file of the name is taken for it, so that users share it
}

// shareOnce makes the file of an image unless it is there. A file under its final name is whole.
func (s *Session) shareOnce(ctx context.Context, ref source.Ref, from source.Options, kind source.Transport, path string, how export.Options, file sharedFile) error {
	if file.there(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// One lock around the download too: it is the longer part. The one of the file's own name is that of who writes it.
	lock, err := filelock.Acquire(ctx, strings.TrimSuffix(path, filepath.Ext(path)), "imports the image", progress.Waiting(ctx))
	if err != nil {
		return err
	}
	defer lock.Release()
	if file.there(path) {
		return nil
	}
	if file.note != nil { // what has the name need not be the image, whatever it says of itself
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := s.checkRoom(ctx, ref, from, export.Target{Transport: kind, Path: path}, how); err != nil {
		return err
	}
	im, err := source.Import(ctx, ref, from)
	if err != nil {
		return err
	}
	how.Public = true
	if err := export.Write(ctx, im, export.Target{Transport: kind, Path: path}, how); err != nil || file.note == nil {
		return err
	}
	return file.note(path)
}

// checkRoom returns an error when the layers of an image and the file that is made of them will not fit, before any of them comes.
func (s *Session) checkRoom(ctx context.Context, ref source.Ref, from source.Options, to export.Target, how export.Options) error {
	if to.Transport == export.Uenv { // which is a part of the image
		return nil
	}
	im, err := image.Load(ctx, s.Store, ref.Digest)
	if err != nil {
		outline, err := source.Outline(ctx, ref, from)
		if err != nil {
			return nil //nolint:nilerr // importing it says what is wrong
		}
		im = outline.Image
	}
	return export.CheckRoom(to, s.Store, export.LeastSize(s.Store, im, how), fetch.Needed(s.Store, im.Blobs()))
}

// used reports whether the file is there, and notes that it was asked for.
func used(path string) bool {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return false
	}
	_ = os.Chtimes(path, time.Time{}, time.Now()) // another user's image is used all the same
	return true
}

// Unshare removes the files of dir that nobody has asked for in the time given.
func Unshare(dir string, age time.Duration) error {
	found, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range found {
		if !unusedFor(e, age) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// isShared reports whether a name is one of [sharedName].
func isShared(name string) bool {
	return strings.HasPrefix(name, sharedPrefix) && strings.HasSuffix(name, sharedExt) && !strings.ContainsRune(name, filepath.Separator)
}

// unusedFor reports whether a directory's entry is a shared file that nobody has asked for in the time given.
func unusedFor(e fs.DirEntry, age time.Duration) bool {
	st, err := e.Info()
	return err == nil && isShared(e.Name()) && st.Mode().IsRegular() && time.Since(st.ModTime()) >= age
}
