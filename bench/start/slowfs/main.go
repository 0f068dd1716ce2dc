// Command slowfs shows one file as DIR/image, in a file system that answers each read after a while, and counts them: what a disk behind a
// network is to who mounts an image from it.
//
//	slowfs -wait 1ms FILE DIR
//
// On SIGUSR1 it prints what was read since it was asked last. It ends when DIR is unmounted.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
)

func main() {
	wait := flag.Duration("wait", time.Millisecond, "how long each read takes")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: slowfs [-wait TIME] FILE DIR")
		os.Exit(2)
	}
	if err := serve(flag.Arg(0), flag.Arg(1), *wait); err != nil {
		fmt.Fprintln(os.Stderr, "slowfs:", err)
		os.Exit(1)
	}
}

func serve(name, dir string, wait time.Duration) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	fd, err := fuse.Open()
	if err != nil {
		return err
	}
	if err := fuse.Mount(fd, dir); err != nil {
		return err
	}
	file := &slowFile{f: f, size: st.Size(), wait: wait}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGUSR1)
	go func() {
		for range asked {
			file.report()
		}
	}()
	return fuse.Serve(os.NewFile(uintptr(fd), fuse.Device), rootDir{noFile{}, file}, fuse.Options{})
}

// noFile is what neither of the two files can do.
type noFile struct{}

func (noFile) Lookup(string) (fuse.Node, error)   { return nil, unix.ENOTDIR }
func (noFile) ReadDir() ([]fuse.Entry, error)     { return nil, unix.ENOTDIR }
func (noFile) Readlink() (string, error)          { return "", unix.EINVAL }
func (noFile) Content() (io.ReaderAt, error)      { return nil, unix.EISDIR }
func (noFile) Xattrs() (map[string]string, error) { return nil, nil }

type rootDir struct {
	noFile
	file *slowFile
}

func (r rootDir) Attr() fuse.Attr { return fuse.Attr{Ino: 1, Mode: unix.S_IFDIR | 0o755, Links: 2} }

func (r rootDir) Lookup(name string) (fuse.Node, error) {
	if name != "image" {
		return nil, fs.ErrNotExist
	}
	return r.file, nil
}

func (r rootDir) ReadDir() ([]fuse.Entry, error) {
	return []fuse.Entry{{Name: "image", Ino: 2, Mode: unix.S_IFREG, Node: func() (fuse.Node, error) { return r.file, nil }}}, nil
}

// slowFile is a file whose reads take a while.
type slowFile struct {
	noFile
	f    *os.File
	size int64
	wait time.Duration

	mu    sync.Mutex
	end   int64 // of the last read
	reads int
	bytes int64
	seeks int // reads that do not begin where the one before ended
}

func (s *slowFile) Attr() fuse.Attr {
	return fuse.Attr{Ino: 2, Mode: unix.S_IFREG | 0o444, Links: 1, Size: s.size}
}

func (s *slowFile) Content() (io.ReaderAt, error) { return s, nil }

// ReadAt reads after the time is over.
func (s *slowFile) ReadAt(p []byte, off int64) (int, error) {
	s.count(off, int64(len(p)))
	time.Sleep(s.wait)
	return s.f.ReadAt(p, off)
}

func (s *slowFile) count(off, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off != s.end {
		s.seeks++
	}
	s.reads, s.bytes, s.end = s.reads+1, s.bytes+n, off+n
}

func (s *slowFile) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("%d reads, %d MB, %d seeks\n", s.reads, s.bytes/1_000_000, s.seeks)
	s.reads, s.bytes, s.seeks = 0, 0, 0
}
