package fuse

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// server answers the requests of one mount.
type server struct {
	dev    *os.File
	raw    syscall.RawConn
	table  *table
	report func(error)

	noOpen, noOpendir atomic.Bool // the kernel knows ENOSYS as an answer
}

// worker answers one request at a time.
type worker struct {
	*server
	in, out []byte
	fd      func(uintptr) // writes out, and leaves what came of it in err
	err     error
}

// Bounds on the number of workers: enough to have many reads of a slow file under way.
const (
	minWorkers = 16
	maxWorkers = 64
)

// Serve answers the kernel's requests about a tree until it is unmounted or dev is closed, and then closes dev. dev is an
// open /dev/fuse in non-blocking mode, as [Open] makes it. A dev that is closed takes the mount with it: whatever waits
// for an answer gets ECONNABORTED or ENOTCONN.
func Serve(dev *os.File, root Node, o Options) error {
	defer dev.Close()
	raw, err := dev.SyscallConn()
	if err != nil {
		return fmt.Errorf("serve files: %w", err)
	}
	s := &server{dev: dev, raw: raw, table: newTable(root, o.Owner), report: o.Report}
	if s.report == nil {
		s.report = func(error) {}
	}
	var g errgroup.Group
	for range min(max(minWorkers, 2*runtime.GOMAXPROCS(0)), maxWorkers) {
		g.Go(func() error {
			err := s.work()
			if err != nil {
				dev.Close() // the others must not wait for what will not come
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("serve files: %w", err)
	}
	return nil
}

// work takes requests from the kernel until there are no more.
func (s *server) work() error {
	w := &worker{server: s, in: make([]byte, inSize)}
	w.fd = func(fd uintptr) { _, w.err = unix.Write(int(fd), w.out) }
	for {
		n, err := s.dev.Read(w.in)
		switch {
		case errors.Is(err, os.ErrClosed), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ECONNABORTED):
			return nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // the request was taken back
			continue
		case err != nil && s.unmounted():
			return nil
		case err != nil:
			return err
		}
		r, ok := parseRequest(w.in[:n])
		if !ok {
			return fmt.Errorf("a request of %d bytes: %w", n, unix.EPROTO)
		}
		w.handle(r)
	}
}

// unmounted asks the kernel itself: the runtime's poller calls a device whose mount is gone not pollable.
func (s *server) unmounted() bool {
	err := error(unix.ENODEV)
	_ = s.raw.Control(func(fd uintptr) {
		_, err = unix.Read(int(fd), make([]byte, inSize))
	})
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNABORTED)
}

// handle answers a request: struct fuse_out_header (length, error, number) and what the kind of request asks for.
func (w *worker) handle(r request) {
	w.out = slices.Grow(w.out[:0], outHeaderSize)[:outHeaderSize]
	silent, err := w.answer(r)
	if silent {
		return
	}
	errno := errnoOf(err)
	if !w.send(r.unique, errno) {
		w.send(r.unique, unix.EIO) // without an answer the program would wait forever
	}
	if errno == unix.EIO {
		w.report(err)
	}
}

// send sends what is in out, or the error instead. A request that nobody waits for any more is no failure.
func (w *worker) send(unique uint64, errno syscall.Errno) bool {
	if errno != 0 {
		w.out = w.out[:outHeaderSize]
	}
	order.PutUint32(w.out, uint32(len(w.out)))
	order.PutUint32(w.out[4:], -uint32(errno))
	order.PutUint64(w.out[8:], unique)
	// Through Control, unlike dev.Write, several workers can copy their answers to the kernel at the same time.
	if err := w.raw.Control(w.fd); err != nil {
		return true // closed
	}
	return w.err == nil || errors.Is(w.err, unix.ENOENT) || errors.Is(w.err, unix.ENODEV) || errors.Is(w.err, unix.ECONNABORTED)
}

func (w *worker) u32(values ...uint32) {
	for _, v := range values {
		w.out = order.AppendUint32(w.out, v)
	}
}

func (w *worker) u16(values ...uint16) {
	for _, v := range values {
		w.out = order.AppendUint16(w.out, v)
	}
}
