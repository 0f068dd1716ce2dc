package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// Squashfs are the files of a file system, read where they are.
func Squashfs(r *squashfs.Reader) Files { return &squashFiles{r: r} }

// ClusterFile are the files of a cluster file, read where they are. What is found in them is kept in the store, unless that is
// nil.
func ClusterFile(c *source.ClusterFile, st *store.Store) (Files, error) {
	id, err := tablesDigest(c.Partition)
	if err != nil {
		return nil, fmt.Errorf("read the tables of the file system: %w", err)
	}
	return &squashFiles{r: c.FS, id: id, cache: cache{st}}, nil
}

type squashFiles struct {
	r     *squashfs.Reader
	id    store.Digest // of the tables; "" when not known
	cache cache
}

// Places of numbers in a squashfs superblock (Linux, fs/squashfs/squashfs_fs.h).
const (
	superblockSize = 96
	atBytesUsed    = 40
	atInodeTable   = 64
)

// tablesDigest is the hash of everything in a squashfs but the blocks of its files. The tables have the time of each file and the
// place and the compressed length of each of its blocks: two file systems that differ in anything do not share them, unless
// somebody means to deceive himself.
func tablesDigest(r *io.SectionReader) (store.Digest, error) {
	super := make([]byte, superblockSize)
	if _, err := r.ReadAt(super, 0); err != nil {
		return "", err
	}
	end, tables := binary.LittleEndian.Uint64(super[atBytesUsed:]), binary.LittleEndian.Uint64(super[atInodeTable:])
	if end > uint64(r.Size()) || tables > end { //nolint:gosec // no size is negative
		return "", squashfs.ErrFormat
	}
	h := sha256.New()
	h.Write(super)
	if _, err := io.Copy(h, io.NewSectionReader(r, int64(tables), int64(end-tables))); err != nil { //nolint:gosec // at most r.Size
		return "", err
	}
	return store.SumDigest(h), nil
}

func (s *squashFiles) Walk(ctx context.Context, wanted Filter, visit func(File) error) error {
	return s.files(ctx, func(p string, f *squashfs.File) error { return s.look(p, f, wanted, visit) })
}

// files calls visit with one name of each large enough file.
func (s *squashFiles) files(ctx context.Context, visit func(p string, f *squashfs.File) error) error {
	seen := map[uint32]bool{} // by number, files with several names
	return s.r.Walk(func(p string, f *squashfs.File) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Type != squashfs.Regular || f.Size <= minSize || seen[f.Number] {
			return nil
		}
		if f.Links > 1 {
			seen[f.Number] = true
		}
		return visit(p, f)
	})
}

func (s *squashFiles) look(p string, f *squashfs.File, wanted Filter, visit func(File) error) error {
	content := f.Content()
	head := make([]byte, headSize)
	// One whose first bytes cannot be read is shown: the visitor will meet the same error, and knows what it means.
	if _, err := content.ReadAt(head, 0); err == nil && !wanted(p, head) {
		return nil
	}
	return visit(File{p, f.Size, content})
}

func (s *squashFiles) scan(ctx context.Context) ([]scanned, error) {
	var known pathFacts
	key := s.cache.key(string(s.id))
	if s.id != "" && s.cache.get(fileFactsKind, key, &known) {
		return known.files(), nil
	}
	found, err := s.scanAll(ctx)
	if err != nil || s.id == "" || slices.ContainsFunc(found, func(f scanned) bool { return f.unread }) {
		return found, err
	}
	for i := range found {
		known.Files = append(known.Files, pathFact{found[i].path, found[i].size, found[i].fileFacts})
	}
	if err := s.cache.put(fileFactsKind, key, known); err != nil {
		return nil, fmt.Errorf("keep what was found: %w", err)
	}
	return found, nil
}

func (p pathFacts) files() []scanned {
	list := make([]scanned, len(p.Files))
	for i := range p.Files {
		f := &p.Files[i]
		f.restore()
		list[i] = f.at(f.Path, f.Size)
	}
	return list
}

// squashFile is a file to look at.
type squashFile struct {
	path string
	file *squashfs.File
}

// scanAll looks at all files, several side by side, the largest first.
func (s *squashFiles) scanAll(ctx context.Context) ([]scanned, error) {
	var files []squashFile
	var size int64
	err := s.files(ctx, func(p string, f *squashfs.File) error {
		if mayHoldCode(p) {
			files = append(files, squashFile{p, f})
			size += f.Size
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(files, func(a, b squashFile) int { return cmp.Compare(b.file.Size, a.file.Size) })
	task := event.Begin(ctx, "scan", "machine code", size)
	var mu sync.Mutex
	var found []scanned
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(min(runtime.GOMAXPROCS(0), maxScanners))
	for _, f := range files {
		if working.Err() != nil {
			break
		}
		group.Go(func() error {
			defer task.Add(f.file.Size)
			return s.look(f.path, f.file, fatbin.MayHold, func(file File) error {
				c, err := look(working, file)
				if err != nil || c.empty() {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				found = append(found, c.at(file.Path, file.Size))
				return nil
			})
		})
	}
	err = task.End(cmp.Or(group.Wait(), ctx.Err()))
	return sortScanned(found), err
}
