package rpmdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// specs are packages without files; the database of rpm keeps the same of them as of others. The long one takes pages beyond the leaf's.
var specs = map[string]string{
	"plain":  "Name: plain\nVersion: 1.2~rc1\nRelease: 3.el9\nLicense: GPLv2+ and MIT\nSummary: s\nBuildArch: noarch\n",
	"epochs": "Name: epochs\nEpoch: 7\nVersion: 2\nRelease: 1\nLicense: Apache-2.0\nSummary: s\nBuildArch: noarch\n",
	"long":   "Name: long\nVersion: 1\nRelease: 1\nLicense: BSD\nSummary: s\nBuildArch: noarch\n",
	"module": "Name: module\nVersion: 1\nRelease: 1\nLicense: MIT\nSummary: s\nBuildArch: noarch\nModularityLabel: nodejs:18:1:abc\n",
}

// database is the file of a database that rpm made, with count packages besides those of specs.
func database(t *testing.T, count int) []byte {
	t.Helper()
	for _, tool := range []string{"rpm", "rpmbuild"} {
		tooltest.Path(t, tool)
	}
	dir := t.TempDir()
	all := map[string]string{}
	for name, text := range specs {
		all[name] = text
	}
	for i := range count {
		name := fmt.Sprintf("many%03d", i)
		all[name] = strings.ReplaceAll(specs["plain"], "Name: plain", "Name: "+name)
	}
	args := []string{"-bb", "--quiet", "--define", "_topdir " + dir, "--define", "_rpmdir " + dir + "/out"}
	for name, text := range all {
		spec := filepath.Join(dir, name+".spec")
		description := "\n%description\nd\n%files\n"
		if name == "long" {
			description = "\n%description\n" + strings.Repeat("It is long. ", 3000) + "\n%files\n"
		}
		if err := os.WriteFile(spec, []byte(text+description), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, spec)
	}
	run(t, "rpmbuild", args...)
	packages, err := filepath.Glob(filepath.Join(dir, "out/noarch/*.rpm"))
	if err != nil || len(packages) != len(all) {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	run(t, "rpm", append([]string{"--dbpath", dir + "/db", "--define", "_db_backend sqlite", "-i", "--justdb", "--nodeps", "--ignorearch", "--nosignature"}, packages...)...)
	data, err := os.ReadFile(filepath.Join(dir, "db/rpmdb.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

func read(data []byte) (map[string]Package, error) {
	all, err := Read(bytes.NewReader(data), int64(len(data)))
	named := map[string]Package{}
	for _, p := range all {
		named[p.Name] = p
	}
	return named, err
}

// TestSQLite reads what rpm has written, also where the table has pages above its leaves.
func TestSQLite(t *testing.T) {
	data := database(t, 60)
	all, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 100; cut < len(data)-4096; cut += 5000 {
		if some, err := read(data[:cut]); err == nil {
			t.Errorf("%d packages in the first %d bytes of %d", len(some), cut, len(data))
		}
	}
	if len(all) != len(specs)+60 {
		t.Errorf("%d packages", len(all))
	}
	for _, want := range []Package{
		{Name: "plain", Version: "1.2~rc1", Release: "3.el9", Arch: "noarch", License: "GPLv2+ and MIT", Source: "plain-1.2~rc1-3.el9.src.rpm"},
		{Name: "epochs", Version: "2", Release: "1", Epoch: "7", Arch: "noarch", License: "Apache-2.0", Source: "epochs-2-1.src.rpm"},
		{Name: "long", Version: "1", Release: "1", Arch: "noarch", License: "BSD", Source: "long-1-1.src.rpm"},
		{Name: "module", Version: "1", Release: "1", Arch: "noarch", License: "MIT", Source: "module-1-1.src.rpm", Module: "nodejs:18:1:abc"},
	} {
		if diff := cmp.Diff(want, all[want.Name]); diff != "" {
			t.Error(diff)
		}
	}
}

// header makes a header of a name and a version.
func header(name, version string) []byte {
	var values []byte
	var entries []byte
	for tag, text := range map[uint32]string{tagName: name, tagVersion: version, tagRelease: "1"} {
		entries = binary.BigEndian.AppendUint32(entries, tag)
		entries = binary.BigEndian.AppendUint32(entries, typeString)
		entries = binary.BigEndian.AppendUint32(entries, uint32(len(values)))
		entries = binary.BigEndian.AppendUint32(entries, 1)
		values = append(values, text+"\x00"...)
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(len(entries)/entrySize))
	out = binary.BigEndian.AppendUint32(out, uint32(len(values)))
	return append(append(out, entries...), values...)
}

// ndb makes a database of ndb from its structures: Debian's rpm cannot write one.
func ndb(headers ...[]byte) []byte {
	u32 := binary.LittleEndian.AppendUint32
	out := make([]byte, ndbHeader)
	copy(out, ndbMagic)
	out[12] = 1 // page of slots
	var blobs []byte
	for i, h := range headers {
		out = append(out, ndbSlotMagic...)
		out = u32(out, uint32(i+1))
		out = u32(out, uint32(ndbPage+len(blobs))/ndbBlock)
		out = u32(out, uint32(len(h)+2*ndbBlock-1)/ndbBlock)
		blobs = append(blobs, ndbBlobMagic...)
		blobs = u32(u32(u32(blobs, uint32(i+1)), 1), uint32(len(h)))
		blobs = append(blobs, h...)
		blobs = append(blobs, make([]byte, (ndbBlock-len(blobs)%ndbBlock)%ndbBlock)...)
	}
	for len(out) < ndbPage {
		out = append(out, ndbSlotMagic...)
		out = append(out, make([]byte, 12)...)
	}
	return append(out, blobs...)
}

func TestNDB(t *testing.T) {
	all, err := read(ndb(header("zypper", "1.14"), header("libzypp", "17")))
	if err != nil || len(all) != 2 || all["zypper"].Version != "1.14" || all["libzypp"].Release != "1" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestDamaged is an error, whatever is wrong.
func TestDamaged(t *testing.T) {
	good := ndb(header("a", "1"))
	for name, data := range map[string][]byte{
		"too short":           []byte("SQLite"),
		"no pages":            []byte(sqliteMagic),
		"a blob beyond":       good[:ndbPage+20],
		"a version of ndb":    append([]byte("RpmP\x01"), good[5:]...),
		"slots beyond":        good[:100],
		"a header of nothing": ndb([]byte{0, 0, 0, 0, 0, 0, 0, 0}),
		"values beyond":       ndb([]byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff}),
	} {
		if _, err := read(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := read([]byte(strings.Repeat("Berkeley", 3))); !errors.Is(err, ErrFormat) {
		t.Errorf("another format: %v", err)
	}
	circle := make([]byte, 1024)
	copy(circle, sqliteMagic)
	copy(circle[16:], "\x02\x00")
	circle[100] = interiorPage
	copy(circle[108:], "\x00\x00\x00\x01") // below it: itself
	if _, err := read(circle); !errors.Is(err, errSQLite) {
		t.Errorf("a circle: %v", err)
	}
}

// FuzzRead ends, without much memory, whatever it is given; and what it gives has a name.
func FuzzRead(f *testing.F) {
	f.Add(ndb(header("a", "1")))
	page := make([]byte, 512)
	copy(page, sqliteMagic)
	copy(page[16:], "\x02\x00")
	page[100] = leafPage
	f.Add(page)
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Read(bytes.NewReader(data), int64(len(data)))
		for _, p := range all {
			if p.Name == "" || p.Version == "" {
				t.Errorf("%+v, %v", p, err)
			}
		}
	})
}
