package store

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// A follower gets the bytes as they arrive, and the end only with the commit.
func TestFollow(t *testing.T) {
	s := openTemp(t)
	data := bytes.Repeat([]byte("0123456789"), 1000)
	half := len(data) / 2
	p, err := s.OpenPartial(DigestOf(data))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write(data[:half]); err != nil {
		t.Fatal(err)
	}
	p.Close() // the process ends here
	if p, err = s.OpenPartial(DigestOf(data)); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	type end struct {
		data []byte
		err  error
	}
	follow := func() chan end {
		r, err := p.Follow()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan end, 1)
		go func() {
			defer r.Close()
			got, err := io.ReadAll(iotest.HalfReader(r))
			done <- end{got, err}
		}()
		return done
	}
	first, second := follow(), follow()
	for _, b := range data[half:] {
		if _, err := p.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case e := <-first:
		t.Fatalf("the end came before the commit: %d bytes, %v", len(e.data), e.err)
	default:
	}
	if err := p.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, done := range []chan end{first, second} {
		if e := <-done; e.err != nil || !bytes.Equal(e.data, data) {
			t.Errorf("%d bytes, %v", len(e.data), e.err)
		}
	}
}

// Whatever goes wrong with a download, who follows it gets an error, and never the end.
func TestFollowWhatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(p *Partial) error
		want error
	}{
		"closed":         {(*Partial).Close, errAbandoned},
		"reset":          {(*Partial).Reset, errWrongBytes},
		"the wrong hash": {func(p *Partial) error { _ = p.Commit(); return nil }, errWrongBytes},
		"reset and right": {func(p *Partial) error {
			err := p.Reset()
			_, writeErr := p.Write([]byte("right"))
			return errors.Join(err, writeErr, p.Commit())
		}, errWrongBytes},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTemp(t)
			p, err := s.OpenPartial(DigestOf([]byte("right")))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r, err := p.Follow()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := p.Write([]byte("wrong")); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(io.LimitReader(r, 5)); err != nil || string(got) != "wrong" {
				t.Errorf("%q, %v", got, err)
			}
			if err := tc.do(p); err != nil {
				t.Fatal(err)
			}
			if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, tc.want) {
				t.Errorf("read %d bytes, %v, want %v", n, err, tc.want)
			}
		})
	}
}

func openTemp(t *testing.T) *Store {
	t.Helper()
	t.Setenv("SCONCE_SHARED_STORES", "")
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
