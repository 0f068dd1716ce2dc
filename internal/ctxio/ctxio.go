// Package ctxio has what package io lacks: copies that can be stopped, reads of no more than there may be, and reads that tell an end from
// one that came too early.
package ctxio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Reader returns a reader of r that fails with the context's cause once ctx has ended. A read that is under way is not
// broken off.
func Reader(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// Fill reads until p is full or r ends. Unlike [io.ReadFull] it returns r's own error: io.EOF where r has ended, and what r says where it was
// cut, so that the one cannot be taken for the other.
func Fill(r io.Reader, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := r.Read(p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// ReadAtMost reads all of r. An r of more than limit bytes is an error that says so of "it".
func ReadAtMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, tooLargeError(limit)
	}
	return data, err
}

// ReadFile reads a file of at most limit bytes. Errors name it, as those of package os do.
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return readAll(f, limit)
}

// ReadRegular is ReadFile of a file that somebody else may have put there. One that is not regular, such as a pipe or a device, is an error.
func ReadRegular(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have nobody at its other end
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: name, Err: errors.New("it is not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	defer f.Close()
	data, err := ReadAtMost(f, limit)
	if large := tooLargeError(0); errors.As(err, &large) {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: large}
	}
	return data, err
}

// tooLargeError is the error of who has more bytes than it says.
type tooLargeError int64

// Error says the limit in the units in which it was thought of.
func (n tooLargeError) Error() string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("it is larger than %d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("it is larger than %d KiB", n>>10)
	}
	return fmt.Sprintf("it is larger than %d bytes", int64(n))
}
