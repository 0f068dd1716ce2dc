package conda

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
)

// spool keeps the files of one package until they are written in the order of the layer: a temporary file, so that memory does not
// depend on their size. [spool.keep] may be called from many goroutines, once [spool.flush] was.
type spool struct {
	file  *os.File
	w     *bufio.Writer
	limit int64 // bytes that it may come to hold

	mu   sync.Mutex
	size int64
}

func newSpool(dir string, limit int64) (*spool, error) {
	f, err := os.CreateTemp(dir, "files-*")
	if err != nil {
		return nil, fmt.Errorf("unpack a conda package: %w", err)
	}
	return &spool{file: f, w: bufio.NewWriterSize(f, 256<<10), limit: limit}, nil
}

func (s *spool) Close() error { return s.file.Close() }

// spoolError is a trouble of the store's disk, which is no fault of the package.
type spoolError struct{ error }

func (e spoolError) Unwrap() error { return e.error }

// spoolWriter marks the errors of a temporary file.
type spoolWriter struct{ io.Writer }

func (w spoolWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		return n, spoolError{err}
	}
	return n, nil
}

// Write adds to the end.
func (s *spool) Write(p []byte) (int, error) {
	if s.size+int64(len(p)) > s.limit {
		return 0, fmt.Errorf("the package unpacks to more than %d bytes", s.limit)
	}
	n, err := spoolWriter{s.w}.Write(p)
	s.size += int64(n)
	return n, err
}

func (s *spool) flush() error {
	if err := s.w.Flush(); err != nil {
		return fmt.Errorf("unpack a conda package: %w", err)
	}
	return nil
}

// keep adds content and returns where it is.
func (s *spool) keep(data []byte) (offset int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = s.size
	_, err = s.file.WriteAt(data, offset)
	s.size += int64(len(data))
	return offset, err
}

func (s *spool) open(offset, size int64) *io.SectionReader {
	return io.NewSectionReader(s.file, offset, size)
}
