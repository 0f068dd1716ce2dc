package debian

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func universe(t *testing.T, text string) *Universe {
	t.Helper()
	var index strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		fmt.Fprintf(&index, "%s\nFilename: pool/x.deb\nSize: 1\nSHA256: %064d\n\n", strings.TrimSpace(paragraph), 1)
	}
	u := NewUniverse("amd64")
	if err := u.Read(strings.NewReader(index.String()), 0); err != nil {
		t.Fatal(err)
	}
	return u
}

const small = `
Package: a
Version: 1
Architecture: amd64
Depends: b (>= 2) | c, mta

Package: b
Version: 1
Architecture: all

Package: c
Version: 1
Architecture: amd64
Pre-Depends: d:any

Package: d
Version: 1
Architecture: amd64

Package: d
Version: 2
Architecture: amd64

Package: exim
Version: 1
Architecture: all
Priority: optional
Provides: mta
Conflicts: mta

Package: nullmailer
Version: 1
Architecture: all
Priority: standard
Provides: mta (= 3)
Conflicts: mta

Package: wants
Version: 1
Architecture: all
Depends: mta (>= 4)

Package: versioned
Version: 1
Architecture: all
Depends: mta (>= 2)

Package: foreign
Version: 1
Architecture: all
Depends: d:arm64

Package: quiet
Version: 1
Architecture: all
Depends: c | b
Breaks: c (<< 2)

Package: other
Version: 1
Architecture: arm64
`

func TestClose(t *testing.T) {
	u := universe(t, small)
	for _, c := range []struct{ asked, want, err string }{
		{"a", "a=1 c=1 d=2 nullmailer=1", ""},         // the first alternative is too old; the provider of the higher priority
		{"a exim", "a=1 c=1 d=2 exim=1", ""},          // what is there already is enough
		{"c d=1", "c=1 d=1", ""},                      // a version of its own
		{"d d=1", "d=1", ""},                          // which counts more than none
		{"versioned", "nullmailer=1 versioned=1", ""}, // a name that is provided with a version
		{"quiet", "b=1 quiet=1", ""},                  // an alternative with which there is no quarrel
		{"quiet c", "", "quiet and c cannot be installed together"},
		{"exim nullmailer", "", "cannot be installed together"},
		{"wants", "", "wants needs mta (>= 4), which cannot be had"},
		{"foreign", "", "foreign needs d:arm64"},
		{"d:amd64 b:any", "b=1 d=2", ""},
		{"d:arm64", "", "d is for arm64, and the base for amd64"},
		{"other", "", "there is no package other"},
		{"d=3", "", "there is no version 3 of package d"},
	} {
		packages, err := u.Close(strings.Fields(c.asked))
		var got []string
		for _, p := range packages {
			got = append(got, p.Name+"="+p.Version)
		}
		if strings.Join(got, " ") != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.asked, got, err)
		}
	}
	if v := u.Versions("d"); !slices.Equal(v, []string{"2", "1"}) {
		t.Errorf("versions of d: %v", v)
	}
}

func TestBadIndex(t *testing.T) {
	for text, why := range map[string]string{
		"Package: ../a\nVersion: 1\nArchitecture: all\n":                                                         "cannot be a package",
		"Package: a\nVersion: 1 2\nArchitecture: all\n":                                                          "no version",
		"Package: a\nVersion: 1\nArchitecture: all\n":                                                            "does not say",
		"Package: a\nVersion: 1\nArchitecture: all\nFilename: ../x\nSize: 1\nSHA256: " + strings.Repeat("0", 64): "does not say",
		"Package: a\nVersion: 1\nArchitecture: all\nFilename: x\nSize: -1\nSHA256: " + strings.Repeat("0", 64):   "does not say",
		"Package: a\nVersion: 1\nArchitecture: all\nFilename: x\nSize: 1\nSHA256: 00\n":                          "does not say",
	} {
		if err := NewUniverse("amd64").Read(strings.NewReader(text), 0); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Whatever packages say of each other, the end is reached.
func FuzzClose(f *testing.F) {
	f.Add("b | c", "a", "b")
	f.Add("v (>= 1)", "v (= 2)", "a")
	f.Fuzz(func(_ *testing.T, depends, provides, conflicts string) {
		u := NewUniverse("amd64")
		for _, p := range []*Package{
			{Name: "a", Version: "1", Architecture: "all", Depends: depends, Conflicts: conflicts},
			{Name: "b", Version: "2", Architecture: "all", Depends: conflicts, Provides: provides},
			{Name: "c", Version: "3", Architecture: "all", Depends: provides, Conflicts: depends, Provides: "v (= 2)"},
		} {
			if u.Add(p) != nil {
				return
			}
		}
		_, _ = u.Close([]string{"a", "b"})
	})
}
