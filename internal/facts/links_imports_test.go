package facts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
