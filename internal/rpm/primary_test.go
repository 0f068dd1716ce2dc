package rpm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// listed is a list of one package.
func listed(name, version, location, more string) string {
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="1">
<package type="rpm"><name>%s</name><arch>x86_64</arch><version epoch="1" ver="%s" rel="3.el9"/>
<checksum type="sha256" pkgid="YES">%s</checksum><summary>a &amp; b</summary><size package="123" installed="5" archive="6"/>
<location href="%s"/><format><rpm:license>MIT</rpm:license>%s</format></package></metadata>`, name, version, sum, location, more)
}

func readAll(text string) (all []*Package, err error) {
	err = ReadPrimary(strings.NewReader(text), func(p *Package) error {
		all = append(all, p)
		return nil
	})
	return all, err
}

func TestPrimary(t *testing.T) {
	all, err := readAll(listed("a", "1.0", "Packages/a/a.rpm", `
<rpm:provides><rpm:entry name="a" flags="EQ" epoch="1" ver="1.0" rel="3.el9"/></rpm:provides>
<rpm:requires><rpm:entry name="b" flags="GE" epoch="0" ver="2"/><rpm:entry name="(c if d)"/><rpm:entry name="/bin/sh" pre="1"/></rpm:requires>
<rpm:conflicts><rpm:entry name="e"/></rpm:conflicts><rpm:obsoletes><rpm:entry name="f" flags="LT" epoch="0" ver="2" rel="1"/></rpm:obsoletes>
<rpm:recommends><rpm:entry name="g"/></rpm:recommends><rpm:suggests><rpm:entry name="h"/></rpm:suggests><rpm:supplements><rpm:entry name="i"/></rpm:supplements>
<file>/usr/bin/a</file><file type="dir">/etc/a</file>`))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	p := all[0]
	got := fmt.Sprint(p, " ", p.Location, " ", p.Size, p.SHA256 == sum, p.Provides, p.Requires, p.Conflicts, p.Obsoletes, p.Suggests, p.Files)
	const want = "a-1:1.0-3.el9.x86_64 Packages/a/a.rpm 123 true [a = 1:1.0-3.el9] [b >= 2 (c if d) /bin/sh] [e] [f < 2-1] [g h] [/usr/bin/a /etc/a]"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for name, text := range map[string]string{
		"cut off":                listed("a", "1", "a.rpm", "")[:400],
		"a name of an option":    listed("-x", "1", "a.rpm", ""),
		"a name with a slash":    listed("../a", "1", "a.rpm", ""),
		"no version":             listed("a", "", "a.rpm", ""),
		"a version with a blank": listed("a", "1 2", "a.rpm", ""),
		"a location above":       listed("a", "1", "../a.rpm", ""),
		"a location elsewhere":   listed("a", "1", "/a.rpm", ""),
		"no location":            listed("a", "1", "", ""),
		"a bad relation":         listed("a", "1", "a.rpm", `<rpm:requires><rpm:entry name="(a"/></rpm:requires>`),
		"another hash":           strings.Replace(listed("a", "1", "a.rpm", ""), "sha256", "sha", 1),
		"a size that is none":    strings.Replace(listed("a", "1", "a.rpm", ""), `package="123"`, `package="-1"`, 1),
	} {
		if all, err := readAll(text); err == nil {
			t.Errorf("%s: %v", name, all)
		}
	}
}

func TestFileLists(t *testing.T) {
	var got []string
	err := ReadFileLists(strings.NewReader(`<filelists><package pkgid="x" name="a" arch="noarch"><version epoch="0" ver="1" rel="1"/>
<file>/usr/share/a</file><file type="dir">/usr/share/b</file></package><package pkgid="y"><file>/usr/share/b</file></package></filelists>`),
		map[string]bool{"/usr/share/b": true}, func(sum, name string) { got = append(got, sum+" "+name) })
	if want := []string{"x /usr/share/b", "y /usr/share/b"}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

func repomd(location, checksum, when string) string {
	return `<repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>1</revision><data type="primary"><checksum type="` + checksum + `">` + sum +
		`</checksum><location href="` + location + `"/><timestamp>` + when + `</timestamp><size>10</size></data></repomd>`
}

func TestRepomd(t *testing.T) {
	r, err := ParseRepomd([]byte(repomd("repodata/p.xml.gz", "sha256", "1700000000.5")))
	want := &Repomd{Date: time.Unix(1700000000, 0).UTC(), Indices: map[string]Index{"primary": {"repodata/p.xml.gz", 10, sum}}}
	if diff := cmp.Diff(want, r); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for name, text := range map[string]string{
		"nothing": "", "another document": "<html></html>", "elsewhere": repomd("../p", "sha256", "1"), "another hash": repomd("p", "md5", "1"),
		"no time": repomd("p", "sha256", "soon"), "a time before all": repomd("p", "sha256", "-1"), "cut off": repomd("p", "sha256", "1")[:100],
	} {
		if r, err := ParseRepomd([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// FuzzPrimary: what is read has a name, a hash and a place below the repository.
func FuzzPrimary(f *testing.F) {
	f.Add(listed("a", "1", "a.rpm", `<rpm:requires><rpm:entry name="b" flags="GE" ver="2"/></rpm:requires><file>/x</file>`))
	f.Fuzz(func(t *testing.T, text string) {
		all, _ := readAll(text)
		for _, p := range all {
			if !IsName(p.Name) || !isSHA256(p.SHA256) || checkLocation(p.Location) != nil {
				t.Errorf("%+v", p)
			}
		}
		_, _ = ParseRepomd([]byte(text))
	})
}
