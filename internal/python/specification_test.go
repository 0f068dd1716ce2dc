package python

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// The files in testdata/judge are what the reference implementation answers; judge.py there writes them.
func readJudge(t testing.TB, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/judge", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func mustVersion(t *testing.T, s string) Version {
	t.Helper()
	v, err := ParseVersion(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVersionOrder(t *testing.T) {
	var judged struct {
		Versions []string
		Order    map[string]string
		Bad      []string
		Spelled  map[string]string
	}
	readJudge(t, "versions.json", &judged)
	if len(judged.Versions) < 50 || len(judged.Bad) < 15 || len(judged.Spelled) < 5 {
		t.Fatal("the judge has lost its cases")
	}
	for text, normal := range judged.Spelled {
		if v, err := ParseVersion(text); err != nil || v.Compare(mustVersion(t, normal)) != 0 {
			t.Errorf("%q is %+v, %v, want %s", text, v, err, normal)
		}
	}
	for _, a := range judged.Versions {
		for i, b := range judged.Versions {
			want := strings.IndexByte("<=>", judged.Order[a][i]) - 1
			if got := mustVersion(t, a).Compare(mustVersion(t, b)); got != want {
				t.Errorf("%s compared to %s is %d, want %d", a, b, got, want)
			}
		}
	}
	for _, bad := range judged.Bad {
		if v, err := ParseVersion(bad); err == nil {
			t.Errorf("%q is taken for the version %+v", bad, v)
		}
	}
}

func TestSpecifiers(t *testing.T) {
	var judged struct {
		Versions []string
		Contains map[string][]string
		Bad      []string
		Spelled  map[string]string
	}
	readJudge(t, "specifiers.json", &judged)
	if len(judged.Contains) < 30 || len(judged.Spelled) < 10 {
		t.Fatal("the judge has lost its cases")
	}
	for text, normal := range judged.Spelled {
		if ss, err := ParseSpecifiers(text); err != nil || ss.String() != normal {
			t.Errorf("%q is %q, %v, want %s", text, ss, err, normal)
		}
	}
	for text, want := range judged.Contains {
		ss, err := ParseSpecifiers(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if ss.String() != text {
			t.Errorf("%s is written %s", text, ss)
		}
		got := []string{}
		for _, v := range judged.Versions {
			if ss.Contains(mustVersion(t, v)) {
				got = append(got, v)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s contains (-want +got):\n%s", text, diff)
		}
	}
	for _, bad := range judged.Bad {
		if ss, err := ParseSpecifiers(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, ss)
		}
	}
}

// judgedEnvironment is ENVIRONMENT of judge.py.
func judgedEnvironment() MarkerEnvironment {
	e := EnvironmentOf(Interpreter{Version: "3.11.2", Implementation: "cpython", Platform: "x86_64"})
	e.Extras, e.Groups = []string{"train-x"}, []string{"dev"}
	return e
}

func TestMarkers(t *testing.T) {
	var judged struct {
		Evaluate map[string]string
		Bad      []string
	}
	readJudge(t, "markers.json", &judged)
	if len(judged.Evaluate) < 50 || len(judged.Bad) < 15 {
		t.Fatal("the judge has lost its cases")
	}
	for text, want := range judged.Evaluate {
		m, err := ParseMarker(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		ok, err := m.Evaluate(judgedEnvironment())
		got := map[bool]string{true: "true", false: "false"}[ok]
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s is %s (%v), want %s", text, got, err, want)
		}
	}
	for _, bad := range judged.Bad {
		if m, err := ParseMarker(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, m)
		}
	}
}

func TestMarkerExtra(t *testing.T) {
	m, err := ParseMarker(`extra == "Dev_Tools" and python_version >= "3"`)
	if err != nil {
		t.Fatal(err)
	}
	for extra, want := range map[string]bool{"dev-tools": true, "dev.tools": true, "other": false, "": false} {
		if got, err := m.Evaluate(judgedEnvironment().WithExtra(extra)); err != nil || got != want {
			t.Errorf("extra %q: %v, %v", extra, got, err)
		}
	}
}

func TestMarkerErrors(t *testing.T) {
	for text, want := range map[string]string{
		`python_version > 3`:       "quoted text",
		`python_is > "3"`:          `"python_is > \"3\"" where a variable`,
		`os_name == "posix`:        "not closed",
		`os_name ! "posix"`:        "an operator",
		`os_name == "a" and`:       "ends where a variable",
		strings.Repeat("(", 10000): "more than 200 parentheses",
	} {
		if _, err := ParseMarker(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestRequirements(t *testing.T) {
	type parsed struct {
		Name       string
		Extras     []string
		Specifiers []string
		URL        string
		Marker     bool
	}
	var judged struct {
		Parse map[string]parsed
		Bad   []string
	}
	readJudge(t, "requirements.json", &judged)
	if len(judged.Parse) < 20 || len(judged.Bad) < 20 {
		t.Fatal("the judge has lost its cases")
	}
	for text, want := range judged.Parse {
		r, err := ParseRequirement(text)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		got := parsed{Name: r.Name, Extras: r.Extras, Specifiers: []string{}, URL: r.URL, Marker: r.Marker != nil}
		for _, s := range r.Specifiers {
			got.Specifiers = append(got.Specifiers, Specifiers{s}.String())
		}
		slices.Sort(got.Specifiers)
		got.Extras = slices.Sorted(slices.Values(got.Extras))
		for i := range want.Extras {
			want.Extras[i] = NormalizeName(want.Extras[i])
		}
		slices.Sort(want.Extras)
		if len(want.Extras) == 0 {
			want.Extras = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for _, bad := range judged.Bad {
		if r, err := ParseRequirement(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, r)
		}
	}
}

func TestTags(t *testing.T) {
	judged := map[string][]string{}
	readJudge(t, "tags.json", &judged)
	for name, i := range map[string]Interpreter{
		"3.11 x86_64 glibc 2.36":  {Version: "3.11.2", Platform: "x86_64", Glibc: "2.36"},
		"3.12 aarch64 glibc 2.39": {Version: "3.12.0", Platform: "aarch64", Glibc: "2.39"},
		"3.13 x86_64 musl 1.2":    {Version: "3.13.1", Platform: "x86_64", Musl: "1.2"},
		"3.9 x86_64 glibc 2.17":   {Version: "3.9.21", Platform: "x86_64", Glibc: "2.17"},
	} {
		if diff := cmp.Diff(judged[name], i.Tags()); diff != "" || len(judged[name]) == 0 {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := (Interpreter{Version: "3.x", Platform: "x86_64"}).Tags(); got != nil {
		t.Errorf("tags of a Python 3.x: %d", len(got))
	}
	if got := (Interpreter{Version: "3.999999999", Platform: "x86_64", Glibc: "2.99999999"}).Tags(); got != nil {
		t.Errorf("tags of an impossible Python: %d", len(got))
	}
}

// This machine's own Python agrees, as far as the packaging that its pip carries does: before packaging 26.3 the plain
// linux tag came last, and before 22 there was no cpXY-none-any.
func TestTagsOfThisMachine(t *testing.T) {
	out, err := exec.Command("python3", "-c", `
import os, platform, sys
from pip._vendor.packaging.tags import sys_tags
print(platform.python_implementation(), platform.python_version(), platform.machine(), os.confstr("CS_GNU_LIBC_VERSION").replace("glibc ", ""))
print("\n".join(map(str, sys_tags())))`).Output()
	if err != nil {
		tooltest.Missing(t, "no python3 with pip")
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	facts := strings.Fields(lines[0])
	if len(facts) != 4 || facts[0] != "CPython" {
		t.Skip("this machine's Python is ", lines[0])
	}
	i := Interpreter{Version: facts[1], Platform: facts[2], Glibc: facts[3]}
	differs := func(tag string) bool {
		return strings.Contains(tag, "-linux_") || strings.HasPrefix(tag, "cp") && strings.HasSuffix(tag, "-none-any")
	}
	keep := func(tags []string) []string { return slices.DeleteFunc(slices.Clone(tags), differs) }
	if diff := cmp.Diff(keep(lines[1:]), keep(i.Tags())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzMarker(f *testing.F) {
	var judged struct {
		Evaluate map[string]string
		Bad      []string
	}
	readJudge(f, "markers.json", &judged)
	for text := range judged.Evaluate {
		f.Add(text)
	}
	for _, text := range judged.Bad {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMarker(text)
		if err != nil {
			return
		}
		first, err1 := m.Evaluate(judgedEnvironment())
		again, err := ParseMarker("(" + m.String() + ")")
		if err != nil {
			if strings.Count(text, "(") >= maxMarkerDepth {
				return
			}
			t.Fatalf("%q in parentheses: %v", text, err)
		}
		second, err2 := again.Evaluate(judgedEnvironment())
		if first != second || (err1 == nil) != (err2 == nil) {
			t.Fatalf("%q is %v, %v, in parentheses %v, %v", text, first, err1, second, err2)
		}
	})
}

func FuzzRequirement(f *testing.F) {
	var judged struct {
		Parse map[string]any
		Bad   []string
	}
	readJudge(f, "requirements.json", &judged)
	for text := range judged.Parse {
		f.Add(text)
	}
	for _, text := range judged.Bad {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRequirement(text)
		if err != nil {
			return
		}
		if !validName(r.Name) {
			t.Fatalf("%q has the name %q", text, r.Name)
		}
		again, err := ParseRequirement(r.Name + "(" + r.Specifiers.String() + ")")
		if err != nil || again.Specifiers.String() != r.Specifiers.String() {
			t.Fatalf("%q: %v, %v", text, again, err)
		}
	})
}

func FuzzVersion(f *testing.F) {
	var judged struct{ Versions []string }
	readJudge(f, "versions.json", &judged)
	for i, v := range judged.Versions {
		f.Add(v, judged.Versions[len(judged.Versions)-1-i])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		va, errA := ParseVersion(a)
		vb, errB := ParseVersion(b)
		if errA != nil || errB != nil {
			return
		}
		if again, _ := ParseVersion(a); va.Compare(again) != 0 || va.Compare(vb) != -vb.Compare(va) {
			t.Fatalf("%q and %q have no order: %d, %d", a, b, va.Compare(vb), vb.Compare(va))
		}
	})
}
