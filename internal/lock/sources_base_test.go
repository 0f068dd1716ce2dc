package lock

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/python"
)

func TestCheckCompileBase(t *testing.T) {
	k := &locker{python: Python{Version: "3.11.2", Implementation: "cpython", Glibc: "2.36"}}
	for _, c := range []struct {
		found python.Interpreter
		want  string
	}{
		{python.Interpreter{Version: "3.11.9", Implementation: "cpython", Glibc: "2.36"}, ""},
		{python.Interpreter{Version: "3.11.9", Implementation: "cpython", Glibc: "2.4"}, ""},
		{python.Interpreter{Version: "3.12.1", Implementation: "cpython", Glibc: "2.36"}, "with Python 3.12, and the image has 3.11"},
		{python.Interpreter{Version: "3.11.2", Implementation: "cpython", Glibc: "2.39"}, "with the C library 2.39, and the image has 2.36"},
		{python.Interpreter{Version: "3.11.2", Implementation: "cpython", Musl: "1.2"}, "another C library"},
	} {
		err := k.checkCompileBase("src", "builder", c.found)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.found, err)
		}
	}
}
