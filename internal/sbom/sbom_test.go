package sbom

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/rpmdb"
)

const site = "opt/env/lib/python3.12/site-packages"

// list lists what is in files.
func list(t *testing.T, files map[string]string) *List {
	t.Helper()
	root := factstest.Dir{Path: factstest.WriteFiles(t, files)}
	f := &facts.Facts{Image: "team/app:1", Root: root}
	if err := root.All(func(i facts.Info) error {
		f.Paths = append(f.Paths, i)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l, err := Of(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var image = map[string]string{
	"etc/os-release": "PRETTY_NAME=\"Debian\"\nID=debian\nVERSION_ID=\"12\"\n",
	"var/lib/dpkg/status": "Package: libstdc++6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:12.2.0-14+deb12u1~x\nDescription: a\n b\n Package: no\n" +
		"\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n\nPackage: tar\nStatus: install ok installed\nVersion: 1.34\nArchitecture: amd64\n",
	"usr/share/doc/tar/copyright":        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nFiles: *\nLicense: GPL-3+\n\nFiles: x\nLicense: BSD-2-Clause\n\nLicense: GPL-3+\n The text.\n",
	"usr/share/doc/libstdc++6/copyright": "This is for people.\nLicense: not one\n",
	"opt/env/conda-meta/numpy-2.0-py312_0.json": `{"name":"numpy","version":"2.0","build":"py312_0","subdir":"linux-64","channel":"https://user:secret@conda.example.org/t/token/conda-forge/linux-64",` +
		`"license":"BSD-3-Clause","sha256":"` + strings.Repeat("a", 64) + `","files":["lib/python3.12/site-packages/numpy-2.0.dist-info/METADATA"]}`,
	site + "/numpy-2.0.dist-info/METADATA":       "Metadata-Version: 2.1\nName: numpy\nVersion: 2.0\n",
	site + "/Typing_Ext-4.0.dist-info/METADATA":  "Metadata-Version: 2.4\nName: Typing_Ext\nVersion: 4.0+cu128\nLicense-Expression: PSF-2.0\n",
	site + "/Typing_Ext-4.0.dist-info/RECORD":    "",
	"srv/other/METADATA":                         "no metadata of Python",
	"usr/share/conda-meta-like/x.json":           "{}",
	"var/lib/dpkg/status.d/base.md5sums":         "0 x",
	"opt/env/conda-meta/history":                 "",
	"var/lib/dpkg/info/libstdc++6:amd64.md5sums": "",
}

// TestOf finds each package once, by the record of the manager that installed it.
func TestOf(t *testing.T) {
	l := list(t, image)
	var got []string
	for _, c := range l.Components {
		got = append(got, c.PURL+" "+strings.Join(c.Licenses, ",")+" "+c.SHA256)
	}
	want := []string{
		"pkg:conda/numpy@2.0?build=py312_0&channel=conda-forge&subdir=linux-64 BSD-3-Clause " + strings.Repeat("a", 64),
		"pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bdeb12u1~x?arch=amd64&distro=debian-12  ",
		"pkg:deb/debian/tar@1.34?arch=amd64&distro=debian-12 BSD-2-Clause,GPL-3+ ",
		"pkg:pypi/typing-ext@4.0%2Bcu128 PSF-2.0 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if len(l.Unread) > 0 {
		t.Errorf("unread: %q", l.Unread)
	}
}

// TestCycloneDX is the same document for the same image, says nothing of logins, and is another one for another image.
func TestCycloneDX(t *testing.T) {
	write := func(files map[string]string) []byte {
		out, err := list(t, files).cycloneDX("1.0")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := write(image)
	if !bytes.Equal(first, write(image)) {
		t.Error("the same image, another document")
	}
	var d document
	if err := json.Unmarshal(first, &d); err != nil {
		t.Fatal(err)
	}
	if d.Compositions[0].Aggregate != "complete" || len(d.Components) != 4 || d.Components[0].Hashes[0].Algorithm != "SHA-256" || d.Metadata.Component.Name != "team/app:1" {
		t.Errorf("%+v", d)
	}
	for _, secret := range []string{"secret", "token"} {
		if bytes.Contains(first, []byte(secret)) {
			t.Errorf("it says %q", secret)
		}
	}
	var other document
	if err := json.Unmarshal(write(map[string]string{"etc/os-release": "ID=x\n"}), &other); err != nil || other.Serial == d.Serial || len(other.Serial) != len("urn:uuid:")+36 {
		t.Errorf("%s and %s, %v", d.Serial, other.Serial, err)
	}
}

// TestDistributions reads the records of Alpine. What rpm writes is tested where its database is read.
func TestDistributions(t *testing.T) {
	l := list(t, map[string]string{
		"etc/os-release":       "ID=alpine\nVERSION_ID=3.20.1\n",
		"lib/apk/db/installed": "C:Q1abc\nP:musl\nV:1.2.5-r0\nA:x86_64\nL:MIT\nF:lib\nR:libc.so\n\nP:busybox\nV:1.36.1-r29\nA:x86_64\nL:GPL-2.0-only\n",
	})
	var got []string
	for _, c := range l.Components {
		got = append(got, c.PURL+" "+strings.Join(c.Licenses, ","))
	}
	want := []string{
		"pkg:apk/alpine/busybox@1.36.1-r29?arch=x86_64&distro=alpine-3.20.1 GPL-2.0-only",
		"pkg:apk/alpine/musl@1.2.5-r0?arch=x86_64&distro=alpine-3.20.1 MIT",
	}
	if !slices.Equal(got, want) || len(l.Unread) > 0 {
		t.Errorf("%q, %q", got, l.Unread)
	}
}

// TestRPM lists a package as purl wants it, with its epoch, and no key of a signer.
func TestRPM(t *testing.T) {
	r := &reader{list: &List{}, id: "rocky", distro: "rocky-9.4"}
	r.addRPM(rpmdb.Package{Name: "bind-libs", Version: "9.16.23", Release: "18.el9", Epoch: "32", Arch: "x86_64", License: "MPLv2.0", Source: "bind-9.16.23-18.el9.src.rpm"}, "var/lib/rpm/rpmdb.sqlite")
	r.addRPM(rpmdb.Package{Name: "nodejs", Version: "18", Arch: "noarch", License: "(none)", Module: "nodejs:18:9:rhel9"}, "var/lib/rpm/rpmdb.sqlite")
	for i, want := range []Component{
		{
			Name: "bind-libs", Version: "32:9.16.23-18.el9", Licenses: []string{"MPLv2.0"}, Found: "var/lib/rpm/rpmdb.sqlite",
			PURL: "pkg:rpm/rocky/bind-libs@9.16.23-18.el9?arch=x86_64&distro=rocky-9.4&epoch=32&upstream=bind-9.16.23-18.el9.src.rpm",
		},
		{
			Name: "nodejs", Version: "18", Found: "var/lib/rpm/rpmdb.sqlite",
			PURL: "pkg:rpm/rocky/nodejs@18?arch=noarch&distro=rocky-9.4&rpmmod=nodejs:18:9:rhel9",
		},
	} {
		if diff := cmp.Diff(want, r.list.Components[i]); diff != "" {
			t.Error(diff)
		}
	}
}

// TestExpression knows the licences of SPDX, and does not take others for one.
func TestExpression(t *testing.T) {
	for said, want := range map[string]string{
		"mit":                                  "MIT",
		"Apache-2.0 OR (mit and BSD-3-clause)": "Apache-2.0 OR (MIT AND BSD-3-Clause)",
		"GPL-2.0-only with Classpath-exception-2.0": "GPL-2.0-only WITH Classpath-exception-2.0",
		"LGPL-2.1+":              "LGPL-2.1+",
		"EUPL-1.2+":              "EUPL-1.2+",
		"GPLv2+ and MIT":         "",
		"MIT OR":                 "",
		"(MIT":                   "",
		"MIT MIT":                "",
		"MIT WITH MIT":           "",
		"":                       "",
		strings.Repeat("(", 500): "",
	} {
		if got, ok := expression(said); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", said, got, ok)
		}
	}
}

// TestIncomplete says what it could not read.
func TestIncomplete(t *testing.T) {
	for name, text := range map[string]string{
		"var/lib/rpm/rpmdb.sqlite":                          "x",
		"usr/lib/sysimage/rpm/Packages":                     "x",
		"var/lib/rpm/Packages":                              "Berkeley",
		"var/lib/rpm/rpmdb.sqlite-wal":                      "x",
		"lib/apk/db/installed":                              "P:musl\n",
		"opt/env/conda-meta/a-1-0.json":                     "{",
		site + "/a-1.dist-info/METADATA":                    "no header",
		"usr/lib/python3/dist-packages/b.egg-info/PKG-INFO": "Name: b\n",
	} {
		l := list(t, map[string]string{name: text})
		if len(l.Unread) != 1 || len(l.Components) != 0 {
			t.Errorf("%s: %q, %v", name, l.Unread, l.Components)
		}
		if out, err := l.cycloneDX(""); err != nil || !bytes.Contains(out, []byte(`"incomplete"`)) {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}
