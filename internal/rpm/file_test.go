package rpm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/rpm/rpmtest"
)

// header makes one of values by their tags.
func header(values map[uint32]any) []byte {
	var entries, data []byte
	u32 := binary.BigEndian.AppendUint32
	for _, tag := range slices.Sorted(maps.Keys(values)) {
		kind, count, at := uint32(0), 1, len(data)
		switch v := values[tag].(type) {
		case string:
			kind, data = 6, append(data, v+"\x00"...)
		case []string:
			kind, count, data = 8, len(v), append(data, strings.Join(append(v, ""), "\x00")...)
		case []uint32:
			kind, count = 4, len(v)
			for _, n := range v {
				data = u32(data, n)
			}
		case []uint64:
			kind, count = 5, len(v)
			for _, n := range v {
				data = binary.BigEndian.AppendUint64(data, n)
			}
		case []byte:
			kind, count, data = 7, len(v), append(data, v...)
		}
		entries = u32(u32(u32(u32(entries, tag), kind), uint32(at)), uint32(count))
	}
	out := append(slices.Clone(headerMagic), u32(u32(nil, uint32(len(entries)/16)), uint32(len(data)))...)
	return append(append(out, entries...), data...)
}

// file is one of a made package.
type file struct {
	name, link, content string
	mode                uint32
	inode               uint32 // 0 for one of its own
}

// made makes a package file of files and of its archive.
func made(files []file, archive []byte, change ...func(map[uint32]any)) []byte {
	values := map[uint32]any{1000: "p", 1001: "1", 1002: "1", 1022: "noarch"}
	var names, dirs, links []string
	var indexes, modes, devices, inodes []uint32
	var sizes []uint64
	for i, f := range files {
		at := strings.LastIndex(f.name, "/") + 1
		names, dirs, links = append(names, f.name[at:]), append(dirs, f.name[:at]), append(links, f.link)
		size := len(f.content)
		if f.mode&unix.S_IFMT == unix.S_IFLNK {
			size = len(f.link)
		}
		inode := f.inode
		if inode == 0 {
			inode = uint32(1000 + i)
		}
		indexes, modes, sizes, devices, inodes = append(indexes, uint32(i)), append(modes, f.mode), append(sizes, uint64(size)), append(devices, 1), append(inodes, inode)
	}
	if len(files) > 0 {
		maps.Copy(values, map[uint32]any{
			tagBaseNames: names, tagDirNames: dirs, tagDirIndexes: indexes, tagFileModes: modes, tagLongFileSizes: sizes, tagFileLinks: links,
			tagFileDevices: devices, tagFileInodes: inodes,
		})
	}
	for _, c := range change {
		c(values)
	}
	out := append(slices.Clone(leadMagic), make([]byte, leadSize-4)...)
	signatures := header(map[uint32]any{1000: []uint32{1}})
	out = append(append(out, signatures...), make([]byte, -len(signatures)&7)...)
	return append(append(out, header(values)...), archive...)
}

// stripped is an archive as packages with large files have it.
func stripped(files []file) []byte {
	var out []byte
	for i, f := range files {
		out = append(out, pad(fmt.Appendf(nil, "07070X%08x", i))...)
		content := f.content
		if f.mode&unix.S_IFMT == unix.S_IFLNK {
			content = f.link
		}
		if f.inode != 0 && slices.ContainsFunc(files[i+1:], func(o file) bool { return o.inode == f.inode }) {
			content = ""
		}
		out = append(out, pad([]byte(content))...)
	}
	return append(out, cpioMember("TRAILER!!!", "")...)
}

func pad(data []byte) []byte { return append(data, make([]byte, -len(data)&3)...) }

// cpioMember is a file of an archive as most packages have it.
func cpioMember(name, content string) []byte {
	out := []byte("070701")
	for i := range cpioNumbers {
		n := 0
		switch i {
		case cpioSizeAt:
			n = len(content)
		case cpioNameAt:
			n = len(name) + 1
		}
		out = fmt.Appendf(out, "%08x", n)
	}
	return append(pad(append(out, name+"\x00"...)), pad([]byte(content))...)
}

// laid reads the files of a package: "mode name content", or "mode name -> link", or "mode name = other name".
func laid(data []byte) ([]string, error) {
	f, err := Open(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var all []string
	err = f.Files(func(e Entry, link string, content io.Reader) error {
		text, err := io.ReadAll(content)
		line := fmt.Sprintf("%o %s", e.Mode, e.Name)
		switch {
		case link != "":
			line += " = " + link
		case e.Mode&unix.S_IFMT == unix.S_IFLNK:
			line += " -> " + e.Link
		case e.Mode&unix.S_IFMT == unix.S_IFREG:
			line += fmt.Sprintf(" %d:%.10s", len(text), text)
		}
		all = append(all, line)
		return err
	})
	return all, err
}

var large = []file{
	{name: "/usr", mode: unix.S_IFDIR | 0o755},
	{name: "/usr/a", mode: unix.S_IFREG | 0o644, content: "hello", inode: 5},
	{name: "/usr/b", mode: unix.S_IFREG | 0o644, content: "hello", inode: 5},
	{name: "/usr/c", mode: unix.S_IFLNK | 0o777, link: "../x"},
	{name: "/usr/d", mode: unix.S_IFREG | 0o600, content: "abc"},
}

// Packages with files of more than 4 GiB have archives without names.
func TestStripped(t *testing.T) {
	got, err := laid(made(large, stripped(large)))
	want := []string{"40755 usr", "100644 usr/a = usr/b", "100644 usr/b 5:hello", "120777 usr/c -> ../x", "100600 usr/d 3:abc"}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// rpmbuild makes packages, rpmsign signs them, and rpm says what is in them.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	var packages []rpmtest.Package
	payloads := map[string]string{"gz": "w9.gzdio", "xz": "w2.xzdio", "zstd": "w3.zstdio"}
	for name, payload := range payloads {
		packages = append(packages, rpmtest.Package{
			Name: name, Version: "1.2~rc1", Head: "Epoch: 3\nProvides: x = 2\nRequires: (a or b >= 3)", Payload: payload,
			Install: "mkdir -p usr/share/d\nhead -c 100000 /dev/zero > usr/share/d/big\nprintf hello > usr/share/d/a\nln usr/share/d/a usr/share/d/b\nln -s a usr/share/d/c\n",
			Files:   "/usr/share/d\n%attr(4711,daemon,daemon) /usr/share/d/big\n%ghost /usr/share/d/none",
		})
		packages[len(packages)-1].Install += "touch usr/share/d/none\n"
	}
	rpmtest.Build(t, dir, packages...)
	signer := rpmtest.NewSigner(t)
	signer.SignPackages(t, dir)
	for name := range payloads {
		found, err := filepath.Glob(filepath.Join(dir, name+"-*.rpm"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		data, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(f.Name, " ", f.Version(), " ", f.Provides, f.Requires); !strings.HasPrefix(got, name+" 3:1.2~rc1-1 [") ||
			!strings.Contains(got, "x = 2") || !strings.Contains(got, "[(a or b >= 3) ") {
			t.Error(got)
		}
		var mine strings.Builder
		for _, e := range f.Entries {
			fmt.Fprintf(&mine, "/%s %o %d\n", e.Name, e.Mode, e.Size)
		}
		theirs := rpmtest.Run(t, exec.CommandContext(t.Context(), "rpm", "-qp", "--nosignature", "--qf", `[%{FILENAMES} %{FILEMODES:octal} %{LONGFILESIZES}\n]`, found[0]))
		if diff := cmp.Diff(theirs, mine.String()); diff != "" {
			t.Errorf("%s (-rpm +mine): %s", name, diff)
		}
		got, err := laid(data)
		want := []string{
			"40755 usr/share/d", "100644 usr/share/d/a = usr/share/d/b", "100644 usr/share/d/b 5:hello", "104711 usr/share/d/big 100000:" + strings.Repeat("\x00", 10),
			"120777 usr/share/d/c -> a",
		}
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		signatures(t, data, signer)
	}
}

// signatures: one changed byte anywhere but in what nobody signs, and the package is not what was signed.
func signatures(t *testing.T, data []byte, signer *rpmtest.Signer) {
	t.Helper()
	text, err := os.ReadFile(signer.File)
	if err != nil {
		t.Fatal(err)
	}
	keys := &debian.Keyring{}
	if err := keys.Add(text); err != nil {
		t.Fatal(err)
	}
	verify := func(data []byte, keys *debian.Keyring) error {
		f, err := Open(bytes.NewReader(data))
		if err != nil {
			return err
		}
		return f.Verify(keys, time.Now())
	}
	if err := verify(data, keys); err != nil {
		t.Error(err)
	}
	var unknown *debian.UnknownKeyError
	if err := verify(data, &debian.Keyring{}); !errors.As(err, &unknown) {
		t.Errorf("nobody's key: %v", err)
	}
	begin := bytes.LastIndex(data, headerMagic)
	for at := begin; at < len(data); at += 1 + (len(data)-begin)/300 {
		changed := slices.Clone(data)
		changed[at] ^= 0x20
		if verify(changed, keys) == nil {
			t.Errorf("byte %d is another, and that is believed", at)
		}
	}
	for cut := 0; cut < len(data); cut += 1 + len(data)/300 {
		if verify(data[:cut], keys) == nil {
			t.Errorf("the first %d bytes are believed", cut)
		}
	}
}

// What is wrong is an error, and nothing of it is laid down.
func TestHostile(t *testing.T) {
	regular := func(name string) file { return file{name: name, mode: unix.S_IFREG | 0o644, content: "x"} }
	archive := func(members ...[]byte) []byte {
		return append(slices.Concat(members...), cpioMember("TRAILER!!!", "")...)
	}
	one := []file{regular("/a")}
	set := func(tag uint32, value any) func(map[uint32]any) {
		return func(m map[uint32]any) { m[tag] = value }
	}
	if _, err := laid(made(one, archive(cpioMember("./a", "x")))); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"nothing":                       nil,
		"a lead alone":                  made(nil, nil)[:leadSize],
		"above the root":                made([]file{regular("/../a")}, archive(cpioMember("./../a", "x"))),
		"above the root, in between":    made([]file{regular("/a/../../b")}, archive()),
		"a control character":           made([]file{regular("/a\nb")}, archive()),
		"not listed":                    made(one, archive(cpioMember("./b", "x"))),
		"not listed, with ..":           made(one, archive(cpioMember("./../b", "x"))),
		"larger than listed":            made(one, archive(cpioMember("./a", "xy"))),
		"smaller than listed":           made(one, archive(cpioMember("./a", ""))),
		"twice, and again":              made(one, archive(cpioMember("./a", "x"), cpioMember("./a", "x"), cpioMember("./a", "x"))),
		"without an end":                made(one, cpioMember("./a", "x")),
		"an archive of something else":  made(one, []byte("PK\x03\x04........................")),
		"an index beyond":               made(one, append([]byte("07070Xffffffff"), 0, 0)),
		"an index that is none":         made(one, append([]byte("07070X-0000001"), 0, 0)),
		"a name of 4 GiB":               made(one, append([]byte("070701"), bytes.Repeat([]byte("ffffffff"), cpioNumbers)...)),
		"another compressor":            made(one, archive(cpioMember("./a", "x")), set(tagCompressor, "bzip2")),
		"another archiver":              made(one, archive(cpioMember("./a", "x")), set(tagPayloadFormat, "drpm")),
		"fewer modes than names":        made(one, nil, set(tagFileModes, []uint32{})),
		"a directory beyond":            made(one, nil, set(tagDirIndexes, []uint32{7})),
		"a size of 2^63":                made(one, nil, set(tagLongFileSizes, []uint64{1 << 63})),
		"fewer versions than relations": made(nil, nil, set(tagRequireName, []string{"a"}), set(tagRequireFlags, []uint32{0})),
		"a relation that is none":       made(nil, nil, set(tagRequireName, []string{"(a or"}), set(tagRequireFlags, []uint32{0}), set(tagRequireVersion, []string{""})),
		"a header of 64 GiB":            append(made(nil, nil)[:leadSize], append(slices.Clone(headerMagic), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)...),
		"a count beyond the values": func() []byte {
			data := made(one, nil)
			at := bytes.LastIndex(data, headerMagic) + 16
			for ; binary.BigEndian.Uint32(data[at:]) != tagBaseNames; at += 16 {
			}
			binary.BigEndian.PutUint32(data[at+12:], 1<<31)
			return data
		}(),
	} {
		if got, err := laid(data); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	// A package that nobody has signed, and one whose signed header knows nothing of its files.
	f, err := Open(bytes.NewReader(made(one, archive(cpioMember("./a", "x")))))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Verify(&debian.Keyring{}, time.Now()); !errors.Is(err, ErrUnsigned) {
		t.Error(err)
	}
	if err := f.verifyPayload(); err == nil || !strings.Contains(err.Error(), "RPM 4.14") {
		t.Error(err)
	}
	sum := sha256.Sum256([]byte("x"))
	f, err = Open(bytes.NewReader(made(nil, []byte("x"), set(tagPayloadDigest, []string{hex.EncodeToString(sum[:])}), set(tagPayloadHash, []uint32{hashSHA256}))))
	if err != nil || f.verifyPayload() != nil {
		t.Error(err)
	}
}

// FuzzOpen ends, without much memory, whatever it is given; and no name leads out of the root.
func FuzzOpen(f *testing.F) {
	f.Add(made(large, stripped(large)))
	f.Add(made([]file{{name: "/a", mode: unix.S_IFREG | 0o644, content: "x"}}, append(cpioMember("./a", "x"), cpioMember("TRAILER!!!", "")...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Open(bytes.NewReader(data))
		if err != nil {
			return
		}
		_ = p.Listed()
		_ = p.Verify(&debian.Keyring{}, time.Now())
		checked := func(name string) {
			if name != "." && !filepath.IsLocal(name) {
				t.Errorf("%q leads out", name)
			}
		}
		_ = p.Files(func(e Entry, link string, content io.Reader) error {
			checked(e.Name)
			if link != "" {
				checked(link)
			}
			_, err := io.Copy(io.Discard, content)
			return err
		})
	})
}

// FuzzCpio likewise, with a header that is right.
func FuzzCpio(f *testing.F) {
	f.Add(stripped(large))
	f.Add(slices.Concat(cpioMember("./usr", ""), cpioMember("./usr/d", "abc"), cpioMember("TRAILER!!!", "")))
	f.Fuzz(func(t *testing.T, archive []byte) {
		p, err := Open(bytes.NewReader(made(large, nil)))
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		_ = p.readCpio(bytes.NewReader(archive), func(e Entry, _ string, content io.Reader) error {
			got, err := io.Copy(io.Discard, content)
			n += got
			return err
		})
		if n > int64(len(archive)) {
			t.Errorf("%d bytes of %d", n, len(archive))
		}
	})
}
