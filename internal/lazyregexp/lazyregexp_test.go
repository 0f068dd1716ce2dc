package lazyregexp

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// An expression answers as package regexp does, and nothing is compiled before somebody asks.
func TestAsRegexp(t *testing.T) {
	const text, s = `(\w+)=(\d*)`, "a=1 b=22 c="
	lazy, plain := New(text), regexp.MustCompile(text)
	if lazy.String() != text || lazy.compiled != nil {
		t.Errorf("%s is compiled before it is asked", lazy)
	}
	if !lazy.MatchString(s) || lazy.MatchString("a") {
		t.Errorf("%s: what it matches", lazy)
	}
	if got, want := lazy.FindString(s), plain.FindString(s); got != want {
		t.Errorf("FindString: %q, want %q", got, want)
	}
	if got, want := lazy.FindStringSubmatch(s), plain.FindStringSubmatch(s); !slices.Equal(got, want) {
		t.Errorf("FindStringSubmatch: %q, want %q", got, want)
	}
	if got, want := lazy.FindSubmatch([]byte(s)), plain.FindSubmatch([]byte(s)); !slices.EqualFunc(got, want, slices.Equal[[]byte]) {
		t.Errorf("FindSubmatch: %q, want %q", got, want)
	}
	if got, want := lazy.FindAllStringSubmatch(s, 2), plain.FindAllStringSubmatch(s, 2); !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("FindAllStringSubmatch: %q, want %q", got, want)
	}
	if got, want := lazy.ReplaceAllString(s, "$2"), plain.ReplaceAllString(s, "$2"); got != want {
		t.Errorf("ReplaceAllString: %q, want %q", got, want)
	}
	if got, want := lazy.ReplaceAllStringFunc(s, strings.ToUpper), plain.ReplaceAllStringFunc(s, strings.ToUpper); got != want {
		t.Errorf("ReplaceAllStringFunc: %q, want %q", got, want)
	}
}

// Whoever asks first, all get the same.
func TestAskedByMany(t *testing.T) {
	r := New("a+")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if r.FindString("baab") != "aa" {
				t.Error("another answer")
			}
		})
	}
	all.Wait()
}

// A wrong expression panics where all are compiled, so that the test of the program finds it.
func TestCompileAll(t *testing.T) {
	before := all
	defer func() {
		all = before
		if recover() == nil {
			t.Error("a wrong expression is not found")
		}
	}()
	New("(")
	CompileAll()
}
