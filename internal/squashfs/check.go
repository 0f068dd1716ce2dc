package squashfs

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// Check reads all tables, directories, inodes, extended attributes and lists of blocks, and nothing of the files' contents. It
// returns the first thing that is wrong, with the path where there is one.
func (r *Reader) Check(ctx context.Context) error {
	return r.check(ctx, func(*File) error { return nil })
}

// CheckData is Check, and decompresses every block once.
func (r *Reader) CheckData(ctx context.Context) error {
	work, workCtx := errgroup.WithContext(ctx)
	work.SetLimit(runtime.GOMAXPROCS(0))
	d := dataCheck{ctx: workCtx, work: work, done: map[checkedBlock]bool{}}
	err := r.check(workCtx, d.file)
	if waited := work.Wait(); waited != nil { // what made the context end
		return waited
	}
	return err
}

func (r *Reader) check(ctx context.Context, file func(*File) error) error {
	for i := range int64(r.super.Fragments) {
		if _, _, err := r.fragment(i); err != nil {
			return err
		}
	}
	if err := r.checkExports(); err != nil {
		return fmt.Errorf("export table: %w", err)
	}
	for i := range r.xattrs.count {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := r.readXattrs(i); err != nil {
			return fmt.Errorf("extended attributes: %w", err)
		}
	}
	return r.Walk(func(path string, f *File) error {
		err := ctx.Err()
		if err != nil {
			return err
		}
		if err = f.check(); err == nil {
			err = file(f)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

// checkExports looks whether the table by which NFS finds inodes names inodes.
func (r *Reader) checkExports() error {
	if r.super.ExportTable == noTable {
		return nil
	}
	places, err := r.tableIndex(r.super.ExportTable, int64(r.super.Inodes), 8)
	if err != nil {
		return err
	}
	for i := range int64(r.super.Inodes) {
		b, err := r.tableEntry(places, i, 8)
		if err != nil {
			return err
		}
		if ref := binary.LittleEndian.Uint64(b); int64(ref>>16) >= r.inodes.end-r.inodes.start {
			return formatError("inode %d at %#x, outside of the table", i+1, ref)
		}
	}
	return nil
}

// check looks at what an inode refers to.
func (f *File) check() error {
	if f.Number == 0 || f.Number > f.r.super.Inodes {
		return formatError("inode number %d of %d", f.Number, f.r.super.Inodes)
	}
	if f.xattr != noXattrs && int64(f.xattr) >= f.r.xattrs.count {
		return formatError("extended attributes %d of %d", f.xattr, f.r.xattrs.count)
	}
	if f.Type != Regular {
		return nil
	}
	_, err := f.blockList()
	return err
}

// dataCheck decompresses what files refer to.
type dataCheck struct {
	ctx  context.Context
	work *errgroup.Group
	done map[checkedBlock]bool
}

// checkedBlock is a block that was decompressed to a length.
type checkedBlock struct {
	place int64
	word  uint32
	size  int
}

// file has the parts of a file decompressed that were not yet.
func (d *dataCheck) file(f *File) error {
	if f.Type != Regular {
		return nil
	}
	l, err := f.blockList()
	if err != nil {
		return err
	}
	for i := range f.contents.count {
		place, word, err := l.block(i)
		if err != nil {
			return err
		}
		key := checkedBlock{place, word, f.partSize(i)}
		if word&blockMask == 0 || d.done[key] {
			continue
		}
		if err := d.ctx.Err(); err != nil {
			return err
		}
		d.done[key] = true
		d.start(func() error { return f.r.checkBlock(key) })
	}
	if f.contents.tail > 0 {
		d.start(func() error { _, err := f.tail(); return err })
	}
	return nil
}

func (d *dataCheck) start(check func() error) {
	d.work.Go(func() error {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		return check()
	})
}

// checkBlock decompresses a block.
func (r *Reader) checkBlock(key checkedBlock) error {
	b := r.buffer(key.size)
	defer r.buffers.Put(b)
	n, err := r.unpack((*b)[:key.size], key.place, key.word)
	if err == nil && n != key.size {
		return formatError("block at %d has %d bytes and should have %d", key.place, n, key.size)
	}
	return err
}
