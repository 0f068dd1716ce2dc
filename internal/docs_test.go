package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// pagesOf returns the text of every Markdown page of the repository, by its path from the top.
func pagesOf(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, place := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "examples", "bench", "test"} {
		err := filepath.WalkDir(filepath.Join("..", place), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
				if d != nil && d.IsDir() && (d.Name() == "out" || d.Name() == "testdata") {
					return fs.SkipDir
				}
				return err
			}
			text, err := os.ReadFile(path)
			pages[filepath.Clean(path)] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

var (
	fencePattern   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codePattern    = regexp.MustCompile("`[^`\n]*`")
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingPattern = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
)

// anchorsOf returns the anchors that a page's headings get on GitHub and GitLab: small letters, without punctuation, "-" for blanks.
func anchorsOf(page string) map[string]bool {
	anchors := map[string]bool{}
	for _, m := range headingPattern.FindAllStringSubmatch(fencePattern.ReplaceAllString(page, ""), -1) {
		anchors[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return anchors
}

// TestLinks follows every relative link of the documentation to its file and heading.
func TestLinks(t *testing.T) {
	pages := pagesOf(t)
	for name, page := range pages {
		text := codePattern.ReplaceAllString(fencePattern.ReplaceAllString(page, ""), "")
		for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
			link := m[1]
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(link, "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, link)
				continue
			}
			if other, ok := pages[target]; ok && anchor != "" && !anchorsOf(other)[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", name, link, target)
			}
		}
	}
}

// testName matches the name of a test in docs/guide/strangers.md: `DIRECTORY.TestName`, or `cmd/sconce:SCRIPT` for a script.
var testName = regexp.MustCompile("`((?:internal|test)[a-z/]*)\\.(Test\\w+)`|`cmd/sconce:([a-z]+)`")

// TestStrangersPage holds the tables of docs/guide/strangers.md against the tests that they name: a row whose test is gone promises
// something that nobody tries.
func TestStrangersPage(t *testing.T) {
	page, err := os.ReadFile("../docs/guide/strangers.md")
	if err != nil {
		t.Fatal(err)
	}
	names := testName.FindAllStringSubmatch(string(page), -1)
	if len(names) < 40 {
		t.Fatalf("the page names only %d tests", len(names))
	}
	for _, m := range names {
		if m[3] != "" {
			if _, err := os.Stat(filepath.Join("../cmd/sconce/testdata/script", m[3]+".txtar")); err != nil {
				t.Errorf("there is no script %s", m[3])
			}
			continue
		}
		if !declares(t, filepath.Join("..", m[1]), m[2]) {
			t.Errorf("%s has no test %s", m[1], m[2])
		}
	}
}

// declares reports whether a test file of a directory has a function of this name.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
