package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func makeTar(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		data := h.Uname // the tests keep contents there
		h.Uname = "somebody"
		h.Gname = "users"
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			h.Size = int64(len(data))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, data); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// describe lists a layer's entries in one line each.
func describe(t *testing.T, ix *Index) []string {
	t.Helper()
	var lines []string
	for i, e := range ix.Entries {
		line := fmt.Sprintf("%s %c %o %d:%d", e.Path, typeFlags[e.Type], e.Mode, e.UID, e.GID)
		if e.Link != "" {
			line += " -> " + e.Link
		}
		if e.Type == Regular {
			line += fmt.Sprintf(" %q", readIndexed(t, ix, i))
		}
		lines = append(lines, line)
	}
	return lines
}

func TestFromTar(t *testing.T) {
	late := time.Unix(2_000_000_000, 0)
	early := time.Unix(100, 0)
	data := makeTar(
		t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./z", Uname: "content", ModTime: late, Uid: 7, PAXRecords: map[string]string{"SCHILY.xattr.user.k": "v"}},
		tar.Header{Name: "./a", Typeflag: tar.TypeLink, Linkname: "./z"},
		tar.Header{Name: "./m", Typeflag: tar.TypeLink, Linkname: "./a"},
		tar.Header{Name: "./gone/x", Uname: "lost with its directory"},
		tar.Header{Name: "./usr/bin/tool", Uname: "old", ModTime: early},
		tar.Header{Name: "./usr/bin/tool", Uname: "new", ModTime: early, Mode: 0o4755},
		tar.Header{Name: "./usr/", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "./gone", Uname: "file now"},
		tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666},
		tar.Header{Name: "./l", Typeflag: tar.TypeSymlink, Linkname: "/abs/../x", Mode: 0o777},
	)
	want := []string{
		`. 5 755 0:0`,
		`a 0 644 7:0 "content"`,
		`dev 5 755 0:0`,
		`dev/null 3 666 0:0`,
		`gone 0 644 0:0 "file now"`,
		`l 2 777 0:0 -> /abs/../x`,
		`m 1 644 7:0 -> a`,
		`usr 5 700 0:0`,
		`usr/bin 5 755 0:0`,
		`usr/bin/tool 0 4755 0:0 "new"`,
		`z 1 644 7:0 -> a`,
	}
	st := storetest.Alone(t)
	seekable, err := FromTar(t.Context(), st, bytes.NewReader(data), Options{})
	if err != nil {
		t.Fatal(err)
	}
	piped, err := FromTar(t.Context(), st, io.MultiReader(bytes.NewReader(data)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if seekable != piped {
		t.Errorf("from a file %+v, from a pipe %+v", seekable, piped)
	}
	ix, err := OpenIndex(t.Context(), st, piped)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, describe(t, ix)); diff != "" {
		t.Errorf("layer differs (-want +got):\n%s", diff)
	}
	if e := ix.Entries[1]; !e.ModTime.Equal(DefaultModTime) || e.Xattrs["user.k"] != "v" {
		t.Errorf("a: time %v, attributes %v", e.ModTime, e.Xattrs)
	}
	if e := ix.Entries[9]; !e.ModTime.Equal(early) {
		t.Errorf("tool: time %v", e.ModTime)
	}
	if left, _ := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFromTarOrder checks that the order of a tar's entries does not show in the layer.
func TestFromTarOrder(t *testing.T) {
	st := storetest.Alone(t)
	var first Descriptor
	for seed := range uint64(10) {
		headers := []tar.Header{}
		for i := range 50 {
			headers = append(headers, tar.Header{Name: fmt.Sprintf("d%d/f%d", i%7, i), Uname: strings.Repeat("x", i*300)})
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(headers), func(i, j int) { headers[i], headers[j] = headers[j], headers[i] })
		d, err := FromTar(t.Context(), st, bytes.NewReader(makeTar(t, headers...)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if seed == 0 {
			first = d
		}
		if d != first {
			t.Errorf("order %d gives another layer", seed)
		}
	}
}

// hostileTars are tars that nobody may trip over, and what FromTar says of them.
func hostileTars(tb testing.TB) map[string][]byte {
	good := makeTar(tb, tar.Header{Name: "good", Uname: strings.Repeat("data", 1000)})
	reg := func(name string) []byte { return makeTar(tb, tar.Header{Name: name, Uname: "x"}) }
	link := func(kind byte, name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Linkname: to}
	}
	huge := bytes.Clone(good)
	copy(huge[124:136], "77777777777\x00")
	fixChecksum(huge)
	base256 := bytes.Clone(good)
	copy(base256[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff")
	fixChecksum(base256)
	odd := bytes.Clone(good)
	odd[156] = 'Q'
	fixChecksum(odd)
	return map[string][]byte{
		`entry /etc/passwd: the path is absolute`:          reg("/etc/passwd"),
		`entry ../../etc/passwd: the path contains ".."`:   reg("../../etc/passwd"),
		`entry ./a/../../b: the path contains ".."`:        reg("./a/../../b"),
		`hard link to /etc/shadow: the path is absolute`:   makeTar(tb, link(tar.TypeLink, "x", "/etc/shadow")),
		`hard link to ../x: the path contains ".."`:        makeTar(tb, link(tar.TypeLink, "x", "../x")),
		`which is no earlier regular file`:                 makeTar(tb, link(tar.TypeLink, "x", "y")),
		`x: it is a hard link to x, which is no earlier`:   makeTar(tb, link(tar.TypeLink, "x", "./x")),
		`hard link to s, which is no earlier`:              makeTar(tb, link(tar.TypeSymlink, "s", "/etc"), link(tar.TypeLink, "x", "s")),
		`entry s/x lies below s, which is not a directory`: makeTar(tb, link(tar.TypeSymlink, "s", "/tmp"), tar.Header{Name: "s/x", Uname: "x"}),
		`the root must be a directory`:                     makeTar(tb, link(tar.TypeSymlink, "./", "/")),
		`unexpected EOF`:                                   good[:2000],
		`after 1 entries: unexpected EOF`:                  huge,
		`is out of range`:                                  base256,
		`without an end marker`:                            good[:512+4096],
		`it was cut off, or is no tar`:                     nil,
		`type 'Q' is not something`:                        odd,
		`invalid tar header`:                               bytes.Repeat([]byte("nonsense"), 1000),
		`component longer than`:                            reg(strings.Repeat("x", 300)),
		`more than 512 of them`:                            reg(strings.Repeat("x/", 600) + "x"),
		`unfolds to 1099511627776 bytes`:                   sparseBomb(tb, 1<<40),
	}
}

func fixChecksum(b []byte) {
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// sparseBomb is a tar of one file in the old GNU form that is a hole of the given size.
func sparseBomb(tb testing.TB, size int64) []byte {
	b := makeTar(tb, tar.Header{Name: "hole", Format: tar.FormatGNU})
	b[156] = tar.TypeGNUSparse
	number := func(at int, v int64) { copy(b[at:at+12], fmt.Sprintf("%011o\x00", v)) }
	number(386, size) // offset of the only piece: the end
	number(398, 0)
	b[483-1] = 0 // no extension block follows
	if size < 1<<33 {
		number(483, size)
	} else {
		copy(b[483:495], []byte{0x80, 0, 0, 0, byte(size >> 56), byte(size >> 48), byte(size >> 40), byte(size >> 32), byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})
		copy(b[386:398], b[483:495])
	}
	fixChecksum(b)
	return b
}

func TestFromTarRefuses(t *testing.T) {
	for want, data := range hostileTars(t) {
		t.Run(want, func(t *testing.T) {
			st := storetest.Alone(t)
			_, err := FromTar(t.Context(), st, bytes.NewReader(data), Options{})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v\nwant one with %q", err, want)
			}
			if left, _ := filepath.Glob(filepath.Join(st.Dir(), "*", "*")); len(nonLocks(left)) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestFromTarPipeError checks that an error of the source is reported, not taken for the end.
func TestFromTarPipeError(t *testing.T) {
	data := makeTar(t, tar.Header{Name: "a", Uname: "x"})
	broken := errors.New("the program that made it failed")
	_, err := FromTar(t.Context(), storetest.Alone(t), io.MultiReader(bytes.NewReader(data), failing{broken}), Options{})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestFromDirIsFromTar makes the same tree a layer twice: from the directory, and from the tar that GNU tar makes of it.
func TestFromDirIsFromTar(t *testing.T) {
	src := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(p string) string { return filepath.Join(src, p) }
	must(os.MkdirAll(at("b/c"), 0o755))
	must(os.WriteFile(at("b/file"), []byte("hello"), 0o644))
	must(os.Link(at("b/file"), at("a-link")))
	must(os.Symlink("../x", at("b/sym")))
	must(os.WriteFile(at("b/c/exec"), []byte("#!"), 0o755))
	must(unix.Mkfifo(at("b/fifo"), 0o600))
	sparse, err := os.Create(at("sparse"))
	must(err)
	_, err = sparse.WriteAt([]byte("end"), 3<<20)
	must(errors.Join(err, sparse.Close()))
	_, err = (&unix.SockaddrUnix{Name: at("socket")}), nil
	must(err)
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(err)
	defer unix.Close(sock)
	must(os.Chdir(src)) // a socket's path must be short
	must(unix.Bind(sock, &unix.SockaddrUnix{Name: "socket"}))
	xattr := unix.Setxattr(at("b/file"), "user.mine", []byte("value"), 0) == nil
	if os.Getuid() == 0 {
		must(os.Lchown(at("b/sym"), 5, 6))
		if unix.Mknod(at("b/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) != nil {
			t.Log("devices cannot be made here")
		}
	}

	st := storetest.Alone(t)
	fromDir, err := FromDir(t.Context(), st, src, Options{})
	must(err)
	again, err := FromDir(t.Context(), st, src, Options{Workers: 1})
	must(err)
	if fromDir != again {
		t.Error("the same directory gives two layers")
	}
	args := []string{"--create", "--format=pax", "--xattrs", "--sparse", "--directory", src, "--exclude=socket"}
	if os.Getuid() != 0 {
		args = append(args, "--owner=0", "--group=0")
	}
	out, err := exec.Command(tooltest.Path(t, "tar"), append(args, "a-link", "b", "sparse")...).Output()
	must(err)
	fromTar, err := FromTar(t.Context(), st, bytes.NewReader(out), Options{})
	must(err)
	one, err := OpenIndex(t.Context(), st, fromDir)
	must(err)
	two, err := OpenIndex(t.Context(), st, fromTar)
	must(err)
	if diff := cmp.Diff(describe(t, one), describe(t, two)); diff != "" {
		t.Errorf("FromDir (-) and FromTar (+) differ:\n%s", diff)
	}
	if diff := cmp.Diff(one.Entries, two.Entries, cmpopts.IgnoreFields(Entry{}, "Xattrs")); diff != "" {
		t.Errorf("FromDir (-) and FromTar (+) differ:\n%s", diff)
	}
	if e := one.Entries[0]; e.Path != "a-link" || xattr && e.Xattrs["user.mine"] != "value" {
		t.Errorf("%+v", e)
	}
}

// TestSparseForeignLayer reads a layer in which GNU tar stored files with holes, several in a row, in each of its forms.
func TestSparseForeignLayer(t *testing.T) {
	src := t.TempDir()
	want := map[string]int64{}
	for i, name := range []string{"a", "b", "c", "e", "f"} {
		f, err := os.Create(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		size := int64(i+1) * 300_000
		if name != "c" {
			_, err = f.WriteAt([]byte("tail"), size-4)
		} else {
			_, err = f.Write(bytes.Repeat([]byte("c"), int(size)))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		want[name] = size
	}
	for _, format := range []string{"--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"} {
		args := []string{format, "--create", "--sparse", "--directory", src, "a", "b", "c", "e", "f"}
		if format != "--format=gnu" {
			args = append([]string{"--format=pax"}, args...)
		}
		out, err := exec.Command(tooltest.Path(t, "tar"), args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if len(out) > 1_500_000 {
			t.Fatalf("%s: this tar made no holes (%d bytes)", format, len(out))
		}
		st := storetest.Alone(t)
		blob, err := st.PutBlob(out)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := OpenIndex(t.Context(), st, Descriptor{Digest: blob})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range ix.Entries {
			data := readIndexed(t, ix, i)
			if int64(len(data)) != want[e.Path] || e.Path != "c" && !bytes.HasSuffix(data, []byte("\x00tail")) {
				t.Errorf("%s: %s has %d bytes, want %d", format, e.Path, len(data), want[e.Path])
			}
		}
		to := t.TempDir()
		if err := Unpack(t.Context(), st, Descriptor{Digest: blob}, to, UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff, err := exec.Command("diff", "-r", src, to).CombinedOutput(); err != nil {
			t.Errorf("%s: unpacked files differ: %s", format, diff)
		}
	}
}

// TestForeignStream reads the files of a gzip layer that was not made here in every order, which makes the index
// continue, start again and at last spill.
func TestForeignStream(t *testing.T) {
	var headers []tar.Header
	for i := range 30 {
		headers = append(headers, tar.Header{Name: fmt.Sprintf("f%02d", i), Uname: strings.Repeat(fmt.Sprint(i, " "), 1+i*1000)})
	}
	for _, program := range []string{"gzip", "zstd", "xz"} {
		cmd := exec.Command(tooltest.Path(t, program))
		cmd.Stdin = bytes.NewReader(makeTar(t, headers...))
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		st := storetest.Alone(t)
		blob, err := st.PutBlob(packed)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := OpenIndex(t.Context(), st, Descriptor{Digest: blob})
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(5) {
			for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(headers)) {
				if got := readIndexed(t, ix, i); string(got) != headers[i].Uname {
					t.Fatalf("%s: f%02d differs", program, i)
				}
			}
		}
		if ix.spill == nil {
			t.Errorf("%s: reading in any order did not spill", program)
		}
	}
}
