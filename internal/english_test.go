package internal_test

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/english.txt again, where numbers have fallen")

// calques are turns of phrase that a native reader has to read twice. docs/style.md has what to write instead.
var calques = regexp.MustCompile(`(?i)\b(?:(?:is|are|was|were) none|there is none|of which|but for|asked in vain|(?:is|are|was) told (?:with|which|what|as)|` +
	`stands? on|that is none|of several(?: of one \w+)?,? the|(?:is|are|was) no (?:such )?[a-z]+ (?:that|which))\b`)

const englishFile = "testdata/english.txt"

// TestEnglish counts calques in the string literals of the product, which are its messages and its help, and in its documentation.
// Numbers may fall, never rise: the list of a file shrinks with each text that is mended.
func TestEnglish(t *testing.T) {
	found := map[string]int{}
	pages := pagesOf(t)
	delete(pages, filepath.Join("..", "docs", "style.md")) // which lists them
	for name, page := range pages {
		if n := len(calques.FindAllString(codePattern.ReplaceAllString(fencePattern.ReplaceAllString(page, ""), ""), -1)); n > 0 {
			found[filepath.ToSlash(name)] = n
		}
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					if n := len(calques.FindAllString(text, -1)); n > 0 {
						found[filepath.ToSlash(path)] += n
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	allowed := readCounts(t)
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		rows = append(rows, fmt.Sprintf("%d %s\n", found[name], name))
		if found[name] > allowed[name] {
			t.Errorf("%s has %d turns of phrase of the list in docs/style.md, and %d are known: reword what you have added", name, found[name], allowed[name])
		}
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(englishFile, []byte(strings.Join(rows, "")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for name, n := range allowed {
		if found[name] < n {
			t.Errorf("%s has %d of %d known turns of phrase: run go test ./internal -run TestEnglish -update, so that it stays so", name, found[name], n)
		}
	}
}

func readCounts(t *testing.T) map[string]int {
	t.Helper()
	f, err := os.Open(englishFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	counts := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		number, name, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%s: %v", englishFile, err)
		}
		counts[name] = n
	}
	return counts
}
