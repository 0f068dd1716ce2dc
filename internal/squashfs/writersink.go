package squashfs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes of what is written or copied at once, in bytes.
const (
	sinkBuffer  = 1 << 20
	copyAtOnce  = 32 << 20 // with one system call
	copyThrough = 64 << 10 // shorter copies go through the buffer, together with what is around them
)

// A sink is the end of the file that is written: neighbouring writes are joined, and so are neighbouring copies.
type sink struct {
	f    *os.File
	base int64
	pos  int64 // from base: where the next byte goes

	buf []byte // not yet written, ends where the copy begins

	from     io.ReaderAt // of the copy that is not yet made, which ends at pos
	fromAt   int64
	fromLen  int64    // 0: there is none
	scratch  bool     // see Options
	noKernel bool     // the kernel does not copy between these files
	copiers  *copiers // nil: where it is written is where it is copied
}

func newSink(f *os.File, base, pos int64, o Options) *sink {
	s := &sink{f: f, base: base, pos: pos, scratch: o.Scratch, buf: make([]byte, 0, sinkBuffer)}
	if o.Workers >= copiersFrom {
		s.copiers = newCopiers(s.writeAt)
	}
	return s
}

// write appends p.
func (s *sink) write(p []byte) error {
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.makeRoom(len(p)); err != nil {
		return err
	}
	if len(p) > cap(s.buf) {
		if err := s.writeAt(p, s.pos); err != nil {
			return err
		}
	} else {
		s.buf = append(s.buf, p...)
	}
	s.pos += int64(len(p))
	return nil
}

// copy appends n bytes that stand at offset at of from.
func (s *sink) copy(from io.ReaderAt, at, n int64) error {
	if s.fromLen == 0 || s.from != from || s.fromAt+s.fromLen != at {
		if err := s.settle(); err != nil {
			return err
		}
		s.from, s.fromAt = from, at
	}
	s.fromLen += n
	s.pos += n
	if s.fromLen < copyAtOnce {
		return nil
	}
	return s.settle() // while the caller looks for more
}

// rewind goes back to where the sink was before some writes, and drops them.
func (s *sink) rewind(to int64) {
	s.buf = s.buf[:max(0, int64(len(s.buf))-(s.pos-to))]
	s.pos = to
}

// flush writes what was joined, and waits for all copies.
func (s *sink) flush() error {
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.makeRoom(cap(s.buf)); err != nil {
		return err
	}
	return s.copiers.wait()
}

// makeRoom writes what was joined unless n more bytes fit behind it. No copy is waiting.
func (s *sink) makeRoom(n int) error {
	if len(s.buf) == 0 || len(s.buf)+n <= cap(s.buf) {
		return nil
	}
	err := s.writeAt(s.buf, s.pos-int64(len(s.buf)))
	s.buf = s.buf[:0]
	return err
}

func (s *sink) writeAt(p []byte, at int64) error {
	if _, err := s.f.WriteAt(p, s.base+at); err != nil {
		return fmt.Errorf("write file system: %w", err)
	}
	s.startWriteback(at, int64(len(p)))
	return nil
}

// startWriteback lets the disk begin with what was written, without waiting for it: the caller will sync the file in the
// end, and then there is little left to wait for.
func (s *sink) startWriteback(at, n int64) {
	if s.scratch {
		return
	}
	_ = unix.SyncFileRange(int(s.f.Fd()), s.base+at, n, unix.SYNC_FILE_RANGE_WRITE) // only a hint
}

// settle makes the copy that waits, or has it made.
func (s *sink) settle() error {
	n := s.fromLen
	if n == 0 {
		return nil
	}
	s.fromLen = 0
	s.pos -= n // to the end of the buffer
	if n < copyThrough {
		return s.copyBuffered(n)
	}
	if err := s.makeRoom(cap(s.buf)); err != nil {
		return err
	}
	if s.copiers != nil {
		s.copiers.copy(s.from, s.fromAt, s.pos, n)
		s.pos += n
		return nil
	}
	done, err := s.copyInKernel(n)
	if err != nil {
		return err
	}
	s.pos += done
	s.fromAt += done
	for n -= done; n > 0; {
		k := min(n, sinkBuffer)
		if err := s.copyBuffered(k); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// copyBuffered appends n bytes, which fit into the buffer, from where the copy stands.
func (s *sink) copyBuffered(n int64) error {
	if err := s.makeRoom(int(n)); err != nil {
		return err
	}
	p := s.buf[len(s.buf) : len(s.buf)+int(n)]
	if err := readBlocks(s.from, p, s.fromAt); err != nil {
		return err
	}
	s.buf = s.buf[:len(s.buf)+int(n)]
	s.pos += n
	s.fromAt += n
	return nil
}

// readBlocks fills p with what stands at an offset of a pack.
func readBlocks(from io.ReaderAt, p []byte, at int64) error {
	if k, err := from.ReadAt(p, at); k < len(p) {
		return packError("read blocks: %w", atEnd(err))
	}
	return nil
}

// copyInKernel copies up to n bytes without taking them through this process, which on some file systems means that both
// files share them. It returns how much it copied, which is less than n where the kernel does not do it.
func (s *sink) copyInKernel(n int64) (done int64, err error) {
	from, ok := s.from.(*os.File)
	for ok && done < n && !s.noKernel {
		readAt, writeAt := s.fromAt+done, s.base+s.pos+done
		k, err := unix.CopyFileRange(int(from.Fd()), &readAt, int(s.f.Fd()), &writeAt, int(min(n-done, copyAtOnce)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
			return done, fmt.Errorf("write file system: %w", err)
		case err != nil: // another file system, an old kernel; what else it may be, reading and writing will tell
			s.noKernel = true
		case k == 0: // the file is too short, as reading will tell
			return done, nil
		default:
			s.startWriteback(s.pos+done, int64(k))
			done += int64(k)
		}
	}
	return done, nil
}

// atEnd turns the end of a file into an error.
func atEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
