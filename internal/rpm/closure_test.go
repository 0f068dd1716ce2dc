package rpm

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRelations(t *testing.T) {
	for text, want := range map[string]string{
		"a": "a", "a >= 1:2-3": "a >= 1:2-3", "libc.so.6(GLIBC_2.34)(64bit)": "libc.so.6(GLIBC_2.34)(64bit)", "(a if b)": "(a if b)",
		"((a and b) or (c if d else e))": "((a and b) or (c if d else e))", "(f(x) = 1 with g(y) < 2)": "(f(x) = 1 with g(y) < 2)", "(a)": "a",
		"(a or b or c)": "(a or b or c)", "(a unless b)": "(a unless b)", "(a without b)": "(a without b)", "( a  >  1   or b )": "(a > 1 or b)",
	} {
		if r, err := ParseRelation(text); err != nil || r.String() != want {
			t.Errorf("%q is %q, %v", text, r, err)
		}
	}
	for _, bad := range []string{"", "(", "(a", "(a if", "(a or b and c)", "(a if b else c else d)", "(a if b if c)", "a >=", "(a xor b)", "a b", "()", "a >= -", "a >= 1:", "a = 0:0:1", "a = (1", "a(", strings.Repeat("(", 100) + "a" + strings.Repeat(")", 100), "(a else b)"} {
		if r, err := ParseRelation(bad); err == nil {
			t.Errorf("%q is %q", bad, r)
		}
	}
}

// universe makes packages of lines: NAME-VERSION, and behind it what it says, each with a sign: + provides, - requires, ! conflicts, ~
// obsoletes, ? suggests, / has the file.
func universe(t *testing.T, lines ...string) *Universe {
	t.Helper()
	u := NewUniverse("x86_64")
	for i, line := range lines {
		words := strings.Split(line, ", ")
		name, version, _ := strings.Cut(words[0], "-")
		p := &Package{Name: name, Arch: "x86_64", Version: ParseVersion(version), SHA256: line, Repository: i}
		p.Provides = []Relation{{Name: name, sense: equal, version: p.Version}}
		for _, w := range words[1:] {
			if w[0] == '/' {
				p.Files = append(p.Files, w)
				continue
			}
			r, err := ParseRelation(w[1:])
			if err != nil {
				t.Fatal(err)
			}
			switch w[0] {
			case '+':
				p.Provides = append(p.Provides, r)
			case '-':
				p.Requires = append(p.Requires, r)
			case '!':
				p.Conflicts = append(p.Conflicts, r)
			case '~':
				p.Obsoletes = append(p.Obsoletes, r)
			case '?':
				p.Suggests = append(p.Suggests, r.Name)
			}
		}
		u.Add(p)
	}
	return u
}

// closed is what a system takes: "NAME-VERSION NAME-VERSION", or an error.
func closed(t *testing.T, u *Universe, asked string) string {
	t.Helper()
	var relations []Relation
	for a := range strings.SplitSeq(asked, ", ") {
		r, err := ParseRelation(a)
		if err != nil {
			t.Fatal(err)
		}
		relations = append(relations, r)
	}
	all, err := u.Close(relations)
	if err != nil {
		return "error: " + err.Error()
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name+"-"+p.Version.String())
	}
	return strings.Join(names, " ")
}

func TestClose(t *testing.T) {
	for name, c := range map[string]struct {
		packages []string
		asked    string
		want     string
	}{
		"what is required, and the newest":      {[]string{"a-1, -b >= 2", "b-1", "b-2", "b-3", "c-1"}, "a", "a-1 b-3"},
		"a version below":                       {[]string{"a-1, -b < 3", "b-1", "b-2", "b-3"}, "a", "a-1 b-2"},
		"a release":                             {[]string{"a-1, -b = 2", "b-2-7", "b-3-1"}, "a", "a-1 b-2-7"},
		"what another provides":                 {[]string{"a-1, -v = 2", "b-1, +v = 1", "c-1, +v = 2"}, "a", "a-1 c-1"},
		"provided without a version":            {[]string{"a-1, -v > 2", "b-1, +v"}, "a", "a-1 b-1"},
		"the package of the name":               {[]string{"a-1, -v", "b-1, +v", "v-1"}, "a", "a-1 v-1"},
		"what is asked for":                     {[]string{"a-1, -v", "b-1, +v", "c-1, +v"}, "c, a", "a-1 c-1"},
		"what is suggested":                     {[]string{"a-1, -v, ?c", "b-1, +v", "c-1, +v"}, "a", "a-1 c-1"},
		"nothing that is only suggested":        {[]string{"a-1, ?c", "c-1"}, "a", "a-1"},
		"a file":                                {[]string{"a-1, -/bin/sh", "b-1, /bin/sh"}, "a", "a-1 b-1"},
		"what rpm can do":                       {[]string{"a-1, -rpmlib(PayloadIsZstd) <= 5.4.18-1"}, "a", "a-1"},
		"itself":                                {[]string{"a-1, -a = 1, +x, -x"}, "a", "a-1"},
		"a circle":                              {[]string{"a-1, -b", "b-1, -a"}, "a", "a-1 b-1"},
		"a condition that holds":                {[]string{"a-1, -(c if b)", "b-1", "c-1"}, "a, b", "a-1 b-1 c-1"},
		"a condition that comes to hold":        {[]string{"a-1, -(c if b), -d", "d-1, -e", "e-1, -b", "b-1", "c-1"}, "a", "a-1 b-1 c-1 d-1 e-1"},
		"a condition that does not":             {[]string{"a-1, -(c if b)", "b-1", "c-1"}, "a", "a-1"},
		"the other side":                        {[]string{"a-1, -(c if b else d)", "b-1", "c-1", "d-1"}, "a", "a-1 d-1"},
		"one of several":                        {[]string{"a-1, -(x or c or d)", "c-1", "d-1"}, "a", "a-1 c-1"},
		"the one that is there":                 {[]string{"a-1, -(c or d)", "c-1", "d-1"}, "d, a", "a-1 d-1"},
		"both":                                  {[]string{"a-1, -(c and d)", "c-1", "d-1"}, "a", "a-1 c-1 d-1"},
		"one that is both":                      {[]string{"a-1, -(v >= 2 with v < 4)", "b-1, +v = 1", "c-1, +v = 3", "d-1, +v = 5"}, "a", "a-1 c-1"},
		"one that is not the other":             {[]string{"a-1, -(v without w)", "b-1, +v, +w", "c-1, +v"}, "a", "a-1 c-1"},
		"nothing that conflicts":                {[]string{"a-1, -v, !b", "b-1, +v", "c-1, +v"}, "a", "a-1 c-1"},
		"nothing that conflicts, from there":    {[]string{"a-1, -v", "b-1, +v, !a", "c-1, +v"}, "a", "a-1 c-1"},
		"nothing that is obsolete":              {[]string{"a-1, -v, ~b < 2", "b-1, +v", "c-1, +v"}, "a", "a-1 c-1"},
		"a choice that leads nowhere":           {[]string{"a-1, -v", "b-1, +v, -missing", "c-1, +v"}, "a", "a-1 c-1"},
		"the newest leads nowhere":              {[]string{"a-1, -b", "b-1", "b-2, -missing"}, "a", "a-1 b-1"},
		"a choice that is wrong later":          {[]string{"a-1, -b, -c", "b-1", "b-2", "c-1, -b = 1"}, "a", "a-1 b-1 c-1"},
		"no stream of a module":                 {[]string{"a-1-1.module+el9", "a-0-1"}, "a", "a-0-1"},
		"nothing for it":                        {[]string{"a-1, -b"}, "a", "error: nothing provides b, which a-1.x86_64 requires,"},
		"a conflict of what is asked for":       {[]string{"a-1, !b", "b-1"}, "a, b", "error: b-1.x86_64 cannot be there beside a-1.x86_64"},
		"a conflict only under a condition":     {[]string{"a-1, !(b if c)", "b-1", "c-1"}, "a, b", "a-1 b-1"},
		"a conflict under a condition that is":  {[]string{"a-1, !(b if c)", "b-1", "c-1"}, "a, c, b", "error: b-1.x86_64 cannot be there beside a-1.x86_64"},
		"unknown":                               {[]string{"a-1"}, "z", "error: there is no package z"},
		"a name is not what an obsoleter knows": {[]string{"a-1, ~v", "b-1, +v"}, "a, b", "a-1 b-1"},
	} {
		if got := closed(t, universe(t, c.packages...), c.asked); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
}

// Lists of files are asked for when a file is required that lists of packages do not have.
func TestCloseAsksForFiles(t *testing.T) {
	u := universe(t, "a-1, -/usr/share/x", "b-1")
	asked := []Relation{{Name: "a"}}
	if _, err := u.Close(asked); !errors.Is(err, ErrFilesUnknown) {
		t.Fatal(err)
	}
	if want := map[string]bool{"/usr/share/x": true}; !cmp.Equal(u.RequiredFiles(), want) {
		t.Errorf("%v", u.RequiredFiles())
	}
	u.AddFile("b-1", "/usr/share/x")
	u.FilesKnown()
	if got := closed(t, u, "a"); got != "a-1 b-1" {
		t.Error(got)
	}
	u = universe(t, "a-1, -/usr/share/x")
	u.FilesKnown()
	if got := closed(t, u, "a"); !strings.Contains(got, "nothing provides /usr/share/x") {
		t.Error(got)
	}
}

// Packages of another architecture are not there.
func TestArchitecture(t *testing.T) {
	u := NewUniverse("aarch64")
	for _, arch := range []string{"x86_64", "i686", "noarch", "aarch64"} {
		u.Add(&Package{Name: arch, Arch: arch})
	}
	if got := u.Names(); !slices.Equal(got, []string{"aarch64", "noarch"}) {
		t.Errorf("%q", got)
	}
}

// FuzzRelation: what is read is written so that it is read the same.
func FuzzRelation(f *testing.F) {
	for _, s := range []string{"a >= 1", "(a if b else c)", "((a or b) and c(x) = 1:2-3)", "a >= -", "a >= 0:-1", "a = 0:0:1", "((a or b) and c( )", "a = (1)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRelation(s)
		if err != nil {
			return
		}
		again, err := ParseRelation(r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%q is %q, and that %q, %v", s, r, again, err)
		}
	})
}
