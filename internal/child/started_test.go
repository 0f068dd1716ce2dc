package child

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program starts where nobody's files are, unless it is told another directory.
func TestStartsInTheRoot(t *testing.T) {
	t.Chdir(t.TempDir())
	for dir, want := range map[string]string{"": "/\n", "/usr": "/usr\n"} {
		cmd := exec.Command("pwd")
		cmd.Dir = dir
		if out, err := Output(cmd); err != nil || string(out) != want {
			t.Errorf("told %q, it starts in %q, %v", dir, out, err)
		}
	}
}

// started are the files that start programs otherwise than by this package, with why.
var started = map[string]string{
	"sandbox/session.go":  "this program, which becomes the sandbox",
	"engine/runstep.go":   "this program",
	"engine/rununpack.go": "this program",
	"build/compilers.go":  "processes of a Python in the root directory, which end with their input",
}

// Every program that sconce starts on this machine is started here, or by package gitrun, and a Python among them in isolated mode: it would
// import modules of the directory that it is in, and of PYTHONPATH.
func TestProgramsAreStartedHere(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		if d.IsDir() {
			if name == "testdata" || path != ".." && strings.HasSuffix(name, "test") && name != "imagetest" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		here, starts := false, false
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch callee := called(call); {
			case strings.HasPrefix(callee, "child.") || callee == "gitrun.Run":
				here = true
			case callee == "exec.Command" || callee == "exec.CommandContext":
				starts = true
				seen++
				if words := literals(call); strings.Contains(words, ` "-c"`) && !strings.Contains(words, ` "-I"`) && !strings.Contains(words, `"/bin/sh"`) {
					t.Errorf("%s: a program gets -c without -I: %s", path, words)
				}
			}
			return true
		})
		if rel, _ := filepath.Rel("..", path); starts && !here && started[rel] == "" {
			t.Errorf("%s starts a program by itself: package child does it", path)
		}
		return nil
	})
	if err != nil || seen < 10 {
		t.Errorf("%d calls were found, %v", seen, err)
	}
}

// called is PACKAGE.NAME of what is called.
func called(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		if p, ok := s.X.(*ast.Ident); ok {
			return p.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// literals are the words of a call that stand in the source, each behind a blank.
func literals(call *ast.CallExpr) string {
	words := ""
	ast.Inspect(call, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			words += " " + l.Value
		}
		return true
	})
	return words
}
