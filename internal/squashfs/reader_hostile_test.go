package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"

	"sconce.dev/sconce/internal/tooltest"
)

// handmade is an image of stored metadata that a test composes byte by byte.
type handmade struct {
	data         []byte // blocks of files, behind the superblock
	inodes, dirs []byte
	change       func(*superblock)
}

var le = binary.LittleEndian

// inode adds an inode of a type with what follows its head, and returns its reference.
func (h *handmade) inode(kind uint16, number uint32, rest ...any) uint64 {
	at := len(h.inodes)
	h.inodes = appendAll(h.inodes, kind, uint16(0o755), uint16(0), uint16(0), uint32(0), number)
	h.inodes = appendAll(h.inodes, rest...)
	// A block is its data and two bytes.
	return inodeRef(int64(at/metadataSize)*(metadataSize+2), at%metadataSize)
}

// dir adds a directory whose listing is the bytes of text.
func (h *handmade) dir(number uint32, text []byte) uint64 {
	at := len(h.dirs)
	h.dirs = append(h.dirs, text...)
	return h.inode(typeDir, number, uint32(at/metadataSize*(metadataSize+2)), uint32(2), uint16(len(text)+dirExtra), uint16(at%metadataSize), uint32(1))
}

// dirText is a listing of one entry.
func dirText(name string, kind uint16, ref uint64) []byte {
	b := appendAll(nil, uint32(0), uint32(ref>>16), uint32(1), uint16(ref), uint16(0), kind, uint16(len(name)-1))
	return append(b, name...)
}

func appendAll(b []byte, values ...any) []byte {
	for _, v := range values {
		b, _ = binary.Append(b, le, v)
	}
	return b
}

func metadataOf(b []byte) (out []byte) {
	for len(b) > 0 {
		n := min(len(b), metadataSize)
		out = appendAll(out, uint16(n|metadataStored))
		out, b = append(out, b[:n]...), b[n:]
	}
	return out
}

func (h *handmade) image(root uint64) []byte {
	s := superblock{
		Magic: Magic, Inodes: 9, BlockSize: 4096, BlockLog: 12, Compressor: uint16(Gzip), IDs: 1, Major: 4, Root: root,
		InodeTable: superblockSize + uint64(len(h.data)), XattrTable: noTable, ExportTable: noTable, FragmentTable: noTable,
	}
	body := append(bytes.Clone(h.data), metadataOf(h.inodes)...)
	s.DirTable = superblockSize + uint64(len(body))
	body = append(body, metadataOf(h.dirs)...)
	ids := uint64(superblockSize + len(body))
	body = append(body, metadataOf([]byte{0, 0, 0, 0})...)
	s.IDTable = uint64(superblockSize + len(body))
	body = appendAll(body, ids)
	s.BytesUsed = uint64(superblockSize + len(body))
	if h.change != nil {
		h.change(&s)
	}
	return append(s.encode(), body...)
}

// walkAll opens an image and reads all of it.
func walkAll(image []byte) error {
	r, err := New(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return err
	}
	return r.Walk(func(_ string, f *File) error {
		if f.Type == Regular && f.Size > 0 {
			if _, err := f.Content().ReadAt(make([]byte, 1), 0); err != nil {
				return err
			}
		}
		_, err := f.Xattrs()
		return err
	})
}

// TestHostileImages composes images that want to lead a reader astray, and expects to be told.
func TestHostileImages(t *testing.T) {
	regular := func(h *handmade) uint64 {
		return h.inode(typeFile, 2, uint32(0), uint32(noFragment), uint32(0), uint32(0))
	}
	withName := func(name string) func(*handmade) uint64 {
		return func(h *handmade) uint64 { return h.dir(1, dirText(name, typeFile, regular(h))) }
	}
	cases := []struct {
		name, want string
		root       func(*handmade) uint64
	}{
		{"fine", "", withName("a")},
		{"fine, 255 bytes", "", withName(strings.Repeat("a", 255))},
		{"parent", `an entry ".."`, withName("..")},
		{"itself", `an entry "."`, withName(".")},
		{"slash", `an entry "a/b"`, withName("a/b")},
		{"root", `an entry "/"`, withName("/")},
		{"NUL", `an entry "a\x00b"`, withName("a\x00b")},
		{"long name", "name of 300 bytes", withName(strings.Repeat("a", 300))},
		{"loop", "in two places", func(h *handmade) uint64 { return h.dir(1, dirText("a", typeDir, 0)) }},
		{"twice the same", `two entries "a"`, func(h *handmade) uint64 {
			ref := regular(h)
			return h.dir(1, append(dirText("a", typeFile, ref), dirText("a", typeFile, ref)...))
		}},
		{"same directory twice", "in two places", func(h *handmade) uint64 {
			ref := h.dir(2, nil)
			return h.dir(1, append(dirText("a", typeDir, ref), dirText("b", typeDir, ref)...))
		}},
		{"other type", "different types", func(h *handmade) uint64 { return h.dir(1, dirText("a", typeSymlink, regular(h))) }},
		{"type 9", "of type 9", func(h *handmade) uint64 { return h.dir(1, dirText("a", 9, regular(h))) }},
		{"inode of type 15", "inode of type 15", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(15, 2, uint64(0), uint64(0))))
		}},
		{"inode elsewhere", "outside of the table", func(h *handmade) uint64 { return h.dir(1, dirText("a", typeFile, 1<<36)) }},
		{"inode in no byte", "byte 60000", func(h *handmade) uint64 { return h.dir(1, dirText("a", typeFile, 60000)) }},
		{"many entries", "run of", func(h *handmade) uint64 { return h.dir(1, appendAll(nil, uint32(256), uint32(0), uint32(1))) }},
		{"minus entries", "run of", func(h *handmade) uint64 { return h.dir(1, appendAll(nil, uint32(1<<32-1), uint32(0), uint32(1))) }},
		{"half a header", "ends in a header", func(h *handmade) uint64 { return h.dir(1, []byte("abc")) }},
		{"half an entry", "ends in an entry", func(h *handmade) uint64 { return h.dir(1, dirText("a", typeFile, regular(h))[:15]) }},
		{"long listing", "more entries than their table", func(h *handmade) uint64 {
			return h.inode(typeDir+extended, 1, uint32(2), uint32(1<<32-1), uint32(0), uint32(1), uint16(0), uint16(0), uint32(noXattrs))
		}},
		{"listing without end", "more entries than their table", func(h *handmade) uint64 {
			h.dirs = make([]byte, 100)
			return h.inode(typeDir+extended, 1, uint32(2), uint32(100<<20), uint32(0), uint32(1), uint16(0), uint16(0), uint32(noXattrs))
		}},
		{"root is a file", "root is no directory", regular},
		{"long symlink", "path of 4294967295 bytes", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeSymlink, h.inode(typeSymlink, 2, uint32(1), uint32(1<<32-1))))
		}},
		{"symlink to nothing", "path of 0 bytes", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeSymlink, h.inode(typeSymlink, 2, uint32(1), uint32(0))))
		}},
		{"symlink with NUL", "symlink to", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeSymlink, h.inode(typeSymlink, 2, uint32(1), uint32(3), []byte("a\x00b"))))
		}},
		{"cut symlink", "in the middle of something", func(h *handmade) uint64 {
			root := h.dir(1, dirText("a", typeSymlink, 32))
			h.inode(typeSymlink, 2, uint32(1), uint32(4000), []byte("cut"))
			return root
		}},
		{"no such fragment", "fragment block 5 of 0", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile, 2, uint32(0), uint32(5), uint32(0), uint32(10))))
		}},
		{"enormous file", "file of 9223372036854775807 bytes", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile+extended, 2, uint64(0), uint64(1<<63-1), uint64(0), uint32(1), uint32(noFragment), uint32(0), uint32(noXattrs))))
		}},
		{"large file without blocks", "in the middle of something", func(h *handmade) uint64 {
			root := h.dir(1, dirText("a", typeFile, 32))
			h.inode(typeFile+extended, 2, uint64(0), uint64(1<<39), uint64(0), uint32(1), uint32(noFragment), uint32(0), uint32(noXattrs))
			return root
		}},
		{"block outside", "block of 0xfff bytes at 96", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile, 2, uint32(96), uint32(noFragment), uint32(0), uint32(4096), uint32(4095))))
		}},
		{"block too large", "block of 0x100ffff bytes", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile, 2, uint32(96), uint32(noFragment), uint32(0), uint32(4096), uint32(blockStored|65535))))
		}},
		{"block too short", "has 10 bytes and should have 4096", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile, 2, uint32(96), uint32(noFragment), uint32(0), uint32(4096), uint32(blockStored|10))))
		}},
		{"file after the end", "begins at 4000000000", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFile, h.inode(typeFile, 2, uint32(4e9), uint32(noFragment), uint32(0), uint32(4096), uint32(1))))
		}},
		{"no such attributes", "number 7 of 0", func(h *handmade) uint64 {
			return h.dir(1, dirText("a", typeFifo, h.inode(typeFifo+extended, 2, uint32(1), uint32(7))))
		}},
		{"no such id", "id number 9 of 1", func(h *handmade) uint64 {
			root := regular(h)
			h.inodes[4] = 9
			return root
		}},
		{"very deep", "directories in each other", func(h *handmade) uint64 {
			ref := h.dir(1, nil)
			for i := range uint32(maxDepth + 1) {
				ref = h.dir(i+2, dirText("d", typeDir, ref))
			}
			return ref
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := &handmade{}
			root := c.root(h)
			checkRefused(t, walkAll(h.image(root)), c.want)
		})
	}
}

func checkRefused(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil {
		t.Fatal(err)
	}
	if want != "" && (!errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want)) {
		t.Fatalf("%v, want %q", err, want)
	}
}

// TestHostileSuperblocks changes the superblock of a good image.
func TestHostileSuperblocks(t *testing.T) {
	cases := []struct {
		want   string
		change func(*superblock)
	}{
		{"", func(*superblock) {}},
		{"does not begin with hsqs", func(s *superblock) { s.Magic++ }},
		{"big endian", func(s *superblock) { s.Magic = 0x68737173 }},
		{"version 3.1", func(s *superblock) { s.Major, s.Minor = 3, 1 }},
		{"block size of 8192 bytes (log 12)", func(s *superblock) { s.BlockSize = 8192 }},
		{"block size of 2097152", func(s *superblock) { s.BlockSize, s.BlockLog = 2<<20, 21 }},
		{"block size of 0", func(s *superblock) { s.BlockSize, s.BlockLog = 0, 32 }},
		{"it is cut off", func(s *superblock) { s.BytesUsed++ }},
		{"bytes used", func(s *superblock) { s.BytesUsed = 1<<64 - 1 }},
		{"bytes used", func(s *superblock) { s.BytesUsed = 95 }},
		{"inode table at 95", func(s *superblock) { s.InodeTable = 95 }},
		{"directory table at 18446744073709551615", func(s *superblock) { s.DirTable = noTable }},
		{"0 inodes", func(s *superblock) { s.Inodes = 0 }},
		{"0 ids", func(s *superblock) { s.IDs = 0 }},
		{"table of 65535 entries", func(s *superblock) { s.IDs = 65535 }},
		{"read id table", func(s *superblock) { s.IDTable = noTable }},
		{"read id table", func(s *superblock) { s.IDTable -= 3 }},
		{"read fragment table: not a valid squashfs file system: table of 4294967295 entries", func(s *superblock) { s.Fragments = 1<<32 - 1 }},
		{"read fragment table", func(s *superblock) { s.Fragments, s.FragmentTable = 1<<32-1, 100 }},
		{"read table of extended attributes", func(s *superblock) { s.XattrTable = s.BytesUsed - 3 }},
		{"read table of extended attributes", func(s *superblock) { s.XattrTable = 1 << 63 }},
		{"read root directory", func(s *superblock) { s.Root = 1<<64 - 1 }},
		{"read compressor options", func(s *superblock) { s.Flags, s.InodeTable, s.BytesUsed = flagOptions, 96, 98; s.DirTable = 97 }},
	}
	for _, c := range cases {
		t.Run(c.want, func(t *testing.T) {
			h := &handmade{change: c.change}
			checkRefused(t, walkAll(h.image(h.dir(1, nil))), c.want)
		})
	}
	for n := range superblockSize {
		checkRefused(t, walkAll(make([]byte, n)), "too short for a superblock")
	}
}

// TestUnknownCompressor says what it is and what to do; what is not compressed can be read all the same.
func TestUnknownCompressor(t *testing.T) {
	h := &handmade{change: func(s *superblock) { s.Compressor = 9 }}
	image := h.image(h.dir(1, nil))
	checkRefused(t, walkAll(image), "")
	image[superblockSize+1] &= 0x7f // the inode table is compressed
	err := walkAll(image)
	checkRefused(t, err, "compressed with compressor 9")
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "mksquashfs -comp zstd") {
		t.Error(err)
	}
}

func zlibOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

// bombs compresses zeros by each compressor.
func bombs(t testing.TB, n int) map[Compressor][]byte {
	t.Helper()
	zeros := make([]byte, n)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var x, l bytes.Buffer
	xw, err := xz.WriterConfig{DictCap: 1 << 20, CheckSum: xz.CRC32}.NewWriter(&x)
	must(err)
	_, err = xw.Write(zeros)
	must(err)
	must(xw.Close())
	lw, err := lzma.NewWriter(&l)
	must(err)
	_, err = lw.Write(zeros)
	must(err)
	must(lw.Close())
	e, err := zstd.NewWriter(nil)
	must(err)
	b := make([]byte, lz4.CompressBlockBound(n))
	m, err := lz4.CompressBlock(zeros, b, nil)
	must(err)
	return map[Compressor][]byte{
		Gzip: zlibOf(t, zeros), XZ: x.Bytes(), LZMA: l.Bytes(), Zstd: e.EncodeAll(zeros, nil), LZ4: b[:m], LZO: lzoZeros(n),
	}
}

// lzoZeros is a long run of zeros: one literal, a copy of the rest, the end.
func lzoZeros(n int) []byte {
	b := []byte{17 + 1, 0, 32} // a literal; a copy of a length that follows
	n -= 1 + 31 + 2
	for ; n > 255; n -= 255 {
		b = append(b, 0)
	}
	return append(b, byte(n), 0, 0, 17, 0, 0)
}

// TestBombs refuses blocks that decompress to more than a block, without making room for them.
func TestBombs(t *testing.T) {
	large := 64 << 20
	if tooltest.Less(t) {
		large = 2 << 20
	}
	for _, n := range []int{10_000, metadataSize + 1, large} {
		for c, packed := range bombs(t, n) {
			t.Run(fmt.Sprint(c, " ", n), func(t *testing.T) {
				expand, err := newExpander(c)
				if err != nil {
					t.Fatal(err)
				}
				dst := make([]byte, metadataSize, 2*metadataSize)
				guard := dst[metadataSize:cap(dst)]
				for i := range guard {
					guard[i] = 0xaa
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if n, err := expand(dst, packed); err == nil {
					t.Errorf("%d bytes", n)
				}
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
					t.Errorf("took %d bytes", used)
				}
				if bytes.Count(guard, []byte{0xaa}) != len(guard) {
					t.Error("wrote behind its room")
				}
				if n > 1<<20 {
					return
				}
				room := make([]byte, n)
				if m, err := expand(room, packed); err != nil || m != n {
					t.Errorf("%d bytes, %v", m, err)
				}
			})
		}
	}
}

// TestXZFilters names the filter that it does not know.
func TestXZFilters(t *testing.T) {
	packed := bombs(t, 100)[XZ]
	head := packed[12 : 12+(int(packed[12])+1)*4]
	head[1] |= 1 // two filters, of which the first is
	head[2] = 4  // x86
	le.PutUint32(head[len(head)-4:], crc32.ChecksumIEEE(head[:len(head)-4]))
	_, err := expandXZ(make([]byte, 100), packed)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "x86") || !strings.Contains(err.Error(), "mksquashfs") {
		t.Error(err)
	}
}
