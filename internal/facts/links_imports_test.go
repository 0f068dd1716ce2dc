package facts

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/elfx"
)

func TestImports(t *testing.T) {
	const text = `from __future__ import x
import os, pkg.a as b  # comment
from .c import (d as e,
    f)  # more
from .. import \
    g
if x:
    import hidden
from pkg import *
`
	want := []string{"__future__", "__future__.x", "os", "pkg.a", "pkg.sub.c", "pkg.sub.c.d", "pkg.sub.c.f", "pkg", "pkg.g", "pkg", "pkg.*"}
	if diff := cmp.Diff(want, imports(text, "pkg.sub", true)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"pkg.c", "pkg.c.d"}, imports("from .c import d", "pkg.sub", false)); diff != "" {
		t.Error(diff)
	}
}

// countingRoot counts how often each file is opened.
type countingRoot struct {
	Root
	opened map[string]int
}

func (r countingRoot) Open(name string) (elfx.Handle, error) {
	r.opened[name]++
	return r.Root.Open(name)
}

// A source that many modules are looked for in is read once.
func TestSourcesAreReadOnce(t *testing.T) {
	files := importing()
	root := countingRoot{squashedRoot(t, files), map[string]int{}}
	l := &linker{facts: &Facts{Root: root}}
	var problems []LinkProblem
	for _, name := range []string{"sub/deep/_c", "sub/deep/_d", "sub/_e"} {
		problems = append(problems, LinkProblem{Path: site + "pkg/" + name + ".so", Role: RoleModule})
	}
	l.findImports(problems)
	if problems[0].Role != RoleImport || problems[1].Role != RoleModule {
		t.Errorf("roles %q and %q", problems[0].Role, problems[1].Role)
	}
	for name, n := range root.opened {
		if n > 1 {
			t.Errorf("%s was opened %d times", name, n)
		}
	}
	if len(root.opened) != 3 {
		t.Errorf("opened: %v, want the three files of source", root.opened)
	}
}
