package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// mayLook are functions of tests that look for a program themselves, and leave the test out without it.
var mayLook = map[string]string{
	"export/uenv_test.go TestUenvJudged":      "uenv is in no distribution, and mounts as root alone",
	"fatbin/judge_test.go cudaTool":           "CUDA's own tools are in no distribution",
	"slim/judge_test.go TestAgainstCuobjdump": "likewise",
	"slurmtest/judges.go prefixOf":            "what runs containers on clusters is in no Debian",
	"../test/judges_test.go judgedBy":         "likewise",
}

// Where make test has installed what tests need, none is left out for want of it: whatever can be installed goes through tooltest, and
// every other reason is given in words. What a short run leaves out is told, so that it can be run after it.
func TestSkips(t *testing.T) {
	used := map[string]bool{}
	for _, root := range []string{".", "../test", "../cmd", "../bench"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasPrefix(path, "tooltest/") || path == "skips_test.go" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.Contains(string(text), "SCONCE_REQUIRE_TOOLS") {
				t.Errorf("%s reads SCONCE_REQUIRE_TOOLS, which is for tooltest alone", path)
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					judgeSkips(t, path+" "+f.Name.Name, f, used)
					if !strings.HasPrefix(path, "../test/") { // which a short run leaves out as a whole
						judgeShort(t, path+" "+f.Name.Name, f)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range mayLook {
		if !used[name] {
			t.Errorf("%s is allowed to look for a program, and does not", name)
		}
	}
}

// twoWords is what the least of reasons has.
var twoWords = regexp.MustCompile(`[a-zA-Z]{2,}\W+(.*\W)?[a-zA-Z]{2,}`)

func judgeSkips(t *testing.T, name string, f *ast.FuncDecl, used map[string]bool) {
	looks, skips := false, false
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch of.Sel.Name {
		case "LookPath":
			looks = true
		case "Skip", "Skipf":
			skips = true
			if reason := firstText(call); !twoWords.MatchString(reason) {
				t.Errorf("%s skips a test for %q, which is no reason in words", name, reason)
			}
		}
		return true
	})
	if !looks || !skips {
		return
	}
	if mayLook[name] == "" {
		t.Errorf("%s looks for a program and skips a test: tooltest.Path does both", name)
	}
	used[name] = true
}

// judgeShort wants a test that asks whether the run is short to be skipped then. One that does less asks tooltest.
func judgeShort(t *testing.T, name string, f *ast.FuncDecl) {
	asked, skipped := 0, 0
	ast.Inspect(f, func(n ast.Node) bool {
		if calls(n, "testing", "Short") {
			asked++
		}
		if i, ok := n.(*ast.IfStmt); ok && contains(i.Cond, "testing", "Short") && contains(i.Body, "t", "Skip") {
			skipped++
		}
		return true
	})
	if asked != skipped {
		t.Errorf("%s asks testing.Short and is not skipped: tooltest.Less tells that it does less", name)
	}
}

// calls reports whether a node is a call of a function of a package, or of a method of a variable.
func calls(n ast.Node, from, name string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || of.Sel.Name != name {
		return false
	}
	left, ok := of.X.(*ast.Ident)
	return ok && left.Name == from
}

// contains reports whether there is such a call in a node.
func contains(n ast.Node, from, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && calls(n, from, name)
		return !found
	})
	return found
}

// firstText is the first string in the arguments of a call.
func firstText(call *ast.CallExpr) (text string) {
	for _, a := range call.Args {
		ast.Inspect(a, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && text == "" {
				text, _ = strconv.Unquote(l.Value)
			}
			return true
		})
	}
	return text
}
