package ctxio

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := Reader(ctx, strings.NewReader("ab"))
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	why := errors.New("enough")
	cancel(why)
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, why) {
		t.Errorf("%d, %v", n, err)
	}
}

// The end of a reader and its being cut stay different, whatever pieces it comes in.
func TestFill(t *testing.T) {
	for _, test := range []struct {
		r    io.Reader
		want string
		err  error
	}{
		{strings.NewReader("abcdef"), "abcd", nil},
		{strings.NewReader("ab"), "ab", io.EOF},
		{strings.NewReader(""), "", io.EOF},
		{io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(io.ErrUnexpectedEOF)), "ab", io.ErrUnexpectedEOF},
	} {
		p := make([]byte, 4)
		n, err := Fill(iotest.OneByteReader(test.r), p)
		if string(p[:n]) != test.want || !errors.Is(err, test.err) || test.err == nil && err != nil {
			t.Errorf("%q, %v; want %q, %v", p[:n], err, test.want, test.err)
		}
	}
}
