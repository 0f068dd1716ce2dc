package slim

import (
	"strings"
	"testing"
)

func TestFixRecord(t *testing.T) {
	before, after := sumOf([]byte("before")), sumOf([]byte("after"))
	c := newChanges([]*rehash{{Names: []string{"usr/lib/a.so", "usr/lib/b,c.so", "usr/bin/tool"}, Old: before, New: after}})
	const name = "usr/lib/x-1.dist-info/RECORD"
	for what, test := range map[string]struct {
		record string
		want   string // "" when nothing changes
	}{
		"plain":          {"a.so,sha256=" + before + ",6\nz,,\n", "a.so,sha256=" + after + ",6\nz,,\n"},
		"quoted":         {`"b,c.so","sha256=` + before + `",6` + "\r\n", `"b,c.so","sha256=` + after + `",6` + "\r\n"},
		"padded":         {"a.so,sha256=" + before + "=,6", "a.so,sha256=" + after + "=,6"},
		"elsewhere":      {"../bin/tool,sha256=" + before + ",6\n", "../bin/tool,sha256=" + after + ",6\n"},
		"absolute":       {"/usr/lib/a.so,sha256=" + before + ",6\n", ""},
		"wrong before":   {"a.so,sha256=" + sumOf(nil) + ",6\n", ""},
		"another file":   {"other.so,sha256=" + before + ",6\n", ""},
		"other hash":     {"a.so,sha512=" + before + ",6\n", ""},
		"no hash":        {"a.so,,\n", ""},
		"short line":     {"a.so\n\n\n", ""},
		"empty":          {"", ""},
		"several of one": {strings.Repeat("a.so,sha256="+before+",6\n", 2), strings.Repeat("a.so,sha256="+after+",6\n", 2)},
	} {
		fixed, listed, err := c.fix(name, []byte(test.record))
		if err != nil || string(fixed) != test.want || (len(listed) > 0) != (test.want != "") {
			t.Errorf("%s: %q, %d listed, %v; want %q", what, fixed, len(listed), err, test.want)
		}
	}
}

func TestIsRecord(t *testing.T) {
	for p, want := range map[string]bool{
		"usr/lib/x-1.dist-info/RECORD": true, "x.dist-info/RECORD": true, "RECORD": false, "a/RECORD": false,
		"x.dist-info/RECORD.jws": false, "x.egg-info/RECORD": false,
	} {
		if got := isRecord(p); got != want {
			t.Errorf("%s: %t", p, got)
		}
	}
	if got := recordRoot("x.dist-info/RECORD"); got != "." {
		t.Errorf("root %q", got)
	}
}
