package elfx

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// seen is what readelf says of a file.
type seen struct {
	Tags     map[string][]string
	Requires map[string][]string
	Provides []string
	Symbols  []string
}

var (
	tagLine      = regexp.MustCompile(`\((NEEDED|SONAME|RPATH|RUNPATH)\).*\[(.*)\]`)
	needFile     = regexp.MustCompile(`Version: \d+  File: (\S+)  Cnt`)
	needVersion  = regexp.MustCompile(`Name: (\S+)  Flags: (.*?)\s+Version: `)
	definedLine  = regexp.MustCompile(`Rev: \d+  Flags: (.*?)\s+Index: \d+  Cnt: \d+  Name: (\S+)`)
	symbolLine   = regexp.MustCompile(`^ *\d+: ([0-9a-f]+) +\S+ +(\S+) +(\S+) +(\S+) +(?:\[.*\] +)?([^\s\]]+)\]? +(\S+)`)
	boundKinds   = []string{"NOTYPE", "OBJECT", "FUNC", "COMMON", "TLS", "IFUNC"}
	boundBinding = []string{"GLOBAL", "WEAK", "UNIQUE"}
)

// plain gives back the words where readelf prints numbers because of other parts of the header.
var plain = strings.NewReplacer("<OS specific>: 10", "UNIQUE", "bad section index[", "")

func readelf(t testing.TB, name string) seen {
	t.Helper()
	tooltest.Path(t, "readelf")
	s := seen{Tags: map[string][]string{}, Requires: map[string][]string{}}
	file := ""
	for line := range strings.Lines(run(t, "/", "readelf", "-dVW", "--dyn-syms", name)) {
		if m := tagLine.FindStringSubmatch(line); m != nil {
			s.Tags[m[1]] = append(s.Tags[m[1]], m[2])
		} else if m := needFile.FindStringSubmatch(line); m != nil {
			file = m[1]
		} else if m := definedLine.FindStringSubmatch(line); m != nil {
			if !strings.Contains(m[1], "BASE") {
				s.Provides = append(s.Provides, m[2])
			}
		} else if m := needVersion.FindStringSubmatch(line); m != nil {
			s.Requires[file] = append(s.Requires[file], m[1]+strings.TrimPrefix(" "+m[2], " none"))
		} else if m := symbolLine.FindStringSubmatch(plain.Replace(line)); m != nil {
			s.addSymbol(m[1], m[2], m[3], m[4], m[5], m[6])
		}
	}
	slices.Sort(s.Symbols)
	return s
}

func (s *seen) addSymbol(value, kind, binding, visibility, section, name string) {
	undefined := section == "UND"
	switch {
	case !slices.Contains(boundBinding, binding):
	case undefined:
		s.Symbols = append(s.Symbols, fmt.Sprint("needs ", name, binding == "WEAK"))
	case visibility == "HIDDEN" || visibility == "INTERNAL" || !slices.Contains(boundKinds, kind):
	case strings.Trim(value, "0") != "" || section == "ABS" || kind == "TLS":
		s.Symbols = append(s.Symbols, "has "+name)
	}
}

// like returns what a file says in the form of readelf.
func like(t testing.TB, f *File) seen {
	t.Helper()
	s := seen{Tags: map[string][]string{}, Requires: map[string][]string{}, Provides: f.Provides}
	s.Tags["NEEDED"] = f.Needed
	for tag, text := range map[string]string{"SONAME": f.Soname, "RPATH": f.Rpath, "RUNPATH": f.Runpath} {
		if text != "" {
			s.Tags[tag] = []string{text}
		}
	}
	if len(f.Needed) == 0 {
		delete(s.Tags, "NEEDED")
	}
	for _, r := range f.Requires {
		for _, v := range r.Versions {
			name := v.Name
			if v.Weak {
				name += " WEAK"
			}
			s.Requires[r.Library] = append(s.Requires[r.Library], name)
		}
	}
	for symbol, err := range f.Symbols() {
		if err != nil {
			t.Fatal(err)
		}
		s.Symbols = append(s.Symbols, describe(symbol))
	}
	slices.Sort(s.Symbols)
	return s
}

func describe(s Symbol) string {
	name := s.Name
	switch {
	case s.Version == "" || s.Version == s.Name: // a symbol that stands for the version itself
	case s.Defined && !s.Hidden:
		name += "@@" + s.Version
	default:
		name += "@" + s.Version
	}
	if s.Defined {
		return "has " + name
	}
	return fmt.Sprint("needs ", name, s.Weak)
}

// TestLikeReadelf compares all that is read. ELFX_DIRS may name other directories.
func TestLikeReadelf(t *testing.T) {
	loader(t)
	for _, name := range chosenFiles(t, 60, 60) {
		want, got := readelf(t, name), like(t, open(t, name))
		// readelf prints a definition of an executable that copies a library's, as its need: with one @.
		for _, symbols := range [][]string{want.Symbols, got.Symbols} {
			for i := range symbols {
				symbols[i] = strings.Replace(symbols[i], "@@", "@", 1)
			}
			slices.Sort(symbols)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -readelf +elfx\n%s", name, diff)
		}
	}
}

func TestKinds(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/liba.so 'int a;'
		echo 'int main() {}' > m.c; gcc -o exec -no-pie m.c; gcc -o pie -pie m.c; gcc -static -o static m.c; gcc -static-pie -o static-pie m.c || cp static static-pie; gcc -c m.c
		echo 'package main; func main() {}' > m.go; GOFLAGS= CGO_ENABLED=0 go build -o go m.go
		gcc -shared -o rpath.so m.c -Wl,--disable-new-dtags,-rpath,/x -Wl,-z,nodefaultlib -Wl,-z,x86-64-v2`)
	type facts struct {
		Kind        Kind
		Dynamic     bool
		Interpreter string
	}
	ld := loader(t)
	for name, want := range map[string]facts{
		"exec":      {Executable, true, ld},
		"pie":       {PIE, true, ld},
		"static":    {Executable, false, ""},
		"go":        {Executable, false, ""},
		"a/liba.so": {Shared, true, ""},
		"m.o":       {Other, false, ""},
	} {
		f := open(t, filepath.Join(dir, name))
		if got := (facts{f.Kind, f.Dynamic, f.Interpreter}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	f := open(t, filepath.Join(dir, "rpath.so"))
	if f.Rpath != "/x" || f.Runpath != "" || f.Flags1&elf.DF_1_NODEFLIB == 0 || f.ISALevel != 2 || f.Kernel != "" {
		t.Errorf("%+v", f)
	}
	if f := open(t, filepath.Join(dir, "exec")); f.Kernel == "" {
		t.Error("the oldest kernel is not known")
	}
}

// TestWithoutSections: files whose section headers were taken away still have all their symbols.
func TestWithoutSections(t *testing.T) {
	loader(t)
	dir := build(t, `src='#include <stdio.h>
int a, b, c, d; int f() { return puts(""); }'
lib a/libsysv.so "$src" -Wl,--hash-style=sysv; lib a/libgnu.so "$src" -Wl,--hash-style=gnu
lib a/libnone.so 'static int x() { puts(""); } int (*p)(void) __attribute__((visibility("hidden"))) = x;' -Wl,--hash-style=gnu -nostdlib -lc`)
	for _, name := range []string{"libsysv.so", "libgnu.so", "libnone.so"} {
		data, err := os.ReadFile(filepath.Join(dir, "a", name))
		if err != nil {
			t.Fatal(err)
		}
		symbols := func(data []byte) []string {
			f, err := Open(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			return like(t, f).Symbols
		}
		want := symbols(data)
		copy(data[0x28:], make([]byte, 8)) // e_shoff
		if diff := cmp.Diff(want, symbols(data)); diff != "" || len(want) < 1 {
			t.Error(name, want, diff)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	order := []string{"GLIBC", "GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "GLIBC_2.0", "GLIBC_2.2.5", "GLIBC_2.4", "GLIBC_2.34", "GLIBC_2.34.1", "GLIBC_99999999999999999999999", "GLIBC_ABI_DT_RELR", "GLIBC_PRIVATE"}
	for i, a := range order {
		for j, b := range order {
			sameKind := strings.HasPrefix(a, "GLIBC_") && strings.HasPrefix(b, "GLIBC_") || strings.HasPrefix(a, "GLIBCXX_") && strings.HasPrefix(b, "GLIBCXX_")
			got := CompareVersions(a, b)
			if got != -CompareVersions(b, a) || (got == 0) != (i == j) {
				t.Errorf("%s and %s: %d and %d", a, b, got, CompareVersions(b, a))
			}
			if sameKind && i < j && got >= 0 {
				t.Errorf("%s is not below %s", a, b)
			}
		}
	}
}

func TestDemangle(t *testing.T) {
	for symbol, want := range map[string]string{
		"_ZN3c106detail14torchCheckFailEPKcS2_jS2_": "c10::detail::torchCheckFail(char const*, char const*, unsigned int, char const*)",
		"PyErr_Clear":                     "PyErr_Clear",
		"_Z" + strings.Repeat("x", 8<<10): "_Z" + strings.Repeat("x", 8<<10),
	} {
		if got := Demangle(symbol); got != want {
			t.Errorf("%s: %s", symbol, got)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	good, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	good = good[:4096]
	change := func(at int, b ...byte) []byte {
		data := slices.Clone(good)
		copy(data[at:], b)
		return data
	}
	for name, test := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"empty":            {nil, ErrNotELF, "not an ELF file"},
		"short":            {good[:15], ErrNotELF, "not an ELF file"},
		"a script":         {[]byte("#!/bin/sh\necho hello\n"), ErrNotELF, "not an ELF file"},
		"ends in header":   {good[:40], ErrFormat, "read the header: damaged ELF file: it ends at byte 40"},
		"class":            {change(4, 3), ErrFormat, "class 3"},
		"byte order":       {change(5, 7), ErrFormat, "byte order 7"},
		"entry size":       {change(0x36, 1, 0), ErrFormat, "program headers of 1 bytes, not 56"},
		"too many headers": {change(0x38, 0xff, 0xff), ErrFormat, "65535 program headers"},
		"headers outside":  {change(0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), ErrFormat, "read the program headers: damaged ELF file: a table ends inside an entry"},
	} {
		f, err := Open(bytes.NewReader(test.data), int64(len(test.data)))
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, %+v", name, err, f)
		}
	}
	broken := errors.New("broken disk")
	if _, err := Open(failing{broken}, 1<<20); !errors.Is(err, broken) || errors.Is(err, ErrFormat) {
		t.Errorf("from a broken disk: %v", err)
	}
	if _, err := Open(bytes.NewReader(good[:100]), 4096); !errors.Is(err, ErrFormat) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("from a file that is shorter than said: %v", err)
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// forge makes a library that is all lies: each table is as large as its numbers can say, and the names overlap.
func forge(symbols, names int) []byte {
	const head = 64 + 2*56
	order := binary.LittleEndian
	dynamic := []uint64{
		uint64(elf.DT_STRTAB), 0x10000, uint64(elf.DT_STRSZ), uint64(names), uint64(elf.DT_SYMTAB), 0x10000 + uint64(names), uint64(elf.DT_VERNEED), 0x10000,
		uint64(elf.DT_VERNEEDNUM), 1 << 60, uint64(elf.DT_VERDEF), 0x10000, uint64(elf.DT_VERDEFNUM), 1 << 60, uint64(elf.DT_HASH), 0x10000 + uint64(names) - 16,
	}
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	binary.Write(&b, order, []uint16{uint16(elf.ET_DYN), uint16(elf.EM_X86_64)})
	binary.Write(&b, order, uint32(1))
	binary.Write(&b, order, []uint64{0, 64, 0})
	binary.Write(&b, order, uint32(0))
	binary.Write(&b, order, []uint16{64, 56, 2, 64, 0, 0})
	segment := func(kind elf.ProgType, offset, address, size uint64) {
		binary.Write(&b, order, []uint32{uint32(kind), 4})
		binary.Write(&b, order, []uint64{offset, address, address, size, size, 8})
	}
	size := uint64(len(dynamic) * 8)
	segment(elf.PT_DYNAMIC, head, 0, size)
	segment(elf.PT_LOAD, head+size, 0x10000, 1<<62)
	binary.Write(&b, order, dynamic)
	text := bytes.Repeat([]byte{'x'}, names)
	copy(text, make([]byte, 32))                              // empty lists of versions
	copy(text[names-16:], "\xff\xff\xff\xff\xff\xff\xff\x00") // chains of the hash table, and the end of all names
	text[names-1] = 0
	b.Write(text)
	for i := range symbols {
		binary.Write(&b, order, uint32(64+i%1000))
		b.Write([]byte{byte(elf.STB_GLOBAL) << 4, 0, 1, 0})
		binary.Write(&b, order, []uint64{1, 0})
	}
	return b.Bytes()
}

func TestOverlappingNames(t *testing.T) {
	for _, test := range []struct {
		symbols, names int
		want           string
	}{
		{30, 60 << 10, ""},
		{10000, 60 << 10, "many times as long"},
		{10, 200 << 10, "has no end in 65536 bytes"},
	} {
		data := forge(test.symbols, test.names)
		f, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, err = range f.Symbols() {
			count++
		}
		if test.want == "" && (err != nil || count != test.symbols) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %d symbols, %v", test, count, err)
		}
	}
}

// TestDamagedSymbols: what Open cannot see is found when symbols are read, and said of the file.
func TestDamagedSymbols(t *testing.T) {
	l := &Loader{FS: singleFS{forge(10, 200<<10)}}
	got := problemsOf(t, l, "/a", CheckOptions{})
	want := []string{"/a cannot be used: read the symbols of /a: damaged ELF file: the name of a symbol has no end in 65536 bytes"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestStops: who has seen enough gets no more, and no error.
func TestStops(t *testing.T) {
	data := forge(30, 60<<10)
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, err := range f.Exported() {
		if err != nil {
			t.Fatal(err)
		}
		if count++; count == 3 {
			break
		}
	}
	for range f.Undefined() {
		t.Error("an undefined symbol")
	}
}

// FuzzOpen reads all there is of a file, with limits on time and memory that the files could not earn.
func FuzzOpen(f *testing.F) {
	f.Add(forge(10, 4096))
	f.Add(forge(0, 100))
	for _, name := range []string{"/usr/bin/true", "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libz.so.1", "/usr/lib/x86_64-linux-gnu/libBrokenLocale.so.1"} {
		if data, err := os.ReadFile(name); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if !errors.Is(err, ErrNotELF) && !errors.Is(err, ErrFormat) {
				t.Fatalf("not said to be damaged: %v", err)
			}
			return
		}
		for _, err := range file.Symbols() {
			if err != nil && !errors.Is(err, ErrFormat) {
				t.Fatalf("not said to be damaged: %v", err)
			}
		}
		l := &Loader{FS: singleFS{data}, LibraryPath: "/:$ORIGIN/x"}
		c, err := l.Closure("/a")
		if err != nil {
			t.Fatal(err)
		}
		problems, err := l.Check(c, CheckOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			_ = p.String()
		}
	})
}

// singleFS is an image with one file, which is there under every name without a directory.
type singleFS struct{ data []byte }

func (s singleFS) Resolve(name string) (string, error) {
	if strings.LastIndexByte(name, '/') > 0 {
		return "", os.ErrNotExist
	}
	return name, nil
}

func (s singleFS) Open(string) (Handle, error)      { return memory{bytes.NewReader(s.data)}, nil }
func (s singleFS) ReadDir(string) ([]string, error) { return nil, os.ErrNotExist }

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }
