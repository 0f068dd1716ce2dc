package build

import (
	"reflect"
	"testing"

	"sconce.dev/sconce/internal/quote"
)

// What scripts set is kept when it is the same for every user; a shell's own variables are not; what is taken away is empty.
func TestDifference(t *testing.T) {
	before := environment{"PATH=/bin", "CONDA_PREFIX=/opt/conda", "GONE=1"}
	a := map[string]string{"PATH": "/x:/bin", "CONDA_PREFIX": "/opt/conda", "CC": "gcc", "HOME": "/home/a", "CACHE": "/home/a/cache", "SHLVL": "1", "EMPTY": ""}
	b := map[string]string{"PATH": "/x:/bin", "CONDA_PREFIX": "/opt/conda", "CC": "gcc", "HOME": "/home/b", "CACHE": "/home/b/cache", "SHLVL": "1", "EMPTY": ""}
	vars, personal := difference(before, [2]map[string]string{a, b})
	if want := []string{"CC=gcc", "EMPTY=", "GONE=", "PATH=/x:/bin"}; !reflect.DeepEqual(vars, want) {
		t.Errorf("got %q, want %q", vars, want)
	}
	if want := []string{"CACHE"}; !reflect.DeepEqual(personal, want) {
		t.Errorf("that depend on the user: got %q, want %q", personal, want)
	}
}

// A link script's name and variables are words, whatever is in them.
func TestQuote(t *testing.T) {
	if got, want := quote.Single(`it's $x`), `'it'\''s $x'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
