package ospackages

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

var hexed = strings.Repeat("ab", 32)

func samplePinned() *Pinned {
	return &Pinned{
		Manager: "apt", Asked: []string{"libcap2", "libc6:i386"},
		Packages: []Package{
			{Name: "libcap2", Version: "1:2.66-4", Architecture: "amd64", Size: 2700, SHA256: store.Digest("sha256:" + hexed), URL: "http://mirror.example/libcap2_2.66-4_amd64.deb"},
			{Name: "libc6", Version: "2.36-9", Architecture: "i386", Size: 1, SHA256: store.Digest("sha256:" + hexed), URL: "file:/repo/libc6.deb"},
		},
		Remove: []string{"exim4"},
	}
}

// A lock has one line for each package, and reads back as it was.
func TestLines(t *testing.T) {
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(samplePinned()); err != nil {
		t.Fatal(err)
	}
	want := `manager = 'apt'
asked = [
  'libcap2',
  'libc6:i386'
]
packages = [
  'libcap2 1:2.66-4 amd64 2700 sha256:HEX http://mirror.example/libcap2_2.66-4_amd64.deb',
  'libc6 2.36-9 i386 1 sha256:HEX file:/repo/libc6.deb'
]
remove = [
  'exim4'
]
`
	if diff := cmp.Diff(strings.ReplaceAll(want, "HEX", hexed), text.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var back Pinned
	if err := toml.NewDecoder(&text).DisallowUnknownFields().Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(samplePinned(), &back); diff != "" {
		t.Errorf("-wrote +read:\n%s", diff)
	}
	data, err := json.Marshal(samplePinned())
	if err != nil {
		t.Fatal(err)
	}
	var again Pinned
	if err := json.Unmarshal(data, &again); err != nil || !cmp.Equal(samplePinned(), &again) {
		t.Errorf("%v, %+v", err, again)
	}
}

// What a lock says is somebody's text: nothing of it may become another line of a plan or a path.
func TestHostileLines(t *testing.T) {
	good := "a 1 amd64 1 sha256:" + hexed + " http://m/a.deb"
	var p Package
	if err := p.UnmarshalText([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "a", good + " x", strings.Replace(good, "a", "../a", 1), strings.Replace(good, "a", "-a", 1), strings.Replace(good, "1", "1\nremove", 1),
		strings.Replace(good, "amd64", "a/b", 1), strings.Replace(good, " 1 sha", " -1 sha", 1), strings.Replace(good, " 1 sha", " x sha", 1),
		strings.Replace(good, "sha256:", "md5:", 1), strings.Replace(good, "http:", "", 1), strings.Replace(good, "m/a", "m\n/a", 1),
	} {
		if err := p.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken for %+v", bad, p)
		}
	}
}

func TestKey(t *testing.T) {
	base := samplePinned().Key()
	elsewhere := samplePinned()
	elsewhere.Packages[0].URL = "https://other.example/x.deb"
	if elsewhere.Key() != base {
		t.Error("where a package comes from is in the key")
	}
	for name, change := range map[string]func(*Pinned){
		"manager": func(p *Pinned) { p.Manager = "zypper" },
		"asked":   func(p *Pinned) { p.Asked = p.Asked[:1] },
		"content": func(p *Pinned) { p.Packages[0].SHA256 = store.DigestOf(nil) },
		"version": func(p *Pinned) { p.Packages[0].Version = "2" },
		"remove":  func(p *Pinned) { p.Remove = nil },
	} {
		p := samplePinned()
		change(p)
		if p.Key() == base {
			t.Errorf("%s is not in the key", name)
		}
	}
}

func TestLayerKey(t *testing.T) {
	p := samplePinned()
	base := LayerKey("base", p, layer.Options{})
	if LayerKey("base", p, layer.Options{Workers: 3}) != base {
		t.Error("the number of workers is in the key")
	}
	other := samplePinned()
	other.Remove = nil
	for name, key := range map[string]string{
		"base": LayerKey("other", p, layer.Options{}), "pinned": LayerKey("base", other, layer.Options{}),
		"compression": LayerKey("base", p, layer.Options{Compression: layer.Zstd}), "time": LayerKey("base", p, layer.Options{ModTime: layer.KeepTimes}),
	} {
		if key == base {
			t.Errorf("%s is not in the key", name)
		}
	}
}

func TestAptNames(t *testing.T) {
	for _, good := range []string{"git", "g++", "libc6:i386", "git=1:2.39.5-0+deb12u2", "libssl3:amd64=3.0~rc1", "python3.11"} {
		if err := (apt{}).check([]string{good}); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "-y", "--yes", "git-", "git=", "?essential", "~n^lib", "task^", "a b", "git/bookworm", "./x.deb", "/x.deb", "lib*", "GIT", "a\nb", "git=1 2"} {
		err := (apt{}).check([]string{bad})
		if err == nil || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got := foreignArchitectures([]string{"git", "libc6:i386", "x:i386=1", "y:any", "z:arm64"}); !cmp.Equal(got, []string{"i386", "arm64"}) {
		t.Error(got)
	}
}

func TestAptPinned(t *testing.T) {
	uris := `Reading package lists... Done
Note, selecting 'mawk' instead of 'awk'
'http://mirror.example/pool/z_1_all.deb' z_1_all.deb 10 SHA256:` + hexed + `
'http://user:secret@mirror.example/pool/libcap2_2.66-4_amd64.deb' libcap2_1%3a2.66-4_amd64.deb 2700 SHA256:` + hexed + `
`
	simulated := `NOTE: This is only a simulation!
Remv exim4 [4.96]
Inst libcap2 [1:2.60] (1:2.66-4 Debian:12.5/stable [amd64])
Inst z (1 Debian:12.5/stable [all])
Conf z (1 Debian:12.5/stable [all])
`
	got, err := aptPinned([]string{"z=1", "awk", "z"}, uris, simulated)
	if err != nil {
		t.Fatal(err)
	}
	want := &Pinned{
		Manager: "apt", Asked: []string{"mawk", "z"}, Remove: []string{"exim4"},
		Packages: []Package{
			{Name: "libcap2", Version: "1:2.66-4", Architecture: "amd64", Size: 2700, SHA256: store.Digest("sha256:" + hexed), URL: "http://mirror.example/pool/libcap2_2.66-4_amd64.deb"},
			{Name: "z", Version: "1", Architecture: "all", Size: 10, SHA256: store.Digest("sha256:" + hexed), URL: "http://mirror.example/pool/z_1_all.deb"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseURI(t *testing.T) {
	for bad, want := range map[string]string{
		"": "not understood", "'u' a_1_b.deb 1": "no SHA-256 of a 1", "'http://m/a' a_1_b.deb x SHA256:" + hexed: "not understood",
		"'http://m/a' a_1.deb 1 SHA256:" + hexed: "not understood", "'http://m/a' a_1_b.deb 1 MD5Sum:00": "no SHA-256 of a 1",
		"'http://m/a' a_1_b.deb 1 SHA256:00": "not understood", "'http://m/a' ..%2fa_1_b.deb 1 SHA256:" + hexed: "cannot be a package",
	} {
		if _, err := parseURI(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseURI(%q): %v, want %q", bad, err, want)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add(`'http://mirror.example/a' a_1%3a2_all.deb 12 SHA256:` + strings.Repeat("0", 64))
	f.Add(`'file:/repo/a.deb' a_1_all.deb 12 MD5Sum:00`)
	f.Fuzz(func(t *testing.T, line string) {
		p, err := parseURI(line)
		if err != nil {
			return
		}
		text, err := p.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back Package
		if err := back.UnmarshalText(text); err != nil || back != p {
			t.Errorf("%q is written %q and read %+v, %v", line, text, back, err)
		}
	})
}

func TestAptExplains(t *testing.T) {
	names := []string{"libibverbs1", "libibverbs-dev", "git", "gtick", "libssl3", "libssl-dev"}
	for _, test := range []struct{ complaint, want, hint string }{
		{"E: Unable to locate package libibverbs\n", "Unable to locate package libibverbs", `instead of "libibverbs", did you mean "libibverbs1"?`},
		{"E: Unable to locate package gti:i386\n", "gti:i386", `instead of "gti", did you mean "git"?`},
		{"E: Version '9' for 'git' was not found\n", "Version '9'", "the base's sources have git 1:2.39, 1:2.38"},
		{"E: Package 'awk' has no installation candidate\n", "no installation candidate", "awk is only a name"},
		{"E: Something else\nW: And this\n", "  Something else\n  And this", "check the names"},
	} {
		err := aptExplain([]string{"x"}, "", test.complaint, names, " git | 1:2.39 | http://m\n git | 1:2.38 | http://m\n git | 1:2.38 | http://n\n")
		if !strings.Contains(err.Error(), test.want) || !strings.Contains(fault.HintOf(err), test.hint) {
			t.Errorf("%q: %v\nhint: %s", test.complaint, err, fault.HintOf(err))
		}
	}
	said := "Reading package lists...\nThe following packages have unmet dependencies:\n a : Depends: b (>= 2) but 1 is to be installed\n"
	if err := aptExplain([]string{"a"}, said, "E: Unable to correct problems\n", nil, ""); !strings.Contains(err.Error(), "a : Depends: b (>= 2)") {
		t.Error(err)
	}
}

// A base's programs write the lists that its manager believes. Another base, of the same sources, must not see them.
func TestListsAreOfOneBase(t *testing.T) {
	st, base := fakeBase(t, "usr/bin/apt-get")
	listsOf := func(on []layer.Descriptor) string {
		q := &question{store: st, on: on, work: t.TempDir()}
		dir, done, err := q.lists(t.Context(), aptName, "deb http://deb.example stable main")
		if err != nil {
			t.Fatal(err)
		}
		done()
		return dir
	}
	other := []layer.Descriptor{{Digest: store.DigestOf([]byte("other"))}}
	if first := listsOf(base); first != listsOf(base) || first == listsOf(other) {
		t.Error("lists are not those of one base")
	}
}

func TestEndlessLine(t *testing.T) {
	var got []string
	w := &lineWriter{line: func(s string) { got = append(got, s) }}
	piece := bytes.Repeat([]byte("x"), 32<<10)
	for range 1000 {
		if n, err := w.Write(piece); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(w.partial) > maxLine || cap(w.partial) > 1<<20 {
		t.Errorf("%d bytes are kept, of room for %d", len(w.partial), cap(w.partial))
	}
	if _, err := w.Write([]byte("\nnext\n")); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(got[0]) > maxLine || got[1] != "next" {
		t.Errorf("%d lines", len(got))
	}
}

func empty() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil }

// fakeBase makes a base of empty files, executable.
func fakeBase(t *testing.T, names ...string) (*store.Store, []layer.Descriptor) {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w, err := layer.NewWriter(t.Context(), st, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, name := range names {
		for _, parent := range layer.Parents(name) {
			if err := w.Add(layer.Entry{Path: parent, Type: layer.Dir, Mode: 0o755}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Add(layer.Entry{Path: name, Type: layer.Regular, Mode: 0o755}, empty); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return st, []layer.Descriptor{d}
}

func TestBasesWithoutApt(t *testing.T) {
	for name, want := range map[string]string{
		"usr/bin/dnf5":     "dnf5, is not supported",
		"usr/bin/microdnf": "microdnf, is not supported",
		"usr/bin/zypper":   "/etc/zypp/repos.d has none",
		"usr/bin/dnf":      "names no package sources",
		"sbin/apk":         "apk, is not supported",
		"bin/sh":           "has no package manager",
		"usr/bin/apt-get":  "names no package sources",
	} {
		st, on := fakeBase(t, name)
		_, err := Resolve(t.Context(), st, Request{On: on, Packages: []string{"git"}})
		if err == nil || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
