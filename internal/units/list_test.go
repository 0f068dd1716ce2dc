package units

import "testing"

func TestList(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"a"}, "a"},
		{[]string{"a", "b"}, "a, b"},
		{[]string{"a", "b", "c", "d"}, "a, b and 2 more"},
	} {
		if got := List(c.names, 2); got != c.want {
			t.Errorf("%q: got %q, want %q", c.names, got, c.want)
		}
	}
	if got, want := Quoted([]string{"a", `b"c`}), `"a", "b\"c"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
