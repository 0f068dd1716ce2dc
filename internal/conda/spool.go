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

// Write adds to the end.
func (s *spool) Write(p []byte) (int, error) {
	if s.size+int64(len(p)) > s.limit {
		return 0, fmt.Errorf("the package unpacks to more than %d bytes", s.limit)
	}
	n, err := s.w.Write(p)
	s.size += int64(n)
	return n, err
}

func (s *spool) flush() error { return s.w.Flush() }

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
