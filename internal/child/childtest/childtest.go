// Package childtest holds programs at a moment that their output tells, for tests that then kill or signal them there.
package childtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// maxLine bounds a line that a program writes.
const maxLine = 1 << 20

// Start starts cmd, with a pipe that holds one write as *stream, which is &cmd.Stdout or &cmd.Stderr. Who has been given the n-th write
// knows that the program is not beyond its next one, however fast it is and however slow the reader: it waits in there until the reader
// asks for more. A line is a write, as a rule; of more than 4096 bytes each 4096 are one.
func Start(t testing.TB, cmd *exec.Cmd, stream *io.Writer) *bufio.Scanner {
	t.Helper()
	r, w, err := narrowPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	held, copied, err := narrowPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close(); copied.Close() })
	*stream = w
	err = cmd.Start()
	w.Close() // the program has its own
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(&holder{from: r, held: held, copied: copied})
	lines.Buffer(nil, maxLine)
	return lines
}

// narrowPipe makes a pipe of one page. In packet mode (O_DIRECT, pipe(2)) each write takes pages of its own, and a reader gets one write
// at a time.
func narrowPipe() (r, w *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		return nil, nil, fmt.Errorf("make a pipe in packet mode: %w", err)
	}
	r, w = os.NewFile(uintptr(ends[0]), "read end"), os.NewFile(uintptr(ends[1]), "write end")
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		r.Close()
		w.Close()
		return nil, nil, fmt.Errorf("make a pipe of one page: %w", err)
	}
	return r, w, nil
}

// holder reads a narrow pipe, and leaves each write in there until the next is asked for: what it gives is a copy (tee(2)).
type holder struct {
	from         *os.File
	held, copied *os.File // both ends of the pipe for the copy
	full         bool     // whether what was copied last is still in from
	rest         []byte   // of the copy, what nobody has taken yet
}

// packet is what a write to a pipe in packet mode holds at most, PIPE_BUF.
const packet = 4096

func (h *holder) Read(p []byte) (int, error) {
	if len(h.rest) == 0 {
		if err := h.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, h.rest)
	h.rest = h.rest[n:]
	return n, nil
}

// next lets the program go on, and waits for its next write.
func (h *holder) next() error {
	var buf [packet]byte
	if h.full {
		if _, err := h.from.Read(buf[:]); err != nil {
			return err
		}
		h.full = false
	}
	n, err := unix.Tee(int(h.from.Fd()), int(h.copied.Fd()), packet, 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Tee(int(h.from.Fd()), int(h.copied.Fd()), packet, 0)
	}
	if err != nil {
		return os.NewSyscallError("tee", err)
	}
	if n == 0 {
		return io.EOF
	}
	h.full = true
	h.rest = make([]byte, packet)
	got, err := h.held.Read(h.rest)
	h.rest = h.rest[:got]
	return err
}
