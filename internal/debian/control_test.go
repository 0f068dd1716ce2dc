package debian

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReader(t *testing.T) {
	const text = "\n\n# a comment\nPackage: a\nDepends: b,\n c\nDescription: one\n two\n .\n\tthree \n\n \nPackage:b\r\n"
	r := NewReader(strings.NewReader(text))
	want := []Paragraph{
		{{"Package", "a"}, {"Depends", "b,\n c"}, {"Description", "one\n two\n .\n\tthree"}},
		{{"Package", "b"}},
	}
	var got []Paragraph
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v := got[0].Get("dePends"); v != "b,\n c" {
		t.Errorf("Depends is %q", v)
	}
	for text, why := range map[string]string{
		" x\n": "goes on with a field", "no field\n": "is no field", "-a: b\n": "is no field", "a: 1\nA: 2\n": "twice", "a: \x00\n": "NUL",
		"a: " + strings.Repeat("x", maxLine+1): "longer than", "a:\n" + strings.Repeat(" "+strings.Repeat("x", maxLine/2)+"\n", 9): "paragraph is longer",
	} {
		if _, err := NewReader(strings.NewReader(text)).Next(); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.20q: %v, want %q", text, err, why)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add("Package: a\nDepends: b,\n c\n\nX: y\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := NewReader(strings.NewReader(text))
		for {
			p, err := r.Next()
			if err != nil {
				return
			}
			again, err := NewReader(strings.NewReader(p.String())).Next()
			if err != nil || !slices.Equal(p, again) {
				t.Fatalf("%q is written as %q, which is read as %q (%v)", p, p.String(), again, err)
			}
		}
	})
}
