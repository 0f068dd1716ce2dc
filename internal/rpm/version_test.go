package rpm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// Pairs of versions, the older first.
var ordered = [][2]string{
	{"1.0", "1.1"},
	{"1.9", "1.10"},
	{"1.0", "1.0.1"},
	{"1.0~rc1", "1.0"},
	{"1.0~rc1", "1.0~rc2"},
	{"1.0", "1.0^git1"},
	{"1.0^git1", "1.0.1"},
	{"1.0~rc1^git1", "1.0"},
	{"1.0~rc1", "1.0~rc1^git1"},
	{"1.0^20210501", "1.0^20210502"},
	{"1.0^git1~pre", "1.0^git1"},
	{"a", "1"},
	{"1.a", "1.1"},
	{"1.0a", "1.0.1"},
	{"alpha", "beta"},
	{"1A", "1a"},
	{"2.0", "10"},
	{"5.5p1", "5.5p10"},
	{"20101121", "20101122"},
	{"1:1-1", "2:0-1"},
	{"9-9", "1:0-1"},
	{"1-1", "1-2"},
	{"1-1.el9", "1-1.el9_1"},
	{"1", "1.0"},
	{"1.~1", "1"},
	{"1~", "1"},
	{"1", "1^"},
	{"1~~", "1~"},
	{"1^^", "1^a"},
	{"xyz.4", "8"},
	{"2", "2_0"},
	{"1.a", "1.a1"},
}

// Pairs that are equal: separators and leading zeros do not count.
var same = [][2]string{{"1.0", "1_0"}, {"1.0", "1..0"}, {"1.01", "1.1"}, {"0:1-1", "1-1"}, {"1", "1-5"}, {"1+", "1"}, {"a_b", "a-b"[:1] + ".b"}}

func TestCompare(t *testing.T) {
	for _, p := range ordered {
		a, b := ParseVersion(p[0]), ParseVersion(p[1])
		if a.Compare(b) >= 0 || b.Compare(a) <= 0 {
			t.Errorf("%s is not older than %s: %d, %d", p[0], p[1], a.Compare(b), b.Compare(a))
		}
	}
	for _, p := range same {
		a, b := ParseVersion(p[0]), ParseVersion(p[1])
		if a.Compare(b) != 0 || b.Compare(a) != 0 {
			t.Errorf("%s and %s are not the same", p[0], p[1])
		}
	}
}

// rpm itself is the judge of what is not in a table above.
func TestCompareAsRPM(t *testing.T) {
	rpm := tooltest.Path(t, "rpm")
	pieces := []string{"", "1", "0", "10", "a", "Z", "~", "^", ".", "1.", "01", "a1", "~a", "^1", "_"}
	var all []string
	for _, a := range pieces {
		for _, b := range pieces {
			if a+b != "" {
				all = append(all, a+b)
			}
		}
	}
	var script strings.Builder
	for i, a := range all {
		for _, b := range all[i%7 : min(i%7+40, len(all))] {
			script.WriteString(`print(rpm.vercmp("` + a + `","` + b + `").." ")` + "\n")
		}
	}
	file := filepath.Join(t.TempDir(), "compare.lua")
	if err := os.WriteFile(file, []byte(script.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), rpm, "--eval", `%{lua:dofile("`+file+`")}`).Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs := strings.Fields(string(out))
	for i, a := range all {
		for _, b := range all[i%7 : min(i%7+40, len(all))] {
			if len(theirs) == 0 {
				t.Fatal("rpm says too little")
			}
			if got := compareParts(a, b); got != map[string]int{"-1": -1, "0": 0, "1": 1}[theirs[0]] {
				t.Errorf("%q and %q: %d; rpm says %s", a, b, got, theirs[0])
			}
			theirs = theirs[1:]
		}
	}
}

// FuzzCompare: an order is one, whatever is compared.
func FuzzCompare(f *testing.F) {
	for _, p := range ordered {
		f.Add(p[0], p[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		v, w := ParseVersion(a), ParseVersion(b)
		if v.Compare(w) != -w.Compare(v) || v.Compare(ParseVersion(a)) != 0 {
			t.Errorf("%q and %q: %d, %d", a, b, v.Compare(w), w.Compare(v))
		}
	})
}
