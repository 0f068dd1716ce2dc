package fatbin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func scan(t testing.TB, b []byte, o Options) *File {
	t.Helper()
	f, err := Scan(bytes.NewReader(b), int64(len(b)), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// list describes each image in a line.
func list(f *File) []string {
	var lines []string
	for i := range f.Regions {
		r := &f.Regions[i]
		for e := range r.Images() {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %v %v %d.%d %s", r.Section, r.Place, e.Kind, e.Arch, e.Major, e.Minor, e.Compression)))
		}
	}
	return lines
}

func lines(s string) []string {
	var list []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}

func TestScan(t *testing.T) {
	host := `.nv_fatbin executable elf sm_80 1.8 zstd
		.nv_fatbin executable ptx sm_80 9.5 zstd
		.nv_fatbin executable elf sm_90a 1.8 zstd
		.nv_fatbin executable elf sm_100f 1.8 zstd
		.nv_fatbin executable elf sm_75 1.8 none
		.nv_fatbin executable ptx sm_75 9.5 none
		__nv_relfatbin relocatable elf sm_80 1.8 zstd
		__nv_relfatbin relocatable ptx sm_80 9.5 zstd
		.rodata stray elf sm_80 1.8 lz4
		.rodata stray ptx sm_80 9.5 lz4
		.rodata stray elf sm_90a 1.8 lz4
		.rodata stray elf sm_100f 1.8 lz4
		.rodata stray elf sm_90a 1.8 none`
	tests := []struct {
		name   string
		format Format
		want   string
	}{
		{"stored.fatbin", Fatbin, `bare elf sm_75 1.8 none
			bare ptx sm_75 9.5 none`},
		{"lz4.fatbin", Fatbin, `bare elf sm_80 1.8 lz4
			bare ptx sm_80 9.5 lz4
			bare elf sm_90a 1.8 lz4
			bare elf sm_100f 1.8 lz4`},
		{"concatenated.fatbin", Fatbin, `bare ptx sm_80 9.5 zstd
			bare elf sm_100f 1.8 zstd
			bare elf sm_80 1.8 zstd
			bare elf sm_90a 1.8 zstd`},
		{"debug.fatbin", Fatbin, `bare elf sm_90a 1.8 zstd
			bare ptx sm_120f 9.5 zstd`},
		{"lto.fatbin", Fatbin, "bare lto-ir sm_90 1.67 zstd"},
		{"kernel.cubin", Cubin, "bare elf sm_90a 1.8 none"},
		{"kernel.ptx", PTXText, "bare ptx sm_120f 9.5 none"},
		{"host.so", ELF, host},
		{"host-relr.so", ELF, host},
		{"host.exe", ELF, host},
		{"host.o", ELF, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := fixture(t, test.name)
			f := scan(t, b, Options{})
			if f.Format != test.format || len(f.Problems) > 0 {
				t.Errorf("format %q, problems %v", f.Format, f.Problems)
			}
			if test.want != "" {
				if d := cmp.Diff(lines(test.want), list(f)); d != "" {
					t.Errorf("images (-want +got):\n%s", d)
				}
			}
			checkShape(t, f, int64(len(b)))
		})
	}
}

// checkShape makes sure that regions and entries lie where they say, without gaps.
func checkShape(t testing.TB, f *File, size int64) {
	t.Helper()
	for _, r := range f.Regions {
		if !within(r.Offset, r.Size, 0, size) || r.Size <= 0 {
			t.Fatalf("a region of %d bytes at %d in a file of %d", r.Size, r.Offset, size)
		}
		at := r.Offset
		if !r.Headerless {
			at += regionHeaderSize
		}
		for _, e := range r.Entries {
			if e.Offset != at || e.PayloadSize > e.PaddedSize {
				t.Fatalf("an entry at %d, the one before ends at %d; %d bytes of %d", e.Offset, at, e.PayloadSize, e.PaddedSize)
			}
			at = e.End()
			for _, p := range e.Parts {
				if !within(p.Offset, p.PayloadSize, 0, e.UncompressedSize) {
					t.Fatalf("a part of %d bytes at %d in an image of %d", p.PayloadSize, p.Offset, e.UncompressedSize)
				}
			}
		}
		if end := r.Offset + r.Size; at > end || at < end && len(f.Problems) == 0 {
			t.Fatalf("the entries end at %d, the region at %d", at, end)
		}
	}
}

func TestSizesAndFlags(t *testing.T) {
	f := scan(t, fixture(t, "debug.fatbin"), Options{})
	got := f.Regions[0].Entries[0]
	want := Entry{
		Kind: ELFImage, Arch: Arch{SM: 90, Variant: "a"}, Major: 1, Minor: 8, Flags: Flag64Bit | FlagDebug | FlagLinux | FlagZstd | FlagArchOnly,
		Compression: Zstd, Offset: 16, HeaderSize: 80, PaddedSize: 968, PayloadSize: 967, UncompressedSize: 3444,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entry (-want +got):\n%s", d)
	}
	f = scan(t, fixture(t, "concatenated.fatbin"), Options{})
	last := f.Regions[0].Entries[len(f.Regions[0].Entries)-1]
	if last.Kind != Concatenated || len(last.Parts) == 0 || last.Parts[0].HeaderSize != 0 {
		t.Errorf("the last entry is %+v, want parts", last)
	}
}

func TestSectionsOnly(t *testing.T) {
	f := scan(t, fixture(t, "host.so"), Options{SectionsOnly: true})
	if len(f.Regions) != 3 || len(f.Problems) > 0 {
		t.Errorf("%d regions and problems %v, want the 3 of the sections", len(f.Regions), f.Problems)
	}
}

func TestWithoutSectionHeaders(t *testing.T) {
	b := fixture(t, "host.so")
	clear(b[40:48]) // e_shoff
	clear(b[58:64]) // e_shentsize, e_shnum, e_shstrndx
	if f := scan(t, b, Options{}); len(f.Regions) != 5 || len(f.Problems) > 0 {
		t.Errorf("%d regions and problems %v, want all 5", len(f.Regions), f.Problems)
	}
}

func TestWrappers(t *testing.T) {
	for _, name := range []string{"host.so", "host-relr.so", "host.exe", "host.o"} {
		f := scan(t, fixture(t, name), Options{})
		if len(f.Wrappers) != 3 {
			t.Errorf("%s: %d wrappers, want 3", name, len(f.Wrappers))
			continue
		}
		for i, version := range []int{1, 2, 1} {
			w := f.Wrappers[i]
			if w.Region < 0 || w.Version != version || w.Target != f.Regions[w.Region].Offset || f.Regions[w.Region].Wrapper != version {
				t.Errorf("%s: wrapper %d is %+v", name, i, w)
			}
		}
	}
}

func TestWrapperToNowhere(t *testing.T) {
	b := fixture(t, "host.exe")
	f := scan(t, b, Options{})
	b[f.Wrappers[0].Offset+wrapperData] += 8
	if f = scan(t, b, Options{}); len(f.Problems) != 1 || f.Wrappers[0].Region != -1 {
		t.Errorf("problems %v, wrapper %+v; want one that points where no region is", f.Problems, f.Wrappers[0])
	}
}

// oneMember makes a member of an archive.
func oneMember(name string, content []byte) []byte {
	b := fmt.Appendf(nil, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, 0, 0, 0, 0o644, len(content))
	b = append(b, content...)
	if len(b)%2 == 1 {
		b = append(b, '\n')
	}
	return b
}

func TestArchive(t *testing.T) {
	long := "a_name_that_does_not_fit_into_its_field.o"
	b := []byte(archiveMagic)
	b = append(b, oneMember("/", []byte("\x00\x00\x00\x00"))...)
	b = append(b, oneMember("//", []byte(long+"/\nodd/\n"))...)
	b = append(b, oneMember("/0", fixture(t, "host.o"))...)
	b = append(b, oneMember("readme.txt/", []byte("odd"))...)
	b = append(b, oneMember("short.ptx/", fixture(t, "kernel.ptx"))...)
	b = append(b, oneMember("#1/12", append([]byte("bsd.cubin\x00\x00\x00"), fixture(t, "kernel.cubin")...))...)
	f := scan(t, b, Options{})
	got := map[string]int{}
	for i := range f.Regions {
		got[f.Regions[i].Member]++
	}
	want := map[string]int{long: 5, "short.ptx": 1, "bsd.cubin": 1}
	if d := cmp.Diff(want, got); d != "" || f.Format != Archive || f.Linked || len(f.Problems) > 0 {
		t.Errorf("%s, problems %v, regions by member (-want +got):\n%s", f.Format, f.Problems, d)
	}
	v, err := f.Verify(context.Background())
	if err != nil || len(v.Problems) > 0 || v.Images != 15 {
		t.Errorf("verify: %+v, %v; want 15 images", v, err)
	}
	if f = scan(t, b[:len(b)-100], Options{}); len(f.Problems) != 1 || len(f.Regions) != 6 {
		t.Errorf("a cut archive has %d regions and problems %v, want 6 and one", len(f.Regions), f.Problems)
	}
}

func TestRefused(t *testing.T) {
	elf32 := fixture(t, "host.so")
	elf32[4] = 1
	for name, test := range map[string]struct{ content, want string }{
		"empty":     {"", "no file that can hold"},
		"text":      {"# .version is not the first word\n.version 8.0\n", "no file that can hold"},
		"thin":      {thinMagic + "whatever", "thin archive"},
		"32-bit":    {string(elf32), "64-bit"},
		"truncated": {"\x7fELF", "64-bit"},
	} {
		_, err := Scan(strings.NewReader(test.content), int64(len(test.content)), Options{})
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

// TestDamage changes a header in one place, and says what then is found.
func TestDamage(t *testing.T) {
	tests := []struct {
		name    string
		at      int
		to      []byte
		problem string
		images  int
	}{
		{"region longer than the file", 8, []byte{0xff, 0xff}, "more than the", 0},
		{"region of any size", 8, bytes.Repeat([]byte{0xff}, 8), "more than the", 0},
		{"version of an entry", 16 + 2, []byte{9}, "version", 0},
		{"short header", 16 + 4, []byte{63}, "header of 63", 0},
		{"long header", 16 + 4, []byte{0, 0, 0, 0xff}, "header of", 0},
		{"long payload", 16 + 8, bytes.Repeat([]byte{0xff}, 8), "payload of", 0},
		{"odd payload", 16 + 8, []byte{1}, "multiple of 8", 0},
		{"compressed size", 16 + 16, []byte{0xff, 0xff}, "compressed size", 0},
		{"no uncompressed size", 16 + 56, make([]byte, 8), "uncompressed size", 0},
		{"huge uncompressed size", 16 + 56, bytes.Repeat([]byte{0xff}, 8), "uncompressed size", 0},
		{"stored after all", 16 + 40, []byte{0x11, 0}, "stored entry", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := fixture(t, "zstd.fatbin")
			copy(b[test.at:], test.to)
			f := scan(t, b, Options{})
			if len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Text, test.problem) {
				t.Errorf("problems %v, want one with %q", f.Problems, test.problem)
			}
			if n := len(list(f)); n != test.images {
				t.Errorf("%d images, want %d", n, test.images)
			}
			checkShape(t, f, int64(len(b)))
		})
	}
}

func TestDamageKeepsTheRest(t *testing.T) {
	one := fixture(t, "stored.fatbin")
	first := scan(t, one, Options{}).Regions[0].Entries[0]
	broken := bytes.Clone(one)
	broken[first.End()+2] = 9
	both := append(append(broken, make([]byte, 40)...), one...)
	f := scan(t, both, Options{})
	if len(f.Regions) != 2 || len(list(f)) != 3 || len(f.Problems) != 1 || f.Problems[0].Offset != first.End() {
		t.Errorf("%d regions, images %q, problems %v; want what stands before and after the damage", len(f.Regions), list(f), f.Problems)
	}
	f = scan(t, append(bytes.Clone(one), "trailing junk that is no region"...), Options{})
	if len(f.Regions) != 1 || len(f.Problems) != 1 {
		t.Errorf("%d regions, problems %v; want the junk told", len(f.Regions), f.Problems)
	}
}

// A header may be larger than what stands in it: so entries are dropped without moving others.
func TestGrownHeader(t *testing.T) {
	b := fixture(t, "stored.fatbin")
	r := scan(t, b, Options{}).Regions[0]
	first, second := r.Entries[0], r.Entries[1]
	copy(b[first.Offset:], b[second.Offset:second.Offset+second.HeaderSize])
	le.PutUint32(b[first.Offset+4:], uint32(second.Offset+second.HeaderSize-first.Offset))
	f := scan(t, b, Options{})
	if d := cmp.Diff([]string{"bare ptx sm_75 9.5 none"}, list(f)); d != "" || len(f.Problems) > 0 {
		t.Errorf("problems %v, images (-want +got):\n%s", f.Problems, d)
	}
	if v, err := f.Verify(context.Background()); err != nil || v.Images != 1 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// hole is a file of zeros but for its start, which counts what is read of it.
type hole struct {
	head []byte
	read int64
}

func (h *hole) ReadAt(b []byte, off int64) (int, error) {
	h.read += int64(len(b))
	clear(b)
	if off < int64(len(h.head)) {
		copy(b, h.head[off:])
	}
	return len(b), nil
}

func TestPayloadsAreSkipped(t *testing.T) {
	const payload = 1 << 30
	head := fixture(t, "stored.fatbin")[:regionHeaderSize+entryHeaderSize]
	le.PutUint64(head[8:], entryHeaderSize+payload)
	le.PutUint64(head[regionHeaderSize+8:], payload)
	h := &hole{head: head}
	f, err := Scan(h, int64(len(head))+payload, Options{})
	if err != nil || len(list(f)) != 1 || len(f.Problems) > 0 {
		t.Fatalf("%v, %v, %v", f.Problems, list(f), err)
	}
	if h.read > 2*windowSize {
		t.Errorf("read %d bytes for two headers", h.read)
	}
}

type failing struct{ io.ReaderAt }

var errDisk = errors.New("disk on fire")

func (f failing) ReadAt(b []byte, off int64) (int, error) {
	if off > 1000 {
		return 0, errDisk
	}
	return f.ReaderAt.ReadAt(b[:min(len(b), 2000)], off)
}

func TestReadErrors(t *testing.T) {
	b := fixture(t, "host.so")
	if _, err := Scan(failing{bytes.NewReader(b)}, int64(len(b)), Options{}); !errors.Is(err, errDisk) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want that of the disk", err)
	}
	archive := append([]byte(archiveMagic), oneMember("kernel.cubin/", fixture(t, "kernel.cubin"))...)
	archive = append(archive, oneMember("kernel.ptx/", fixture(t, "kernel.ptx"))...)
	for name, b := range map[string][]byte{"archive": archive, "bundle": bytes.Repeat(bundle("gfx942"), 2)} {
		if _, err := Scan(failing{bytes.NewReader(b)}, int64(len(b)), Options{}); !errors.Is(err, errDisk) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: error %v, want that of the disk", name, err)
		}
	}
	f := scan(t, fixture(t, "zstd.fatbin"), Options{})
	f.r = failing{f.r}
	if _, err := f.Verify(context.Background()); !errors.Is(err, errDisk) {
		t.Errorf("verify: error %v, want that of the disk", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("verify: error %v, want that it was cancelled", err)
	}
}

// TestLimits has files of headers only, which no real file comes near. The listing ends, and says so.
func TestLimits(t *testing.T) {
	entry := make([]byte, entryHeaderSize)
	copy(entry, []byte{byte(ELFImage), 0, 1, 1, entryHeaderSize})
	entries := bytes.Repeat(entry, maxEntries+1)
	flood := append(bytes.Clone(regionMagic), le.AppendUint64(nil, uint64(len(entries)))...)
	flood = append(flood, entries...)
	f := scan(t, flood, Options{})
	if len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Text, "more than") {
		t.Errorf("a flood of entries: problems %v, want one about the limit", f.Problems)
	}

	empty := append(bytes.Clone(regionMagic), make([]byte, 8)...)
	f = scan(t, bytes.Repeat(empty, maxRegions+1), Options{})
	if len(f.Regions) != maxRegions || len(f.Problems) != 1 {
		t.Errorf("a flood of regions: %d, problems %v; want %d and one", len(f.Regions), f.Problems, maxRegions)
	}

	// Candidates in plain data, each of which has to be looked at: none is sound.
	so := fixture(t, "host.so")
	clear(so[40:48]) // without section headers the segments are searched
	clear(so[58:64])
	fake := append(bytes.Clone(regionMagic), bytes.Repeat([]byte{0xff}, 8)...)
	for off := int64(elfHeaderSize + 56*12); off+16 <= int64(len(so)); off += 16 {
		copy(so[off:], fake)
	}
	if f = scan(t, so, Options{}); len(f.Regions) != 0 {
		t.Errorf("%d regions of candidates that are none", len(f.Regions))
	}
}
