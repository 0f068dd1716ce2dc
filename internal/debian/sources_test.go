package debian

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// The mirrors of a machine are those of the distribution, in both forms of files, and neither somebody else's packages for it nor what
// is switched off or needs a password.
func TestOwnMirrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if m := OwnMirrors(dir); len(m) > 0 {
		t.Errorf("nothing is %v", m)
	}
	write("sources.list", "# deb http://z.example.org/debian bookworm main\ndeb [arch=amd64] https://vendor.example.org/linux/debian bookworm stable\n"+
		"deb [arch=amd64 signed-by=/x] https://a.example.org/debian/ bookworm main\n"+
		"deb http://u:p@b.example.org/ubuntu noble main\ndeb http://tools.example.org/apt x main\n")
	write("sources.list.d/u.sources", "Types: deb deb-src\nURIs: http://b.example.org/ubuntu\nSuites: noble noble-security\nComponents: main\n\n"+
		"Types: deb\nURIs: http://c.example.org/debian-security\nSuites: bookworm-security\nComponents: main\n\n"+
		"Enabled: no\nTypes: deb\nURIs: http://d.example.org/ubuntu\nSuites: noble\nComponents: main\n")
	want := Mirrors{
		"debian": "https://a.example.org/debian/", "debian-security": "http://c.example.org/debian-security",
		"ubuntu": "http://b.example.org/ubuntu", "ubuntu-security": "http://b.example.org/ubuntu",
	}
	if m := OwnMirrors(dir); !maps.Equal(m, want) {
		t.Errorf("%v, not %v", m, want)
	}
}

// A source of the distribution's has a mirror; all others have none.
func TestMirrorOfSource(t *testing.T) {
	m := Mirrors{"debian": "http://m.example.org/debian/", "ubuntu": "http://m.example.org/ubuntu"}
	for line, want := range map[string]string{
		"deb [signed-by=/k arch=amd64] http://x.example.org/debian bookworm main contrib # ours": "http://m.example.org/debian/",
		"deb http://x.example.org/debian-security bookworm-security main":                        "http://m.example.org/debian-security",
		"deb-src http://x.example.org/ubuntu noble-security main universe":                       "http://m.example.org/ubuntu",
		"deb http://x.example.org/ubuntu-ports noble main":                                       "", // of other architectures
		"deb https://vendor.example.org/linux/debian bookworm stable":                            "", // somebody else's
		"deb http://s.example.org/archive/debian/20260101T000000Z bookworm main":                 "", // a snapshot
		"deb http://s.example.org/tools ./":                                                      "",
	} {
		all := ParseSources(line+"\n", false)
		if len(all) != 1 {
			t.Errorf("%s: %+v", line, all)
			continue
		}
		if want == "" {
			want = all[0].URL
		}
		if got := m.For(all[0]); got != want {
			t.Errorf("%s: %s, not %s", line, got, want)
		}
	}
}
