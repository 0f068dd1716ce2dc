package store

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/progress"
)

// noteSink passes notes on, and drops what nobody takes.
type noteSink chan string

func (s noteSink) Emit(e progress.Event) {
	if e.Kind == progress.Note {
		select {
		case s <- e.Text:
		default:
		}
	}
}

// Who waits for another process's lock hears who has it; the lock is had when that process is gone, whatever it has written.
func TestWaitingIsTold(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := s.path(lockBucket, lockFileName("thing"))
	claim := `{"pid":1234,"host":"node7.of.another.cluster","command":"sconce build","does":"makes torch"}` + "\n"
	if err := os.WriteFile(path, []byte(claim), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	notes := make(noteSink, 1)
	ctx, cancel := context.WithTimeout(progress.With(t.Context(), notes), 10*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		l, err := s.Lock(ctx, "thing", "makes torch")
		if err == nil {
			if h, known := filelock.ReadHolder(path); !known || !h.Self() || h.Does != "makes torch" {
				err = errors.New("the lock does not say who has it")
			}
		}
		done <- errors.Join(err, l.Unlock())
	}()
	select {
	case note := <-notes:
		if want := "waiting for process 1234 on node7.of.another.cluster, which makes torch (sconce build); "; !strings.HasPrefix(note, want) {
			t.Errorf("note %q, want %q", note, want)
		}
	case err := <-done:
		t.Fatalf("the lock was had twice, or nothing was said: %v", err)
	}
	other.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 0 {
		t.Errorf("after the lock was given up its file says who had it: %v, %v", st, err)
	}
}
