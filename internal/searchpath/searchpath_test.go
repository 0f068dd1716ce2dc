package searchpath

import "testing"

func TestOf(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string
	}{
		{nil, Default},
		{[]string{"HOME=/root", "MYPATH=/x"}, Default},
		{[]string{"PATH=/a", "PATH=/b:/c"}, "/b:/c"},
		{[]string{"PATH="}, ""},
	} {
		if got := Of(c.env); got != c.want {
			t.Errorf("%q: %q, want %q", c.env, got, c.want)
		}
	}
}
