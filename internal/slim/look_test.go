package slim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fatbin"
)

var (
	for90  = Options{GPUs: []int{90}}
	no90   = Options{GPUs: []int{90}, PTX: DropWhereNative}
	least  = Options{GPUs: []int{90}, PTX: DropWhereNative, DropRelocatable: true}
	a      = fatbin.FlagArchOnly
	family = fatbin.FlagFamily
)

func sectionsOf(t testing.TB, b []byte) *fatbin.File {
	t.Helper()
	return sectionsAt(t, bytes.NewReader(b), int64(len(b)))
}

func sectionsAt(t testing.TB, r io.ReaderAt, size int64) *fatbin.File {
	t.Helper()
	f, err := scan(r, size)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustLook(t testing.TB, b []byte, o Options) *Plan {
	t.Helper()
	p, err := Look(context.Background(), bytes.NewReader(b), int64(len(b)), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// slimmed applies a plan, and makes sure of what holds for all of them.
func slimmed(t testing.TB, b []byte, p *Plan, o Options) []byte {
	t.Helper()
	got, err := io.ReadAll(p.Reader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(b) {
		t.Fatalf("%d bytes of %d", len(got), len(b))
	}
	at := make([]byte, len(b))
	if _, err := p.ReaderAt(bytes.NewReader(b)).ReadAt(at, 0); err != nil || !bytes.Equal(at, got) {
		t.Fatalf("read in one go, the file is another (%v)", err)
	}
	before, after := sectionsOf(t, b), sectionsOf(t, got)
	if len(after.Problems) > 0 && !p.Empty() {
		t.Fatalf("the slimmed file has problems: %v", after.Problems)
	}
	checkPayloads(t, b, got, before, after)
	if p.Report.Refused != "" {
		return got
	}
	if again := mustLook(t, got, o); !again.Empty() || again.Report.Refused != "" {
		t.Fatalf("slimming again changes more: %+v", again.Report)
	}
	return got
}

// checkPayloads makes sure that what the slimmed file lists is in the other one, byte for byte.
func checkPayloads(t testing.TB, b, got []byte, before, after *fatbin.File) {
	t.Helper()
	type image struct {
		kind  fatbin.Kind
		arch  fatbin.Arch
		flags fatbin.Flags
		end   int64
	}
	images := map[int64]image{} // by place of the payload
	for i := range before.Regions {
		for _, e := range before.Regions[i].Entries {
			images[e.Offset+e.HeaderSize] = image{e.Kind, e.Arch, e.Flags, e.End()}
		}
	}
	for i := range after.Regions {
		for _, e := range after.Regions[i].Entries {
			at := e.Offset + e.HeaderSize
			was, is := images[at]
			if !is || was.kind != e.Kind || was.arch != e.Arch || was.flags != e.Flags || was.end > e.End() {
				t.Fatalf("%s at byte %d is not of the file", name(&e), at)
			}
			if !bytes.Equal(b[at:was.end], got[at:was.end]) {
				t.Fatalf("the payload at byte %d is another", at)
			}
			if len(bytes.Trim(got[was.end:e.End()], "\x00")) > 0 {
				t.Fatalf("the padding at byte %d is not zero", was.end)
			}
		}
	}
}

func TestSelection(t *testing.T) {
	gpus := func(sm ...int) Options { return Options{GPUs: sm} }
	drop := func(sm ...int) Options { return Options{GPUs: sm, PTX: DropWhereNative} }
	tests := []struct {
		name    string
		options Options
		entries []entrySpec
		want    string
	}{
		{"exact", for90, []entrySpec{sass(80), sass(90), sass(100)}, "elf:90"},
		{"exact with variants", for90, []entrySpec{sass(90).with(a), sass(80), sass(90)}, "elf:90a elf:90"},
		{"only the variant", for90, []entrySpec{sass(80), sass(90).with(a), ptx(80)}, "elf:90a ptx:80"},
		{"two of the same", for90, []entrySpec{sass(90).named("one.cu", ""), sass(90).named("two.cu", ""), sass(80)}, "elf:90 elf:90"},
		{"best lower", gpus(89), []entrySpec{sass(75), sass(80), sass(86), sass(90)}, "elf:86"},
		{"lower of another major", for90, []entrySpec{sass(80), sass(86), ptx(80)}, "ptx:80"},
		{"higher is no use", gpus(80), []entrySpec{sass(86), ptx(75)}, "ptx:75"},
		{"lower a is no use", gpus(103), []entrySpec{sass(100).with(a), sass(100)}, "elf:100"},
		{"lower f", gpus(103), []entrySpec{sass(100).with(family), sass(90)}, "elf:100f"},
		{"lower f of another family", gpus(120), []entrySpec{sass(100).with(family), sass(120).with(family)}, "elf:120f"},
		{"integrated chips apart", gpus(89), []entrySpec{sass(87), sass(86)}, "elf:86"},
		{"integrated chip", gpus(87), []entrySpec{sass(80), sass(86), sass(87)}, "elf:87"},
		{"union", gpus(80, 90), []entrySpec{sass(75), sass(80), sass(86), sass(90), sass(100)}, "elf:80 elf:90"},
		{"union shares one", gpus(86, 80, 89), []entrySpec{sass(80), sass(90)}, "elf:80"},
		{"PTX is kept", for90, []entrySpec{ptx(75), sass(90), ptx(120)}, "ptx:75 elf:90 ptx:120"},
		{"PTX dropped", no90, []entrySpec{ptx(75), sass(90), ptx(120)}, "elf:90"},
		{"best PTX", no90, []entrySpec{ptx(75), ptx(80), ptx(120), sass(80)}, "ptx:80"},
		{"best PTX with variants", no90, []entrySpec{ptx(90), ptx(90).with(a), ptx(80), ptx(100).with(family)}, "ptx:90 ptx:90a"},
		{"PTX of the wrong variant", no90, []entrySpec{ptx(80).with(a), ptx(75)}, "ptx:75"},
		{"PTX for one of two", drop(90, 120), []entrySpec{sass(90), ptx(80), ptx(90)}, "elf:90 ptx:90"},
		{"relocatable PTX is PTX", no90, []entrySpec{sass(90), relPTX(90)}, "elf:90"},
		{"nothing runs", for90, []entrySpec{sass(80).sized(128), sass(75), sass(100).sized(96)}, "elf:75"},
		{"one and useless", for90, []entrySpec{sass(80)}, "elf:80"},
		{"LTO-IR stays", least, []entrySpec{lto(75), sass(80), sass(90), lto(90)}, "lto-ir:75 elf:90 lto-ir:90"},
		{"only LTO-IR stays", for90, []entrySpec{sass(80), lto(75)}, "lto-ir:75"},
		{"unknown kind", least, []entrySpec{{kind: 0x77, sm: 80}, sass(80), sass(90)}, "kind-119:80 elf:90"},
		{"alternative ELF", least, []entrySpec{{kind: fatbin.AlternativeELF, sm: 80}, sass(90)}, "alternative-elf:80 elf:90"},
		{"unknown flag", least, []entrySpec{sass(80).with(1 << 40), sass(75), sass(90), ptx(75).with(1 << 30)}, "elf:80 elf:90 ptx:75"},
		{"unknown flag is no reason to drop others", gpus(90), []entrySpec{sass(90).with(1 << 40), sass(80), ptx(80)}, "elf:90 ptx:80"},
		{"both variants", least, []entrySpec{sass(80).with(a | family), sass(90)}, "elf:80 elf:90"},
		{"debug code is code", for90, []entrySpec{sass(80).with(fatbin.FlagDebug), sass(90).with(fatbin.FlagDebug)}, "elf:90"},
		{"no architecture", least, []entrySpec{sass(0), sass(90)}, "elf:0 elf:90"},
		{"concatenated, one part runs", for90, []entrySpec{concatenated(sass(80), sass(90)), sass(75)}, "(elf:80 elf:90)"},
		{"concatenated, none runs", for90, []entrySpec{concatenated(sass(80), sass(75)), sass(90)}, "elf:90"},
		{"concatenated with PTX", no90, []entrySpec{concatenated(sass(80), ptx(75)), sass(90)}, "elf:90"},
		{"concatenated with PTX kept", for90, []entrySpec{concatenated(sass(80), ptx(75)), sass(90)}, "(elf:80 ptx:75) elf:90"},
		{"concatenated LTO-IR", least, []entrySpec{concatenated(sass(80), lto(75)), sass(90)}, "(elf:80 lto-ir:75) elf:90"},
		{"stored before a dead end", for90, []entrySpec{sass(90).stored(), sass(80), sass(100)}, "elf:90"},
		{"LTO-IR that may not grow", for90, []entrySpec{sass(75), lto(90).stored(), sass(80), sass(100)}, "lto-ir:90 elf:100"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := regionOf(test.entries...)
			p := mustLook(t, b, test.options)
			if p.Report.Refused != "" {
				t.Fatal(p.Report.Refused)
			}
			got := describe(sectionsOf(t, slimmed(t, b, p, test.options)))
			if got != test.want {
				t.Errorf("kept %s, want %s", got, test.want)
			}
		})
	}
}

// TestHeaders makes sure that the records of a moved header are found where it says, and that nothing of what went remains.
func TestHeaders(t *testing.T) {
	b := regionOf(sass(75).sized(512), sass(80).named("gone.cu", "-gone"), sass(90).named("kernel.cu", "-O3 -arch sm_90"), sass(100), ptx(75))
	p := mustLook(t, b, for90)
	got := slimmed(t, b, p, for90)
	e := sectionsOf(t, got).Regions[0].Entries[0]
	at := func(field int64) int64 { return e.Offset + int64(le.Uint32(got[e.Offset+field:])) }
	ident := got[at(32):][:le.Uint32(got[e.Offset+36:])]
	record := at(20)
	options := got[e.Offset+int64(le.Uint32(got[record:])):][:le.Uint32(got[record+4:])]
	if string(ident) != "kernel.cu" || string(options) != "-O3 -arch sm_90" {
		t.Errorf("identifier %q, options %q", ident, options)
	}
	for _, gone := range []string{"gone", "\x80\x80\x80", "\x81\x81\x81", "\x83\x83\x83"} {
		if bytes.Contains(got, []byte(gone)) {
			t.Errorf("%q is left", gone)
		}
	}
	want := FileReport{
		Kept:    []Code{{"sass", "90", 1, 64 + 16 + 24 + 64}, {"ptx", "75", 1, 128}},
		Dropped: []Code{{"sass", "75", 1, 64 + 512}, {"sass", "80", 1, 64 + 8 + 16 + 64}, {"sass", "100", 1, 128}},
		Zeroed:  576 + 152 + 128,
	}
	report := p.Report
	report.Zeroed = 0
	if d := cmp.Diff(want.Kept, report.Kept); d != "" {
		t.Errorf("kept (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want.Dropped, report.Dropped); d != "" {
		t.Errorf("dropped (-want +got):\n%s", d)
	}
	if n := p.Report.Zeroed - want.Zeroed; n < 0 || n > 16 { // zeros at the end of headers count too
		t.Errorf("%d bytes zeroed, want %d", p.Report.Zeroed, want.Zeroed)
	}
}

// TestSlimAgain makes sure that a slimmed file, whose headers are long, can be slimmed for fewer GPUs.
func TestSlimAgain(t *testing.T) {
	b := regionOf(sass(75).sized(maxHeader*3), sass(80), sass(86).sized(maxHeader), sass(90).named("kernel.cu", ""), ptx(90))
	first := Options{GPUs: []int{90, 80}}
	both := slimmed(t, b, mustLook(t, b, first), first)
	then := slimmed(t, both, mustLook(t, both, no90), no90)
	if !bytes.Equal(slimmed(t, b, mustLook(t, b, no90), no90), then) {
		t.Error("slimmed in two steps, the file is another")
	}
	both[maxHeader*2] = 1
	if p := mustLook(t, both, Options{GPUs: []int{80}}); !p.Empty() && p.touches(maxHeader*2, maxHeader*2+1) {
		t.Error("what a long header holds is lost")
	}
}

func TestLinked(t *testing.T) {
	linked := func(device ...entrySpec) []byte {
		return library{
			executable:  [][]byte{regionOf(sass(80), sass(90), ptx(90)), regionOf(device...)},
			relocatable: [][]byte{regionOf(sass(80), sass(90), relPTX(80).sized(32)), regionOf(sass(90), lto(90), relPTX(80))},
			versions:    []int{1, 2, 1, 1},
		}.bytes()
	}
	tests := []struct {
		name    string
		file    []byte
		options Options
		want    string
	}{
		{
			"kept", linked(sass(80), sass(90)), for90,
			"elf:90 ptx:90 | elf:90 | elf:90 relocatable-ptx:80 | elf:90 lto-ir:90 relocatable-ptx:80",
		},
		{"PTX dropped", linked(sass(80), sass(90)), no90, "elf:90 | elf:90 | elf:90 | elf:90 lto-ir:90"},
		{"dropped", linked(sass(80), sass(90)), least, "elf:90 | elf:90 | relocatable-ptx:80 | lto-ir:90"},
		{
			"linked again by the driver", linked(sass(80)), least,
			"elf:90 | elf:80 | elf:90 relocatable-ptx:80 | elf:90 lto-ir:90 relocatable-ptx:80",
		},
		{
			"linked again for one of two", linked(sass(90)),
			Options{GPUs: []int{90, 120}, PTX: DropWhereNative, DropRelocatable: true},
			"elf:90 ptx:90 | elf:90 | elf:90 relocatable-ptx:80 | elf:90 lto-ir:90 relocatable-ptx:80",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := mustLook(t, test.file, test.options)
			if p.Report.Refused != "" {
				t.Fatal(p.Report.Refused)
			}
			if got := describe(sectionsOf(t, slimmed(t, test.file, p, test.options))); got != test.want {
				t.Errorf("kept %s, want %s", got, test.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	code := regionOf(sass(80), sass(90))
	patched := func(b []byte, off int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[off:], v)
		return b
	}
	so := library{executable: [][]byte{code, code}, versions: []int{1, 1}, names: []string{".other"}}.bytes()
	sections := int(le.Uint64(so[40:])) // the table: an empty one, .nv_fatbin, the wrappers, .other
	first := int(le.Uint64(so[sections+sectionHeaderSize+24:]))
	wrappers := int(le.Uint64(so[sections+2*sectionHeaderSize+24:]))
	tests := []struct {
		name, want string
		file       []byte
	}{
		{"entry version", "damaged", patched(code, 16+2, 2)},
		{"region version", "no file that can hold", patched(code, 4, 2)},
		{"header size", "damaged", patched(code, 16+4, 32)},
		{"odd header size", "damaged", patched(code, 16+4, 65)},
		{"gap", "damaged", patched(code, 16+8, 56)},
		{"cut", "damaged", code[:len(code)-8]},
		{"old compression", "not known", regionOf(sass(80), sass(90).with(fatbin.FlagOldPack))},
		{"two compressions", "not known", regionOf(sass(80), sass(90).with(fatbin.FlagLZ4))},
		{"object file", "object file", library{executable: [][]byte{code}, kind: 1}.bytes()},
		{"wrapper elsewhere", "names no region", patched(so, wrappers+8, so[wrappers+8]+8)},
		{"wrapper version", "damaged", patched(so, wrappers+4, 3)},
		{"signature", "signed", library{executable: [][]byte{code}, names: []string{".note.signature"}}.bytes()},
		{"signature at the end", "signed", append(bytes.Clone(so), appendedSignature...)},
		{"section over the regions", "shares bytes", patched(so, sections+3*sectionHeaderSize+24, byte(first+8), 0)},
		{"no sections to read", "damaged", so[:sections]},
		{"offset", "multiple of 8", library{executable: [][]byte{append(make([]byte, 4), code...)}}.bytes()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := Look(context.Background(), bytes.NewReader(test.file), int64(len(test.file)), for90)
			switch {
			case err != nil && !strings.Contains(err.Error(), test.want):
				t.Error(err)
			case err == nil && (!strings.Contains(p.Report.Refused, test.want) || !p.Empty() || p.Report.Kept != nil):
				t.Errorf("report %+v, want %q", p.Report, test.want)
			}
		})
	}
	if p := mustLook(t, so, for90); p.Report.Refused != "" || p.Empty() {
		t.Errorf("the sound file: %+v", p.Report)
	}
}

func TestFixtures(t *testing.T) {
	host := "ptx:80 elf:90a | ptx:75 | ptx:80"
	for name, want := range map[string]string{
		"host.so": host, "host-relr.so": host, "host.exe": host,
		"zstd.fatbin": "ptx:80 elf:90a", "lz4.fatbin": "ptx:80 elf:90a", "stored.fatbin": "ptx:75",
		"debug.fatbin": "elf:90a ptx:120f", "lto.fatbin": "lto-ir:90", "kernel.cubin": "elf:90a", "kernel.ptx": "ptx:120f",
		"concatenated.fatbin": "ptx:80 (elf:80 elf:90a)", "relocatable.fatbin": "ptx:80",
		"host.o": "an object file is input", "hip.o": "an object file",
	} {
		t.Run(name, func(t *testing.T) {
			b := fatbinFixture(t, name)
			p := mustLook(t, b, for90)
			if p.Report.Refused != "" {
				if !strings.HasPrefix(p.Report.Refused, want) {
					t.Error(p.Report.Refused)
				}
				return
			}
			got := slimmed(t, b, p, for90)
			f := sectionsOf(t, got)
			if kept := describe(f); kept != want {
				t.Errorf("kept %s, want %s", kept, want)
			}
			v, err := f.Verify(context.Background())
			if err != nil || len(v.Problems) > 0 {
				t.Errorf("images that do not unpack: %v, %v", v.Problems, err)
			}
		})
	}
}

func fatbinFixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "fatbin", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDamage changes bytes of sound files, all those of a small one, and cuts them: they are slimmed soundly or not at all.
func TestDamage(t *testing.T) {
	so := library{
		executable:  [][]byte{regionOf(sass(80), sass(90).named("kernel.cu", "-O3"), ptx(90)), regionOf(concatenated(sass(80), sass(75)), sass(90), sass(75))},
		relocatable: [][]byte{regionOf(sass(80), relPTX(80), sass(90))},
		versions:    []int{1, 2, 1},
	}.bytes()
	for name, stride := range map[string]int{"": 1, "zstd.fatbin": 7, "host.so": 61} {
		t.Run(name, func(t *testing.T) {
			b := so
			if name != "" {
				b = fatbinFixture(t, name)
			}
			hurt := func(b []byte) {
				p, err := Look(context.Background(), bytes.NewReader(b), int64(len(b)), least)
				if err != nil {
					if !errors.Is(err, fatbin.ErrFormat) {
						t.Fatal(err)
					}
					return
				}
				if !p.Empty() {
					slimmed(t, b, p, least)
				}
			}
			for i := 0; i < len(b); i += stride {
				flipped := bytes.Clone(b)
				for _, v := range []byte{b[i] ^ 1, b[i] ^ 0x80, 0xFF} {
					flipped[i] = v
					hurt(flipped)
				}
				cut := b[:i]
				if p, err := Look(context.Background(), bytes.NewReader(cut), int64(len(cut)), least); err == nil && !p.Empty() {
					t.Fatalf("cut to %d of %d bytes, it is slimmed", i, len(b))
				}
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	so := library{executable: [][]byte{regionOf(sass(80), sass(90))}, versions: []int{1}}.bytes()
	broken := errors.New("broken")
	for after := range 40 {
		r := &failing{r: bytes.NewReader(so), left: after, err: broken}
		p, err := Look(context.Background(), r, int64(len(so)), for90)
		if r.left < 0 && !errors.Is(err, broken) {
			t.Fatalf("after %d reads: %+v, %v", after, p, err)
		}
		if r.left >= 0 && err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Look(ctx, bytes.NewReader(so), int64(len(so)), for90); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Look(context.Background(), bytes.NewReader(so[:100]), int64(len(so)), for90); err == nil {
		t.Error("a file that is shorter than its size is read")
	}
}

// failing is a reader whose reads fail after some.
type failing struct {
	r    io.ReaderAt
	left int
	err  error
}

func (f *failing) ReadAt(b []byte, off int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return f.r.ReadAt(b, off)
}

func TestOptions(t *testing.T) {
	one := Options{GPUs: []int{90, 80, 90}}
	two := Options{GPUs: []int{80, 90}, PTX: KeepPTX}
	if one.Key() != two.Key() || one.Key() != "slim-v2 gpu=80,90 ptx=keep" {
		t.Errorf("keys %q, %q", one.Key(), two.Key())
	}
	if least.Key() != "slim-v2 gpu=90 ptx=drop-where-native relocatable=drop" {
		t.Error(least.Key())
	}
	b := regionOf(sass(90))
	for _, o := range []Options{{}, {GPUs: []int{9}}, {GPUs: []int{90}, PTX: "all"}} {
		if _, err := Look(context.Background(), bytes.NewReader(b), int64(len(b)), o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// TestReader reads the changed file in pieces of all sizes.
func TestReader(t *testing.T) {
	b := bytes.Repeat([]byte{7}, 100)
	p := &Plan{edits: []edit{{40, 20, []byte{1, 2, 3}}, {0, 4, []byte{9, 9, 9, 9}}, {60, 1, nil}, {99, 1, []byte{5}}}}
	if err := p.sortEdits(); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(b)
	for _, e := range p.edits {
		copy(want[e.Off:e.end()], make([]byte, e.Size))
		copy(want[e.Off:], e.Data)
	}
	for n := 1; n <= len(b); n++ {
		var got bytes.Buffer
		if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{p.Reader(bytes.NewReader(b))}, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("in pieces of %d bytes: % x", n, got.Bytes())
		}
		for off := 0; off+n <= len(b); off++ {
			piece := make([]byte, n)
			if _, err := p.ReaderAt(bytes.NewReader(b)).ReadAt(piece, int64(off)); err != nil || !bytes.Equal(piece, want[off:off+n]) {
				t.Fatalf("%d bytes at %d: % x (%v)", n, off, piece, err)
			}
		}
	}
	for _, r := range []io.Reader{iotest.OneByteReader(bytes.NewReader(b)), iotest.DataErrReader(bytes.NewReader(b))} {
		if got, err := io.ReadAll(p.Reader(r)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("% x, %v", got, err)
		}
	}
	p.edits = append(p.edits, edit{Off: 59, Size: 2})
	if p.sortEdits() == nil {
		t.Error("edits of the same bytes are taken")
	}
}
