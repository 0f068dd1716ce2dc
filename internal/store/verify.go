package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/progress"
)

// Damage is one object of the store that is not what it should be.
type Damage struct {
	Object  string `json:"object"`  // its path below the store's directory
	Problem string `json:"problem"` // what is wrong with it
	Removed bool   `json:"removed"`
}

// VerifyReport is what [Store.Verify] found.
type VerifyReport struct {
	Blobs   int      `json:"blobs"`   // blobs whose hash was checked
	Bytes   int64    `json:"bytes"`   // their bytes
	Records int      `json:"records"` // records that were read
	Trees   int      `json:"trees"`   // trees; their content is not checked
	Damaged []Damage `json:"damaged"` // by path
	Stale   int      `json:"stale"`   // records that stand on blobs which are gone: misses, which do no harm
	Unused  int      `json:"unused"`  // unfinished trees and temporary files, which the next prune removes
}

// OK reports whether nothing is damaged.
func (r VerifyReport) OK() bool { return len(r.Damaged) == 0 }

// Verify reads the whole store: every blob is hashed, every record parsed. An image that lacks a blob is damage; any other
// record that does is only stale. With remove, what is damaged or stale is removed, so that it is fetched or made again.
// Other processes may use the store meanwhile.
func (s *Store) Verify(ctx context.Context, remove bool) (VerifyReport, error) {
	if remove {
		if err := s.writable(); err != nil {
			return VerifyReport{}, err
		}
	}
	v := &verifier{store: s, remove: remove}
	if err := v.run(ctx); err != nil {
		return v.report, fmt.Errorf("verify store %s: %w", s.dir, err)
	}
	return v.sorted(), nil
}

type verifier struct {
	store  *Store
	remove bool

	mu     sync.Mutex // guards report
	report VerifyReport
}

// sorted returns what was found, in the order of the objects.
func (v *verifier) sorted() VerifyReport {
	slices.SortFunc(v.report.Damaged, func(a, b Damage) int { return strings.Compare(a.Object, b.Object) })
	return v.report
}

func (v *verifier) run(ctx context.Context) error {
	if err := v.blobs(ctx); err != nil { // before the records, so that they are judged by the blobs that are left
		return err
	}
	if err := walkFiles(v.store.path(recordBucket), v.record); err != nil {
		return err
	}
	return v.leftovers()
}

// verifyWorkers is how many blobs are hashed at once: enough to keep a fast disk busy.
const verifyWorkers = 4

func (v *verifier) blobs(ctx context.Context) error {
	dir := v.store.path(blobBucket)
	use, err := countFiles("blobs", dir)
	if err != nil {
		return err
	}
	task := progress.Begin(ctx, "verify", "blobs", use.Bytes)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyWorkers)
	err = walkFiles(dir, func(path string, info fs.FileInfo) error {
		g.Go(func() error { return v.blob(ctx, task, path, info) })
		return ctx.Err()
	})
	return task.End(errors.Join(g.Wait(), err))
}

func (v *verifier) blob(ctx context.Context, task *progress.Task, path string, info fs.FileInfo) error {
	problem := v.checkBlob(ctx, task, path, info)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v.mu.Lock()
	v.report.Blobs++
	v.report.Bytes += info.Size()
	v.mu.Unlock()
	if errors.Is(problem, fs.ErrNotExist) { // removed meanwhile by another verify
		return nil
	}
	if problem != nil {
		return v.damaged(path, problem)
	}
	return nil
}

func (v *verifier) checkBlob(ctx context.Context, task *progress.Task, path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("not a regular file")
	}
	want := Digest(digestPrefix + filepath.Base(path))
	if want.valid() != nil || v.store.blobPath(want) != path {
		return fmt.Errorf("not named as a blob")
	}
	f, err := openQuietly(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(h, task), ctxio.Reader(ctx, f)); err != nil {
		return err
	}
	if got := SumDigest(h); got != want {
		return fmt.Errorf("its hash is %s", got)
	}
	return nil
}

// openQuietly opens a file without changing its time of access, which prune reads, if the kernel lets this user.
func openQuietly(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOATIME, 0)
	if errors.Is(err, fs.ErrPermission) {
		return os.Open(path)
	}
	return f, err
}

func (v *verifier) record(path string, _ fs.FileInfo) error {
	v.report.Records++
	env, err := readEnvelope(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errDamaged):
		return v.damaged(path, errors.New("cannot be read as a record"))
	case err != nil:
		return v.damaged(path, err)
	}
	if filepath.Base(filepath.Dir(filepath.Dir(path))) == string(KindImage) {
		return v.imageRecord(path, env)
	}
	if v.store.hasAll(env.Refs) {
		return nil
	}
	v.report.Stale++
	if v.remove {
		return os.Remove(path)
	}
	return nil
}

func (v *verifier) imageRecord(path string, env envelope) error {
	r, err := env.image()
	if err != nil {
		return v.damaged(path, errors.New("cannot be read as an image's name"))
	}
	for _, d := range env.Refs {
		if at, _ := v.store.findBlob(d); at == nil {
			return v.damaged(path, fmt.Errorf("image %s lacks blob %s", r.FullName(), d))
		}
	}
	return nil
}

func (v *verifier) leftovers() error {
	trees, err := v.store.listTrees()
	if err != nil {
		return err
	}
	for _, t := range trees {
		v.report.Trees++
		if !t.done {
			v.report.Unused++
		}
	}
	temps, err := os.ReadDir(v.store.path(tmpBucket))
	v.report.Unused += len(temps)
	return err
}

// certain reports whether a problem is the object's: too many open files, say, is no reason to remove anything.
func certain(problem error) bool {
	var syscallErr *fs.PathError
	return !errors.As(problem, &syscallErr) || errors.Is(problem, syscall.EIO)
}

func (v *verifier) damaged(path string, problem error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	object, err := filepath.Rel(v.store.dir, path)
	if err != nil {
		return err
	}
	d := Damage{Object: object, Problem: problem.Error()}
	if v.remove && certain(problem) {
		err := os.RemoveAll(path)
		if err != nil && (v.store.Keeps() || !errors.Is(err, fs.ErrPermission)) { // another member's is theirs to remove
			return err
		}
		d.Removed = err == nil
	}
	v.report.Damaged = append(v.report.Damaged, d)
	return nil
}
