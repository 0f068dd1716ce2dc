package debian

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRelations(t *testing.T) {
	got, err := ParseRelations("libc6 (>= 2.36),\n python3:any (<<3.12) | a1+b.c:amd64,x(=1:2-3) | y ( > 1 ), ")
	want := []Alternatives{
		{{Name: "libc6", Operator: ">=", Version: "2.36"}},
		{{Name: "python3", Architecture: "any", Operator: "<<", Version: "3.12"}, {Name: "a1+b.c", Architecture: "amd64"}},
		{{Name: "x", Operator: "=", Version: "1:2-3"}, {Name: "y", Operator: ">=", Version: "1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, bad := range []string{"a b", "a (1)", "a (>= )", "a (>= 1", "a (>= 1) b", "|", "a |", "a:", "a [amd64]", "${x}", "../a"} {
		if r, err := ParseRelations(bad); err == nil {
			t.Errorf("%q is %v", bad, r)
		}
	}
	for relation, versions := range map[string]string{"a (<< 2)": "1 +2~ -2", "a (<= 2)": "2 -3", "a (= 2)": "2 -1", "a (>= 2)": "2 3 -1", "a (>> 2)": "3 -2", "a": "1"} {
		r, err := ParseRelations(relation)
		if err != nil {
			t.Fatal(err)
		}
		for v := range strings.FieldsSeq(versions) {
			v, not := strings.CutPrefix(v, "-")
			if r[0][0].Accepts(strings.TrimPrefix(v, "+")) == not {
				t.Errorf("%s and %s", relation, v)
			}
		}
	}
}

func FuzzParseRelations(f *testing.F) {
	f.Add("libc6 (>= 2.36), python3:any | b")
	f.Fuzz(func(t *testing.T, text string) {
		groups, err := ParseRelations(text)
		if err != nil {
			return
		}
		words := make([]string, len(groups))
		for i, g := range groups {
			words[i] = g.String()
		}
		again, err := ParseRelations(strings.Join(words, ", "))
		if diff := cmp.Diff(groups, again); diff != "" || err != nil {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	})
}
