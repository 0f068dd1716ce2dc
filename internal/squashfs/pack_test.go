package squashfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// A sourceFile is a file of a made-up layer.
type sourceFile struct {
	name string
	key  Key
	data []byte
}

// source is a made-up layer: many small files, some large, and files that are there twice.
func source(layer uint64, files int) []sourceFile {
	r := rand.New(rand.NewPCG(layer, 2))
	var out []sourceFile
	for i := range files {
		var p []byte
		switch n := r.IntN(20); {
		case n == 0:
			p = textOf(r.IntN(400_000), layer<<32|uint64(i))
		case n == 1:
			p = slices.Concat(textOf(8192, uint64(i)), make([]byte, r.IntN(200_000)), randomOf(r.IntN(9000), byte(i)))
		case n == 2:
			p = textOf(70_000, 77) // in all layers
		case n == 3:
			p = make([]byte, r.IntN(100_000))
		case n == 4 && i > 0:
			p = out[r.IntN(i)].data
		default:
			p = textOf(r.IntN(9000), layer<<32|uint64(i))
		}
		out = append(out, sourceFile{fmt.Sprintf("l%d-%d", layer, i), Key{Offset: int64(i) * 1024, Nth: i % 3}, p})
	}
	return out
}

// A layerPack is a pack as a store keeps it.
type layerPack struct {
	index, bytes string
	size         int64
}

// keepPack writes the pack of a segment to files.
func keepPack(t *testing.T, f *os.File, s *Segment) layerPack {
	t.Helper()
	dir := t.TempDir()
	p := layerPack{filepath.Join(dir, "index"), filepath.Join(dir, "bytes"), s.End - s.Start}
	b := make([]byte, p.size)
	if _, err := f.ReadAt(b, s.Start); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string][]byte{p.index: s.Pack.Encode(), p.bytes: b} {
		if err := os.WriteFile(name, p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p layerPack) load(t testing.TB) *Pack {
	t.Helper()
	index, err := os.ReadFile(p.index)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(p.bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	pack, err := DecodePack(index, f, p.size)
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// imageOf writes layers, with packs for some, and returns the bytes and the segments.
func imageOf(t *testing.T, o Options, layers [][]sourceFile, packs ...[]*Pack) (image []byte, f *os.File, segments []*Segment) {
	t.Helper()
	b := newBuild(t, 4096, o)
	var entries []DirEntry
	for i, files := range layers {
		var known []*Pack
		if i < len(packs) {
			known = packs[i]
		}
		b.start(known...)
		for _, file := range files {
			d, err := b.w.Add(context.Background(), file.key, int64(len(file.data)), func() (io.ReadCloser, error) {
				for _, p := range known {
					if p.Has(file.key) {
						t.Errorf("%s is in a pack, and was opened", file.name)
					}
				}
				return io.NopCloser(bytes.NewReader(file.data)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, DirEntry{file.name, fileOf(d)})
		}
		segments = append(segments, b.end())
	}
	name := b.finish(dirOf(entries...))
	image, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return image[4096:], b.file, segments
}

// extracted checks that an image has the files of the layers.
func extracted(t *testing.T, image []byte, layers [][]sourceFile) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "image")
	if err := os.WriteFile(name, image, 0o600); err != nil {
		t.Fatal(err)
	}
	runTool(t, "unsquashfs", "-no-progress", "-d", filepath.Join(dir, "out"), name)
	for _, files := range layers {
		for _, f := range files {
			if got, err := os.ReadFile(filepath.Join(dir, "out", f.name)); err != nil || !bytes.Equal(got, f.data) {
				t.Errorf("%s: %v, %d bytes, not the %d that it has", f.name, err, len(got), len(f.data))
			}
		}
	}
}

// optionSets are the settings under which the placement is tested.
func optionSets(t testing.TB) []Options {
	sets := []Options{
		{Compression: Zstd, TailPacking: true},
		{Compression: Gzip, Level: 1, BlockSize: 32 << 10},
	}
	if tooltest.Less(t) {
		return sets
	}
	return append(sets, []Options{
		{Compression: Zstd},
		{Compression: Zstd, BlockSize: MinBlockSize},
		{Compression: Gzip, Level: 1, TailPacking: true},
		{Compression: LZ4, BlockSize: 32 << 10},
		{Compression: LZ4, Level: 3, BlockSize: MaxBlockSize},
		{Compression: Stored, TailPacking: true},
	}...)
}

func TestWorkersDoNotChangeBytes(t *testing.T) {
	layers := [][]sourceFile{source(1, 100), source(2, 100)}
	for _, o := range optionSets(t) {
		t.Run(o.Key(), func(t *testing.T) {
			o.Workers = 1
			want, _, _ := imageOf(t, o, layers)
			extracted(t, want, layers)
			for _, o.Workers = range []int{2, 7} {
				if got, _, _ := imageOf(t, o, layers); !bytes.Equal(got, want) {
					t.Errorf("%d workers write other bytes than one", o.Workers)
				}
			}
		})
	}
}

func TestPacksDoNotChangeBytes(t *testing.T) {
	one, two, three := source(1, 150), source(2, 150), source(3, 50)
	changed := slices.Concat(one[:40], one[43:90], source(9, 5), one[90:])
	for i := range changed { // the files of other layers have their own keys
		if strings.HasPrefix(changed[i].name, "l9-") {
			changed[i].key.Offset += 1 << 30
		}
	}
	for _, o := range optionSets(t) {
		t.Run(o.Key(), func(t *testing.T) {
			_, f, s := imageOf(t, o, [][]sourceFile{one, two})
			packOne, packTwo := keepPack(t, f, s[0]).load(t), keepPack(t, f, s[1]).load(t)
			// A pack that has some of the files only, and one that has the others.
			_, f, s = imageOf(t, o, [][]sourceFile{one[:60]})
			some := keepPack(t, f, s[0]).load(t)
			_, f, s = imageOf(t, o, [][]sourceFile{slices.Concat(one[100:], one[50:60])})
			others := keepPack(t, f, s[0]).load(t)

			cases := []struct {
				name   string
				layers [][]sourceFile
				packs  [][]*Pack
				fresh  []int // -1: not looked at
			}{
				{"all known", [][]sourceFile{one, two}, [][]*Pack{{packOne}, {packTwo}}, []int{0, 0}},
				{"one layer known", [][]sourceFile{one, two}, [][]*Pack{{packOne}}, []int{0, -1}},
				{"some files known", [][]sourceFile{one, two}, [][]*Pack{{some}, {packTwo}}, []int{-1, 0}},
				{"two packs", [][]sourceFile{one, two}, [][]*Pack{{some, others}, {packTwo}}, []int{-1, 0}},
				{"other order", [][]sourceFile{two, one}, [][]*Pack{{packTwo}, {packOne}}, []int{-1, 0}},
				{"a layer dropped", [][]sourceFile{two}, [][]*Pack{{packTwo}}, []int{-1}},
				{"a layer added before", [][]sourceFile{three, one, two}, [][]*Pack{nil, {packOne}, {packTwo}}, []int{-1, 0, 0}},
				{"a layer added between", [][]sourceFile{one, three, two}, [][]*Pack{{packOne}, nil, {packTwo}}, []int{0, -1, 0}},
				{"files dropped and added", [][]sourceFile{changed, two}, [][]*Pack{{packOne}, {packTwo}}, []int{5, -1}},
				{"files in another order", [][]sourceFile{slices.Concat(one[70:], one[:70])}, [][]*Pack{{packOne}}, []int{0}},
			}
			if tooltest.Less(t) {
				cases = cases[2:4] // in which some is copied and some compressed
			}
			for _, c := range cases {
				want, _, _ := imageOf(t, o, c.layers)
				got, f, segments := imageOf(t, o, c.layers, c.packs...)
				if !bytes.Equal(got, want) {
					t.Errorf("%s: with packs the bytes are others", c.name)
				}
				for i, fresh := range c.fresh {
					if fresh >= 0 && segments[i].Fresh != fresh {
						t.Errorf("%s: segment %d has %d fresh files, not %d", c.name, i, segments[i].Fresh, fresh)
					}
				}
				// What was copied makes as good a pack.
				var again [][]*Pack
				for _, s := range segments {
					again = append(again, []*Pack{keepPack(t, f, s).load(t)})
				}
				if got, _, _ := imageOf(t, o, c.layers, again...); !bytes.Equal(got, want) {
					t.Errorf("%s: with the packs of the copy the bytes are others", c.name)
				}
			}
		})
	}
}

func TestPackFacts(t *testing.T) {
	shared := textOf(300_000, 5)
	one := []sourceFile{{"a", Key{Offset: 512}, []byte("a")}, {"b", Key{Offset: 1024}, shared}, {"empty", Key{Offset: 2048}, nil}}
	two := []sourceFile{{"c", Key{Offset: 512}, shared}, {"d", Key{Offset: 4096}, []byte("d")}}
	_, f, s := imageOf(t, DefaultOptions(), [][]sourceFile{one, two})
	p, q := keepPack(t, f, s[0]).load(t), keepPack(t, f, s[1]).load(t)
	if !p.Has(Key{Offset: 512}) || !p.Has(Key{Offset: 1024}) || p.Has(Key{Offset: 2048}) || p.Has(Key{Offset: 512, Nth: 1}) || p.Len() != 2 {
		t.Errorf("the first pack has %d files", p.Len())
	}
	if q.Has(Key{Offset: 512}) || !q.Has(Key{Offset: 4096}) || q.Len() != 1 {
		t.Errorf("the second pack has %d files; the bytes of one are in the first segment", q.Len())
	}
	if p.Covers(q) || !p.Covers(p) || q.Covers(p) {
		t.Error("a pack covers those only whose files it has")
	}
	if !bytes.Equal(p.Encode(), s[0].Pack.Encode()) {
		t.Error("an index that was read is encoded differently")
	}
	if s[0].Fresh != 2 || s[1].Fresh != 2 {
		t.Errorf("fresh files: %d and %d", s[0].Fresh, s[1].Fresh)
	}
}

func TestPackOfOtherOptionsIsRefused(t *testing.T) {
	_, f, s := imageOf(t, DefaultOptions(), [][]sourceFile{source(1, 10)})
	p := keepPack(t, f, s[0]).load(t)
	b := newBuild(t, 0, Options{Compression: Gzip})
	if err := b.w.StartSegment(p); err == nil {
		t.Error("a pack of zstd blocks was taken for a file system of gzip blocks")
	}
}

// TestDamagedPacks changes an index or the blocks behind it, and uses what is accepted.
func TestDamagedPacks(t *testing.T) {
	layer := source(1, 60)
	o := Options{Compression: Zstd, TailPacking: true}
	_, f, s := imageOf(t, o, [][]sourceFile{layer})
	kept := keepPack(t, f, s[0])
	index, err := os.ReadFile(kept.index)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := os.Open(kept.bytes)
	if err != nil {
		t.Fatal(err)
	}
	defer blocks.Close()
	t.Run("a changed byte", func(t *testing.T) {
		for i := range index {
			bad := bytes.Clone(index)
			bad[i] ^= 0x10
			if _, err := DecodePack(bad, blocks, kept.size); !errors.Is(err, ErrPack) {
				t.Fatalf("byte %d of %d: %v", i, len(index), err)
			}
		}
	})
	t.Run("a shorter index", func(t *testing.T) {
		for i := range len(index) - checksumSize {
			if _, err := DecodePack(resealed(index[:i]), blocks, kept.size); !errors.Is(err, ErrPack) {
				t.Fatalf("%d bytes of %d: %v", i, len(index), err)
			}
		}
	})
	t.Run("another size", func(t *testing.T) {
		if _, err := DecodePack(index, blocks, kept.size-1); !errors.Is(err, ErrPack) {
			t.Error(err)
		}
	})
	t.Run("a consistent sum", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 1))
		for range 3000 {
			bad := bytes.Clone(index[:len(index)-checksumSize])
			bad[r.IntN(len(bad))] = byte(r.Uint32())
			p, err := DecodePack(resealed(bad), blocks, kept.size)
			if err != nil && !errors.Is(err, ErrPack) {
				t.Fatal(err)
			}
			if err == nil {
				checkPack(t, p)
			}
		}
	})
	t.Run("shorter blocks", func(t *testing.T) {
		short := filepath.Join(t.TempDir(), "short")
		if err := os.WriteFile(short, make([]byte, kept.size/2), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeWith(t, o, layer, layerPack{kept.index, short, kept.size}.load(t)); !errors.Is(err, ErrPack) {
			t.Error(err)
		}
	})
	t.Run("other blocks", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, make([]byte, kept.size), 0o600); err != nil {
			t.Fatal(err)
		}
		// Without the first file the groups are others, so that tails are taken out of old ones.
		if err := writeWith(t, o, layer[1:], layerPack{kept.index, other, kept.size}.load(t)); !errors.Is(err, ErrPack) {
			t.Error(err)
		}
	})
}

// resealed gives an index the checksum that it should have.
func resealed(index []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(index), crc32.Checksum(index, castagnoli))
}

// writeWith writes a layer with a pack, and returns the first error.
func writeWith(t *testing.T, o Options, layer []sourceFile, p *Pack) error {
	b := newBuild(t, 0, o)
	b.start(p)
	for _, f := range layer {
		if _, err := b.w.Add(context.Background(), f.key, int64(len(f.data)), opener(f.data)); err != nil {
			return err
		}
	}
	_, err := b.w.EndSegment()
	return err
}

// checkPack checks that nothing in a pack points outside of it.
func checkPack(t testing.TB, p *Pack) {
	t.Helper()
	for _, r := range p.runs {
		if r.offset != elsewhere && (r.offset < 0 || r.length < 0 || r.offset+r.length > p.size) {
			t.Fatalf("a run at %d, %d bytes of %d", r.offset, r.length, p.size)
		}
	}
	for _, g := range p.groups {
		if g.offset < 0 || g.offset+int64(g.size&blockMask) > p.size || int(g.raw) > p.blockSize {
			t.Fatalf("a group at %d, size %#x, of %d", g.offset, g.size, p.size)
		}
	}
	for _, x := range p.tails {
		if x.offset+x.size > p.groups[x.group].raw {
			t.Fatalf("a tail at %d, %d bytes of %d", x.offset, x.size, p.groups[x.group].raw)
		}
	}
	for k, f := range p.files {
		want := (f.size + int64(p.blockSize) - 1) / int64(p.blockSize)
		if f.tail >= 0 {
			want = f.size / int64(p.blockSize)
			if int64(p.tails[f.tail].size) != f.size%int64(p.blockSize) {
				t.Fatalf("%v: a tail of %d bytes", k, p.tails[f.tail].size)
			}
		}
		if got := 0; f.run >= 0 {
			if got = len(p.runs[f.run].sizes); int64(got) != want {
				t.Fatalf("%v: %d blocks, not %d", k, got, want)
			}
		} else if want != 0 {
			t.Fatalf("%v: no blocks, not %d", k, want)
		}
	}
}

func FuzzPack(f *testing.F) {
	for _, o := range []Options{{Compression: Zstd, BlockSize: MinBlockSize}, {Compression: Stored, TailPacking: true}} {
		file, err := os.Create(filepath.Join(f.TempDir(), "image"))
		if err != nil {
			f.Fatal(err)
		}
		defer file.Close()
		w, err := NewWriter(file, 0, o)
		if err != nil {
			f.Fatal(err)
		}
		defer w.Close()
		if err := w.StartSegment(); err != nil {
			f.Fatal(err)
		}
		for _, s := range source(4, 12) {
			if _, err := w.Add(context.Background(), s.key, int64(len(s.data)), opener(s.data)); err != nil {
				f.Fatal(err)
			}
		}
		s, err := w.EndSegment()
		if err != nil {
			f.Fatal(err)
		}
		index := s.Pack.Encode()
		f.Add(index[:len(index)-checksumSize], s.End-s.Start)
	}
	f.Fuzz(func(t *testing.T, index []byte, size int64) {
		p, err := unpackIndex(resealed(index), bytes.NewReader(nil), size)
		if err != nil {
			if !errors.Is(err, ErrPack) {
				t.Fatal(err)
			}
			return
		}
		checkPack(t, p)
		again, err := unpackIndex(p.Encode(), bytes.NewReader(nil), size)
		if err != nil {
			t.Fatalf("what was read and encoded is not read: %v", err)
		}
		if !bytes.Equal(again.Encode(), p.Encode()) || again.Len() != p.Len() || !again.Covers(p) {
			t.Fatal("what was read and encoded is another pack")
		}
	})
}
