package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What is written replaces what was there, and nothing else is left in the directory.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.txt")
	for _, text := range []string{"one\n", "two\n"} {
		if err := Write(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(name); err != nil || string(data) != text {
			t.Errorf("the file holds %q, %v, want %q", data, err, text)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file's mode is %v, %v, want 0600", info.Mode(), err)
	}
	wantNames(t, dir, "a.txt")
}

// A reader who has the old file open reads it to its end.
func TestReaders(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.txt")
	if err := Write(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(name, []byte("newer"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, err := f.Read(b); err != nil || string(b[:n]) != "old" {
		t.Errorf("the reader of the old file reads %q, %v", b[:n], err)
	}
}

// What fails, in the middle or at the end, leaves the old file and no other.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.txt")
	if err := Write(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	err := Fill(name, 0o644, func(f *os.File) error {
		_, err := f.WriteString("half of the n")
		return errors.Join(err, failed)
	})
	if !errors.Is(err, failed) {
		t.Errorf("error %v, want %v", err, failed)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "old" {
		t.Errorf("the file holds %q, %v, want what it held", data, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "dir", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "dir"), nil, 0o644); err == nil {
		t.Error("a file has replaced a directory")
	}
	if err := Write(filepath.Join(dir, "none", "a.txt"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: error %v, want %v", err, fs.ErrNotExist)
	}
	wantNames(t, dir, "a.txt", "dir")
}

// On a disk without room the old file stays, and the error tells what is missing.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	dir := t.TempDir()
	err = Fill(filepath.Join(dir, "a.txt"), 0o644, func(*os.File) error {
		_, err := full.WriteString("x")
		return err
	})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want %v", err, unix.ENOSPC)
	}
	wantNames(t, dir)
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, want) {
		t.Errorf("the directory holds %q, want %q", names, want)
	}
}

// A pipe that a user names gets the text, and stays a pipe.
func TestReplaceWritesToAPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := Replace(name, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	if n, err := reader.Read(got); err != nil || string(got[:n]) != "text" {
		t.Errorf("the pipe gave %q, %v, want %q", got[:n], err, "text")
	}
	if info, err := os.Lstat(name); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("it is now %v, %v", info.Mode(), err)
	}
}
