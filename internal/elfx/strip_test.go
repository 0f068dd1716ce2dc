package elfx

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"sconce.dev/sconce/internal/tooltest"
)

// stripFile strips a file of this machine into another. It returns nil when the file is kept.
func stripFile(t testing.TB, from, to string) (*Stripped, error) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Strip(f, info.Size())
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if n, err := io.Copy(out, s.Reader(io.NewSectionReader(f, 0, info.Size()))); err != nil || n != s.Size {
		t.Fatalf("%s: %d bytes of %d: %v", from, n, s.Size, err)
	}
	return s, nil
}

// wantLoadedAlike makes sure that two files are the same to the kernel and the dynamic loader.
func wantLoadedAlike(t testing.TB, before, after string) {
	t.Helper()
	a, b := openELF(t, before), openELF(t, after)
	if len(a.Progs) != len(b.Progs) {
		t.Fatalf("%s: %d segments became %d", before, len(a.Progs), len(b.Progs))
	}
	for i := range a.Progs {
		if a.Progs[i].ProgHeader != b.Progs[i].ProgHeader {
			t.Errorf("%s: segment %+v became %+v", before, a.Progs[i].ProgHeader, b.Progs[i].ProgHeader)
		}
		same(t, before, a.Progs[i].Open(), b.Progs[i].Open(), a.Progs[i].Off)
	}
	for _, s := range a.Sections {
		if s.Flags&elf.SHF_ALLOC == 0 || s.Type == elf.SHT_NOBITS {
			continue
		}
		if o := b.Section(s.Name); o == nil || o.Offset != s.Offset || o.Size != s.Size || o.Addr != s.Addr {
			t.Errorf("%s: section %s became %+v", before, s.Name, o)
			continue
		}
		same(t, before, io.NewSectionReader(s, 0, int64(s.Size)), io.NewSectionReader(b.Section(s.Name), 0, int64(s.Size)), s.Offset)
	}
}

func openELF(t testing.TB, name string) *elf.File {
	t.Helper()
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// same compares what is loaded. A segment may hold the ELF header, three fields of which change.
func same(t testing.TB, name string, a, b io.Reader, off uint64) {
	t.Helper()
	x, errA := io.ReadAll(a)
	y, errB := io.ReadAll(b)
	if off == 0 && len(x) >= header64 && len(y) >= header64 {
		for _, p := range [][2]int{{fieldSections, 8}, {fieldSectionCount, 2}, {fieldSectionNames, 2}} {
			clear(x[p[0] : p[0]+p[1]])
			clear(y[p[0] : p[0]+p[1]])
		}
	}
	if errA != nil || errB != nil || !bytes.Equal(x, y) {
		t.Errorf("%s: what is loaded at %d is not the same (%v, %v)", name, off, errA, errB)
	}
}

const (
	stripLibrary = `#include <stdio.h>
static int hidden(int x) { return x * 3; }
int answer(int x) { return hidden(x) + 1; }
__thread int local = 5;
int table[1000];
`
	stripProgram = `#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int answer(int);
static void late(void) { puts("late"); }
int main(int argc, char **argv) {
	atexit(late);
	if (argc > 1) {
		void *h = dlopen(argv[1], RTLD_NOW);
		if (!h) { puts(dlerror()); return 1; }
		int (*f)(int) = (int (*)(int)) dlsym(h, "answer");
		printf("%d\n", f(3));
	}
	printf("%d\n", answer(4));
	return 0;
}
`
)

// TestStrip compiles a library and programs, strips them, runs them, and links against what was stripped.
func TestStrip(t *testing.T) {
	gcc := tooltest.Path(t, "gcc")
	binutils := tooltest.Path(t, "strip")
	readelf := tooltest.Path(t, "readelf")
	for _, tc := range []struct {
		name string
		args []string
		only string // executable
	}{
		{"debug", []string{"-g", "-O1"}, ""},
		{"plain", []string{"-O2"}, ""},
		{"compressed", []string{"-g", "-gz"}, ""},
		{"split", []string{"-g", "-gsplit-dwarf"}, ""},
		{"lto", []string{"-g", "-O2", "-flto"}, ""},
		{"nopie", []string{"-g", "-no-pie"}, ""},
		{"static", []string{"-g", "-static"}, "only"},
		{"staticpie", []string{"-g", "-static-pie"}, "only"},
		{"small", []string{"-g", "-Wl,-z,max-page-size=4096", "-Wl,-z,noseparate-code"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			write(t, at("lib.c"), stripLibrary)
			write(t, at("main.c"), stripProgram)
			compile := func(args ...string) {
				cmd := exec.Command(gcc, append(slices.Clone(tc.args), args...)...)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			if tc.only != "" {
				compile("-o", at("main"), at("main.c"), at("lib.c"))
				wantAsStrip(t, binutils, readelf, at("main"), at("stripped"))
				if got := run(t, "", at("stripped")); got != "13\nlate\n" {
					t.Errorf("the stripped program says %q", got)
				}
				return
			}
			pic := []string{"-shared", "-fPIC", "-o", at("libanswer.so"), at("lib.c")}
			if tc.name == "nopie" {
				pic = append(pic, "-pie", "-shared")
			}
			compile(pic...)
			compile("-o", at("main"), at("main.c"), "-L"+dir, "-lanswer", "-Wl,-rpath,$ORIGIN")
			if err := os.Mkdir(at("out"), 0o755); err != nil {
				t.Fatal(err)
			}
			wantAsStrip(t, binutils, readelf, at("libanswer.so"), at("out/libanswer.so"))
			wantAsStrip(t, binutils, readelf, at("main"), at("out/main"))
			if got := run(t, "", at("out/main"), at("out/libanswer.so")); got != "10\n13\nlate\n" {
				t.Errorf("the stripped program says %q", got)
			}
			compile("-o", at("again"), at("main.c"), at("out/libanswer.so"), "-Wl,-rpath,$ORIGIN/out")
			if got := run(t, "", at("again")); got != "13\nlate\n" {
				t.Errorf("the program linked against the stripped library says %q", got)
			}
		})
	}
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wantAsStrip strips a file with both and compares. Binutils may shorten names by letting them share their ends, and lays
// headers down more closely; a few hundred bytes are not counted.
func wantAsStrip(t testing.TB, binutils, readelf, from, to string) {
	t.Helper()
	s, err := stripFile(t, from, to)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	wantLoadedAlike(t, from, to)
	wantReadable(t, readelf, from, to)
	peer := to + ".peer"
	run(t, "", binutils, "--strip-unneeded", "-o", peer, from)
	info, err := os.Stat(peer)
	if err != nil {
		t.Fatal(err)
	}
	if s.Size > info.Size()+info.Size()/50+512 {
		t.Errorf("%s: %d bytes, binutils makes it %d", from, s.Size, info.Size())
	}
	gone := sectionNames(t, to)
	if peers := sectionNames(t, peer); !slices.Equal(gone, peers) {
		t.Errorf("%s: sections %q, binutils leaves %q", from, gone, peers)
	}
	if _, err := stripFile(t, to, to+".again"); err == nil || !strings.Contains(err.Error(), "nothing can be stripped") {
		t.Errorf("%s: stripped again: %v", from, err)
	}
}

func sectionNames(t testing.TB, name string) []string {
	var names []string
	for _, s := range openELF(t, name).Sections {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// wantReadable makes sure that readelf has no more to say about the stripped file than about the whole one.
func wantReadable(t testing.TB, readelf, from, to string) {
	t.Helper()
	warnings := func(name string) int {
		cmd := exec.Command(readelf, "--all", "--wide", name)
		var said bytes.Buffer
		cmd.Stderr = &said
		if _, err := cmd.Output(); err != nil {
			t.Errorf("readelf %s: %v\n%s", name, err, &said)
		}
		return strings.Count(said.String(), "\n")
	}
	if n := warnings(to); n > 0 && n > warnings(from) {
		t.Errorf("readelf warns of %s: %d times", to, n)
	}
}

// TestStripKeeps lists what is left alone.
func TestStripKeeps(t *testing.T) {
	gcc := tooltest.Path(t, "gcc")
	objcopy := tooltest.Path(t, "objcopy")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("lib.c"), stripLibrary)
	run(t, "", gcc, "-g", "-shared", "-fPIC", "-o", at("good.so"), at("lib.c"))
	run(t, "", gcc, "-g", "-c", "-fPIC", "-o", at("object.o"), at("lib.c"))
	run(t, "", gcc, "-g", "-shared", "-fPIC", "-Wl,--emit-relocs", "-o", at("relocs.so"), at("lib.c"))
	run(t, "", objcopy, "--only-keep-debug", at("good.so"), at("only.debug"))
	write(t, at("payload"), strings.Repeat("payload", 100))
	run(t, "", objcopy, "--add-section", "pydata="+at("payload"), at("good.so"), at("pydata.so"))
	run(t, "", objcopy, "--add-section", ".sig="+at("payload"), at("good.so"), at("signed.so"))
	good, err := os.ReadFile(at("good.so"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, at("appended"), string(good)+"PAYLOAD")
	write(t, at("cut"), string(good[:len(good)-100]))
	gpu := bytes.Clone(good)
	gpu[18] = 190 // EM_CUDA
	write(t, at("cubin"), string(gpu))
	write(t, at("text"), "hello")
	for name, want := range map[string]string{
		"object.o": "linked by its symbols", "relocs.so": "relocations that linking left", "only.debug": "symbols for debuggers",
		"pydata.so": "pydata", "signed.so": "signed", "appended": "appended", "cut": "beyond the end", "cubin": "machine", "text": "not an ELF",
	} {
		if _, err := stripFile(t, at(name), at("out")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	run(t, "", objcopy, "--add-gnu-debuglink="+at("only.debug"), at("good.so"), at("linked.so"))
	s, err := stripFile(t, at("linked.so"), at("out"))
	if err != nil || !slices.Contains(sectionNames(t, at("out")), ".gnu_debuglink") || slices.Contains(s.Removed, ".gnu_debuglink") {
		t.Errorf("the link to the debugger's file is gone (%v)", err)
	}
}

// TestStripReader reads the result in ways that readers are used.
func TestStripReader(t *testing.T) {
	gcc := tooltest.Path(t, "gcc")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "lib.c"), stripLibrary)
	name := filepath.Join(dir, "lib.so")
	run(t, "", gcc, "-g", "-shared", "-fPIC", "-o", name, filepath.Join(dir, "lib.c"))
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Strip(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(s.Reader(bytes.NewReader(data)))
	if err != nil || int64(len(want)) != s.Size {
		t.Fatal(err)
	}
	if err := iotest.TestReader(s.Reader(iotest.OneByteReader(bytes.NewReader(data))), want); err != nil {
		t.Error(err)
	}
	if err := iotest.TestReader(io.NewSectionReader(s.ReaderAt(bytes.NewReader(data)), 0, s.Size), want); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(s.Reader(bytes.NewReader(data[:len(data)/2]))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of half a file: %v", err)
	}
}

// TestStripPeer strips every ELF file below the directories of $SCONCE_STRIP_TREES, or of this machine, as binutils does.
func TestStripPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	binutils := tooltest.Path(t, "strip")
	readelf := tooltest.Path(t, "readelf")
	trees := filepath.SplitList(os.Getenv("SCONCE_STRIP_TREES"))
	limit := 0
	if len(trees) == 0 {
		trees, limit = []string{"/usr/lib/gcc", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}, 150
	}
	j := &stripJudge{binutils: binutils, readelf: readelf, dir: t.TempDir(), reasons: map[string]int{}, limit: limit}
	for _, tree := range trees {
		_ = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && (j.limit == 0 || j.seen < j.limit) {
				j.judge(t, path)
			}
			return nil
		})
	}
	t.Logf("%d stripped: %d bytes became %d, with binutils %d; kept %v", j.stripped, j.before, j.after, j.peer, j.reasons)
	t.Logf("kept: %d bytes, with binutils %d", j.keptBefore, j.keptPeer)
	if j.after > j.peer+j.peer/50+int64(j.stripped)*512 {
		t.Error("binutils makes them smaller")
	}
}

type stripJudge struct {
	binutils, readelf, dir string
	limit, seen            int
	stripped               int
	before, after, peer    int64
	keptBefore, keptPeer   int64
	reasons                map[string]int
}

func (j *stripJudge) judge(t *testing.T, path string) {
	out := filepath.Join(j.dir, "out")
	s, err := stripFile(t, path, out)
	if errors.Is(err, ErrNotELF) {
		return
	}
	j.seen++
	peer := filepath.Join(j.dir, "peer")
	peerErr := exec.Command(j.binutils, "--strip-unneeded", "-o", peer, path).Run()
	var peerSize, size int64
	if info, err := os.Stat(peer); err == nil && peerErr == nil {
		peerSize = info.Size()
	}
	if info, err := os.Stat(path); err == nil {
		size = info.Size()
	}
	os.Remove(peer)
	if err != nil {
		j.reasons[err.Error()]++
		if size > peerSize+4096 && peerSize > 0 {
			t.Logf("%s is kept: %v (%d bytes, with binutils %d)", path, err, size, peerSize)
		}
		j.keptBefore += size
		j.keptPeer += peerSize
		return
	}
	wantLoadedAlike(t, path, out)
	wantReadable(t, j.readelf, path, out)
	j.stripped++
	j.before += size
	j.after += s.Size - s.Zeroed
	j.peer += peerSize
	if left := s.Size - s.Zeroed; left > peerSize+peerSize/20+16384 {
		t.Logf("%s: %d bytes, binutils makes it %d", path, left, peerSize)
	}
}

func FuzzStrip(f *testing.F) {
	f.Add(smallELF())
	f.Add(patchedELF(0x340))
	f.Add(patchedELF(0x200))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Strip(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		out, err := io.ReadAll(s.Reader(bytes.NewReader(data)))
		if err != nil || int64(len(out)) != s.Size || s.Size-s.Zeroed >= int64(len(data)) {
			t.Fatalf("%d bytes became %d (%d of them zeros), read as %d: %v", len(data), s.Size, s.Zeroed, len(out), err)
		}
		at := make([]byte, s.Size)
		if _, err := s.ReaderAt(bytes.NewReader(data)).ReadAt(at, 0); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(at, out) {
			t.Fatalf("read at random it is another file (%v)", err)
		}
		if _, err := Strip(bytes.NewReader(out), s.Size); err == nil {
			t.Fatal("it can be stripped again")
		}
	})
}

// TestStripInPlace has files as patchelf leaves them: loaded parts stand behind symbols, and may hold the table of sections.
func TestStripInPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		loadedAt uint64
		size     int64
	}{
		"the table is not loaded": {0x340, 0x1600},
		"the table is loaded":     {0x200, 0x1600 + 5*section64},
	} {
		t.Run(name, func(t *testing.T) {
			data := patchedELF(tc.loadedAt)
			s, err := Strip(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			out, err := io.ReadAll(s.Reader(bytes.NewReader(data)))
			if err != nil || s.Size != tc.size || int64(len(out)) != s.Size || s.Zeroed != 0x1010 || bytes.Contains(out, []byte("symbols")) {
				t.Errorf("%+v (%v)", s, err)
			}
			if !bytes.Equal(data[tc.loadedAt:0x500], out[tc.loadedAt:0x500]) || !bytes.Equal(data[header64:0x100], out[header64:0x100]) {
				t.Error("what is loaded changed")
			}
			f, err := elf.NewFile(bytes.NewReader(out))
			if err != nil || len(f.Sections) != 5 || f.Section(".text") == nil || f.Section(".symtab") != nil || f.Sections[4].Name != ".shstrtab" {
				t.Errorf("%v: %+v", err, f)
			}
		})
	}
}

// patchedELF is smallELF with 0x1000 bytes of symbols, and then with a second segment, from loadedAt to 0x500, before them.
func patchedELF(loadedAt uint64) []byte {
	data := append(smallELF(), make([]byte, 0x1600-0x340)...)
	copy(data[0x400:], "loaded")
	copy(data[0x600:], "symbols")
	symbols := data[0x200+2*section64:]
	le64.PutUint64(symbols[24:], 0x600)
	le64.PutUint64(symbols[32:], 0x1000)
	data[56] = 2
	le64.PutUint64(data[32:], 0x90)
	copy(data[0x90:], data[64:64+segment64])
	copy(data[0x90+segment64:], data[64:64+segment64])
	for i, v := range []uint64{0, loadedAt} {
		le64.PutUint64(data[0x90+i*segment64+8:], v)
		le64.PutUint64(data[0x90+i*segment64+32:], []uint64{0x100, 0x500 - v}[i])
	}
	return data
}

// smallELF is a library with one segment, one loaded section and a table of symbols.
func smallELF() []byte {
	names := "\x00.text\x00.symtab\x00.strtab\x00.shstrtab\x00"
	b := make([]byte, 0x200)
	copy(b, elf.ELFMAG+"\x02\x01\x01")
	le64.PutUint16(b[16:], uint16(elf.ET_DYN))
	le64.PutUint16(b[18:], uint16(elf.EM_X86_64))
	b[20] = 1
	le64.PutUint64(b[32:], 64)
	le64.PutUint64(b[fieldSections:], 0x200)
	for at, v := range map[int]uint16{52: 64, 54: 56, 56: 1, 58: 64, 60: 5, 62: 4} {
		le64.PutUint16(b[at:], v)
	}
	le64.PutUint32(b[64:], 1) // PT_LOAD
	le64.PutUint64(b[96:], 0x90)
	copy(b[0x190:], names)
	for _, s := range [][6]uint64{{}, {1, 1, 2, 0x80, 0x10, 0}, {7, 2, 0, 0x100, 0x80, 3}, {15, 3, 0, 0x180, 0x10, 0}, {23, 3, 0, 0x190, uint64(len(names)), 0}} {
		h := make([]byte, section64)
		le64.PutUint32(h, uint32(s[0]))
		le64.PutUint32(h[4:], uint32(s[1]))
		for i, at := range []int{8, 24, 32} {
			le64.PutUint64(h[at:], s[i+2])
		}
		le64.PutUint32(h[40:], uint32(s[5]))
		b = append(b, h...)
	}
	return b
}
