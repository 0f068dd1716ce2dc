package fuse

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// answer appends the answer to a request to w.out, which has room for its header. Silent requests are answered by nothing.
func (w *worker) answer(r request) (silent bool, err error) {
	switch r.op {
	case opForget:
		w.table.forget(r.id, r.u64(0))
		return true, nil
	case opBatchForget:
		w.batchForget(r)
		return true, nil
	case opInterrupt: // nothing here takes long
		return true, nil
	case opInit:
		return false, w.init(r)
	case opStatfs:
		w.statfs()
		return false, nil
	case opDestroy, opRelease, opReleasedir:
		return false, nil
	case opSetattr, opSymlink, opMknod, opMkdir, opUnlink, opRmdir, opRename, opRename2, opLink, opWrite, opSetxattr,
		opRemovexattr, opCreate, opTmpfile, opFallocate:
		return false, unix.EROFS
	case opIoctl:
		return false, unix.ENOTTY
	}
	handle, known := handlers[r.op]
	if !known {
		return false, unix.ENOSYS // the kernel does without, and most often does not ask again
	}
	in := w.table.get(r.id)
	if in == nil {
		return false, unix.ESTALE
	}
	return false, handle(w, in, r)
}

// handlers are the requests about one file.
var handlers = map[uint32]func(*worker, *inode, request) error{
	opLookup:      (*worker).lookup,
	opGetattr:     (*worker).getattr,
	opReadlink:    (*worker).readlink,
	opOpen:        (*worker).open,
	opOpendir:     (*worker).opendir,
	opRead:        (*worker).read,
	opReaddir:     (*worker).readdir,
	opReaddirplus: (*worker).readdir,
	opGetxattr:    (*worker).getxattr,
	opListxattr:   (*worker).listxattr,
}

// errnoOf is what a program is told of an error, 0 of none.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, fs.ErrNotExist):
		return unix.ENOENT
	}
	return unix.EIO
}

// init agrees on the protocol. Struct fuse_init_in: major, minor, max_readahead, flags.
func (w *worker) init(r request) error {
	major, minor := r.u32(0), r.u32(4)
	if major > protoMajor { // the kernel tries again with what we speak
		w.u32(protoMajor, protoMinor)
		w.out = append(w.out, make([]byte, 56)...)
		return nil
	}
	if major < protoMajor || minor < protoMinMinor {
		return fmt.Errorf("the kernel speaks version %d.%d: %w", major, minor, unix.EPROTO)
	}
	flags := r.u32(12) & initWanted
	w.noOpen.Store(flags&initNoOpenSupport != 0)
	w.noOpendir.Store(flags&initNoOpendirSupport != 0)
	w.u32(protoMajor, min(minor, protoMinor), max(r.u32(8), maxRead), flags)
	w.u16(maxBackground, maxBackground*3/4)
	w.u32(maxWrite, 1) // and the granularity of times in nanoseconds
	w.u16(uint16(maxRead/unix.Getpagesize()), 0)
	w.out = append(w.out, make([]byte, 32)...)
	return nil
}

// batchForget reads struct fuse_batch_forget_in: a count, and so many pairs of number and count.
func (w *worker) batchForget(r request) {
	count := min(int(r.u32(0)), len(r.body)/16)
	for i := range count {
		w.table.forget(r.u64(8+16*i), r.u64(16+16*i))
	}
}

func (w *worker) statfs() {
	w.out = append(w.out, make([]byte, 40)...) // nothing is free, and what is used is not this file system's to tell
	w.u32(4096, maxName, 4096)
	w.out = append(w.out, make([]byte, 28)...)
}

func (w *worker) lookup(in *inode, r request) error {
	n, err := in.node.Lookup(r.name(0))
	if errors.Is(err, fs.ErrNotExist) {
		w.out = appendEntry(w.out, 0, Attr{}) // unlike ENOENT, this is kept
		return nil
	}
	if err != nil {
		return err
	}
	child, err := w.table.tell(n)
	if err != nil {
		return err
	}
	w.out = appendEntry(w.out, child.id, child.attr)
	return nil
}

// getattr answers with struct fuse_attr_out.
func (w *worker) getattr(in *inode, _ request) error {
	w.out = order.AppendUint64(w.out, forever)
	w.out = order.AppendUint64(w.out, 0)
	w.out = appendAttr(w.out, in.attr)
	return nil
}

func (w *worker) readlink(in *inode, _ request) error {
	target, err := in.node.Readlink()
	w.out = append(w.out, target...)
	return err
}

// open needs no state. A kernel that knows ENOSYS as the answer opens files without asking from then on.
func (w *worker) open(_ *inode, _ request) error {
	if w.noOpen.Load() {
		return unix.ENOSYS
	}
	w.out = order.AppendUint64(w.out, 0)
	w.u32(openKeepCache, 0)
	return nil
}

func (w *worker) opendir(_ *inode, _ request) error {
	if w.noOpendir.Load() {
		return unix.ENOSYS
	}
	w.out = order.AppendUint64(w.out, 0)
	w.u32(openKeepCache|openCacheDir, 0)
	return nil
}

// read reads struct fuse_read_in: file handle, offset, size.
func (w *worker) read(in *inode, r request) error {
	offset, size := r.u64(8), min(int(r.u32(16)), maxRead)
	if offset > math.MaxInt64 {
		return unix.EINVAL
	}
	content, err := w.reader(in)
	if err != nil {
		return err
	}
	head := len(w.out)
	w.out = slices.Grow(w.out, size)[:head+size]
	n, err := content.ReadAt(w.out[head:], int64(offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	w.out = w.out[:head+n]
	return nil
}

// readdir answers with as many names, from the offset on, as the kernel has room for. With readdirplus each name comes
// with the file behind it, as after a lookup. Offsets count names; . and .. are the first two.
func (w *worker) readdir(in *inode, r request) error {
	offset, room := r.u64(8), len(w.out)+min(int(r.u32(16)), maxRead)
	list, err := in.entries(offset == 0)
	if err != nil {
		return err
	}
	plus := r.op == opReaddirplus
	start := len(w.out)
	for i := offset; i < uint64(len(list))+2; i++ {
		e := entryAt(in, list, int(i))
		need := direntSize + len(e.Name) + padding(len(e.Name))
		if plus {
			need += entryOutSize
		}
		if len(w.out)+need > room {
			return nil
		}
		if plus {
			w.entryOf(e)
		}
		w.out = appendDirent(w.out, e.Name, e.Ino, i+1, e.Mode)
	}
	if len(w.out) == start {
		in.listed()
	}
	return nil
}

// entryAt returns name i of a directory. The number of the directory above is not known here; 2^32-1 says so to libc.
func entryAt(in *inode, list []Entry, i int) Entry {
	switch i {
	case 0:
		return Entry{Name: ".", Ino: in.attr.Ino, Mode: unix.S_IFDIR}
	case 1:
		return Entry{Name: "..", Ino: math.MaxUint32, Mode: unix.S_IFDIR}
	}
	return list[i-2]
}

// entryOf appends the file behind a name. One that cannot be read is left out: the kernel will look it up when needed,
// and hear the error then.
func (w *worker) entryOf(e Entry) {
	if e.Node != nil {
		if n, err := e.Node(); err == nil {
			if child, err := w.table.tell(n); err == nil {
				w.out = appendEntry(w.out, child.id, child.attr)
				return
			}
		}
	}
	w.out = append(w.out, make([]byte, entryOutSize)...)
}

// getxattr reads struct fuse_getxattr_in: the size of the reader's buffer, then the name from byte 8 on.
func (w *worker) getxattr(in *inode, r request) error {
	all, err := xattrs(in)
	if err != nil {
		return err
	}
	value, ok := all[r.name(8)]
	if !ok {
		return unix.ENODATA
	}
	return w.sized(value, r.u32(0))
}

func (w *worker) listxattr(in *inode, r request) error {
	all, err := xattrs(in)
	if err != nil {
		return err
	}
	var names strings.Builder
	for name := range all {
		names.WriteString(name)
		names.WriteByte(0)
	}
	return w.sized(names.String(), r.u32(0))
}

// xattrs returns a file's extended attributes. ENOSYS for a tree without any makes the kernel stop asking, which it would
// do for every program that is started.
func xattrs(in *inode) (map[string]string, error) {
	all, err := in.node.Xattrs()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, unix.ENOSYS
	}
	return all, err
}

// sized answers with a value if it fits in room, and with its size when room is 0.
func (w *worker) sized(value string, room uint32) error {
	switch {
	case room == 0:
		w.u32(uint32(len(value)), 0)
		return nil
	case uint64(len(value)) > uint64(room):
		return unix.ERANGE
	}
	w.out = append(w.out, value...)
	return nil
}
