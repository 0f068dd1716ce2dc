package zipread

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// archive returns a zip of members that are stored, each a name and a text.
func archive(t testing.TB, descriptors bool, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		h := &zip.FileHeader{Name: members[i], Method: zip.Store}
		create := z.CreateRaw
		if descriptors {
			create = z.CreateHeader
		} else {
			h.CRC32, h.CompressedSize64, h.UncompressedSize64 = crc32.ChecksumIEEE([]byte(members[i+1])), uint64(len(members[i+1])), uint64(len(members[i+1]))
		}
		w, err := create(h)
		if err == nil {
			_, err = io.WriteString(w, members[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// put changes bytes of a copy of data.
func put(data []byte, at int, what string) []byte {
	return append(append(bytes.Clone(data[:at]), what...), data[at+len(what):]...)
}

// inserted puts bytes into a copy of data. Nothing that says where something is changes with it.
func inserted(data []byte, at int, what []byte) []byte {
	return append(append(bytes.Clone(data[:at]), what...), data[at:]...)
}

func short(n int) string { return string(binary.LittleEndian.AppendUint16(nil, uint16(n))) }
func long(n int) string  { return string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
func wide(n int) string  { return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) }

// moved sets where the archive's end says that its directory begins, and what the directory says of its n-th member's header.
func moved(data []byte, by int, entries ...int) []byte {
	end := bytes.LastIndex(data, []byte(signEnd))
	at := int(le.Uint32(data[end+16:]))
	data = put(data, end+16, long(at+by))
	at += by
	for i := 0; ; i++ {
		if string(data[at:at+4]) != signEntry {
			return data
		}
		for _, n := range entries {
			if n == i {
				data = put(data, at+42, long(int(le.Uint32(data[at+42:]))+by))
			}
		}
		at += lenEntry + int(le.Uint16(data[at+28:])) + int(le.Uint16(data[at+30:])) + int(le.Uint16(data[at+32:]))
	}
}

// zip64 gives an archive the ends of one that is large: with the numbers of its real end, changed.
func zip64(data []byte, change func(at, size, count int) (int, int, int), saturate bool) []byte {
	end := bytes.LastIndex(data, []byte(signEnd))
	count, size, at := change(int(le.Uint16(data[end+10:])), int(le.Uint32(data[end+12:])), int(le.Uint32(data[end+16:])))
	record := signEnd64 + wide(lenEnd64-12) + short(45) + short(45) + long(0) + long(0) + wide(count) + wide(count) + wide(size) + wide(at)
	locator := signLocator + long(0) + wide(end) + long(1)
	if saturate {
		data = put(data, end+8, short(far16)+short(far16)+long(far32)+long(far32))
	}
	return inserted(data, end, []byte(record+locator))
}

func asTheyAre(count, size, at int) (int, int, int) { return count, size, at }

// Each of these is one archive to some programs, and another to others.
func TestTwoReadings(t *testing.T) {
	plain := archive(t, false, "a.py", "good", "b.py", "evil")
	second := bytes.Index(plain[4:], []byte(signHeader)) + 4
	directory := bytes.Index(plain, []byte(signEntry))
	one := archive(t, false, "a.py", "good")
	hidden, _, _ := bytes.Cut(archive(t, false, "h.py", "evil"), []byte(signEntry))
	described := archive(t, true, "a.py", "good", "b.py", "evil")
	descriptor := bytes.Index(described, []byte(signDescriptor))
	extra := func(field string) []byte { // of the first member's own header
		data := put(plain, 28, short(len(field)))
		return moved(inserted(data, lenHeader+4, []byte(field)), len(field), 1)
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"something follows":                  {append(bytes.Clone(plain), "more"...), "something follows"},
		"another archive follows":            {append(bytes.Clone(one), plain...), "something stands before"},
		"another archive in the comment":     {append(put(plain, len(plain)-2, short(len(one))), one...), "something stands before"},
		"something stands before it":         {append([]byte("#!/bin/sh\n"), plain...), "something stands before"},
		"something stands before, corrected": {moved(append([]byte("#!/bin/sh\n"), plain...), 10, 0, 1), "no member that its directory lists"},
		"a member that is not listed":        {moved(inserted(plain, second, hidden), len(hidden), 1), "no member that its directory lists"},
		"a member before the directory":      {moved(inserted(plain, directory, hidden), len(hidden)), "no member that its directory lists"},
		"a name of its own":                  {put(plain, lenHeader, "x.py"), "its own header says something else"},
		"a size of its own":                  {put(plain, 22, long(3)), "its own header says something else"},
		"a packed size of its own":           {put(plain, 18, long(3)), "its own header says something else"},
		"a method of its own":                {put(plain, 8, short(8)), "its own header says something else"},
		"a checksum of its own":              {put(plain, 14, long(1)), "its own header says something else"},
		"a name's own spelling":              {put(plain, 6, short(flagUTF8)), "its own header says something else"},
		"a size of 8 bytes":                  {put(extra("\x01\x00\x10\x00"+wide(3)+wide(4)), 22, long(far32)), "its own header says something else"},
		"two sizes of 8 bytes":               {extra(strings.Repeat("\x01\x00\x10\x00"+wide(4)+wide(4), 2)), "two sizes"},
		"a second name":                      {extra("\x75\x70\x0d\x00\x01" + long(0) + "evil.py\x00"), "second name"},
		"a member twice":                     {archive(t, false, "a.py", "good", "a.py", "evil"), "twice"},
		"a header in a header":               {extra("\xff\xff" + short(len(hidden)) + string(hidden)), ""},
		"stacked headers":                    {stacked(plain), "overlaps"},
		"another descriptor":                 {put(described, descriptor+12, long(3)), "what stands behind its data"},
		"a long descriptor":                  {moved(inserted(described, descriptor+16, make([]byte, 8)), 8, 1), "what stands behind its data"},
		"a member behind a descriptor":       {moved(inserted(described, descriptor+16, hidden), len(hidden), 1), "no member that its directory lists"},
		"two ends":                           {zip64(plain, func(count, size, at int) (int, int, int) { return count, size, at - 1 }, false), "two ends"},
		"two counts":                         {zip64(plain, func(count, size, at int) (int, int, int) { return count - 1, size, at }, false), "two ends"},
		"a count that is too small":          {put(plain, len(plain)-lenEnd+8, short(1)+short(1)), ""},
		"a part of many":                     {put(plain, len(plain)-lenEnd+8, short(1)), "several files"},
		"cut off":                            {plain[:len(plain)-1], ""},
		"empty":                              {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(bytes.NewReader(test.data), int64(len(test.data)))
			if name == "a header in a header" { // the same member, whoever reads it
				if err != nil {
					t.Errorf("a header in an extra field is none: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want it to say %q", err, test.want)
			}
		})
	}
}

// stacked makes the second member of an archive lie in the data of the first.
func stacked(data []byte) []byte {
	directory := bytes.Index(data, []byte(signEntry))
	size := directory - lenHeader - 4
	for _, at := range []int{18, 22, directory + 20, directory + 24} {
		data = put(data, at, long(size))
	}
	return data
}

// What programs write is taken, however they write it.
func TestOneReading(t *testing.T) {
	plain := archive(t, false, "a.py", "good", "d/", "", "ü.py", "good")
	for name, data := range map[string][]byte{
		"sizes in front":         plain,
		"sizes behind":           archive(t, true, "a.py", "good", "d/", "", "e", ""),
		"nothing":                archive(t, false),
		"a comment":              append(put(plain, len(plain)-2, short(5)), "hello"...),
		"a large one's ends":     zip64(plain, asTheyAre, true),
		"both kinds of an end":   zip64(plain, asTheyAre, false),
		"sizes without the mark": unmarked(archive(t, true, "a.py", "good")),
	} {
		z, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err == nil {
				_, err = io.ReadAll(r)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", name, f.Name, err)
			}
		}
	}
}

// unmarked takes the signature of a descriptor away.
func unmarked(data []byte) []byte {
	at := bytes.Index(data, []byte(signDescriptor))
	return moved(append(bytes.Clone(data[:at]), data[at+4:]...), -4)
}

const pythons = `
import sys, zipfile, io
class Stream(io.RawIOBase):
    def __init__(self, f): self.f = f
    def writable(self): return True
    def write(self, b): return self.f.write(b)
d = sys.argv[1]
for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(f"{d}/file-{method}.zip", "w", method) as z:
        z.writestr("a", "x" * 1000); z.writestr("ü", ""); z.mkdir("d") if hasattr(z, "mkdir") else None
        with z.open("large", "w", force_zip64=True) as f: f.write(b"y" * 5000)
    with zipfile.ZipFile(f"{d}/file-{method}.zip", "a", method) as z:
        z.writestr("b", "added")
    with open(f"{d}/stream-{method}.zip", "wb") as out, zipfile.ZipFile(Stream(out), "w", method) as z:
        z.writestr("a", "x" * 1000); z.writestr("b", "")
        with z.open("large", "w", force_zip64=True) as f: f.write(b"y" * 5000)
`

// Python writes most of the archives that are read.
func TestPythonsArchives(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(tooltest.Path(t, "python3"), "-c", pythons, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.zip"))
	if len(files) != 4 {
		t.Fatalf("Python wrote %v", files)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(bytes.NewReader(data), int64(len(data))); err != nil {
			t.Errorf("%s: %v", filepath.Base(name), err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(archive(f, false, "a.py", "good", "b.py", "evil"))
	f.Add(archive(f, true, "a.py", "good", "b.py", "evil"))
	f.Add(zip64(archive(f, true, "a.py", "good"), asTheyAre, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		var total uint64
		for _, m := range z.File {
			if total += m.CompressedSize64; total > uint64(len(data)) {
				t.Errorf("members of %d bytes in an archive of %d", total, len(data))
			}
		}
	})
}
