package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// saidOnce are pieces of code that belong in one place, and the file that has them.
var saidOnce = []struct {
	what string
	code *regexp.Regexp
	in   string
}{
	{"the PATH where an environment sets none", regexp.MustCompile(`/usr/local/sbin:/usr/local/bin`), "searchpath/searchpath.go"},
	{"how a shell reads an apostrophe", regexp.MustCompile("\"'\", `'\\\\''`"), "quote/quote.go"},
	{"a kind of record", regexp.MustCompile(`store\.Kind(\(| = )"|store\.Kind = "`), "store/kinds.go"},
}

// What the packages share is spelt in one place, so that two of them cannot come to differ. Tests may say again what they expect.
func TestSaidOnce(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, o := range saidOnce {
			if found := o.code.Find(text); found != nil && path != o.in {
				t.Errorf("%s has %q: %s is in %s", path, found, o.what, o.in)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
