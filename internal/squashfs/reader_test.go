package squashfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"sconce.dev/sconce/internal/tooltest"
)

// TestReadsWhatOthersWrite reads images with everything that changes the format.
func TestReadsWhatOthersWrite(t *testing.T) {
	want := sampleObjects(true)
	archive := want.tarOf(t)
	cases := []struct{ tool, options string }{
		{"mksquashfs", "-comp gzip"},
		{"mksquashfs", "-comp gzip -Xcompression-level 1 -Xwindow-size 8"},
		{"mksquashfs", "-comp gzip -Xstrategy huffman_only,fixed,filtered"},
		{"mksquashfs", "-comp lzo -Xcompression-level 1"},
		{"mksquashfs", "-comp lzo -Xcompression-level 7 -b 32K"},
		{"mksquashfs", "-comp lzo -Xalgorithm lzo1x_1"},
		{"mksquashfs", "-comp lzo -Xalgorithm lzo1x_1_15 -b 1M"},
		{"mksquashfs", "-comp lzo -Xcompression-level 3 -noD -exit-on-error"}, // as enroot does
		{"mksquashfs", "-comp xz"},
		{"mksquashfs", "-comp xz -Xdict-size 25% -b 1M"},
		{"mksquashfs", "-comp lz4"},
		{"mksquashfs", "-comp lz4 -Xhc -b 256K"},
		{"mksquashfs", "-comp zstd -Xcompression-level 1"},
		{"mksquashfs", "-comp zstd -Xcompression-level 3 -b 1M"}, // as pyxis does
		{"mksquashfs", "-comp zstd -Xcompression-level 12"},
		{"mksquashfs", "-comp lzma -b 64K"},
		{"mksquashfs", "-b 4K"},
		{"mksquashfs", "-b 1M"},
		{"mksquashfs", "-noI"},
		{"mksquashfs", "-noD"},
		{"mksquashfs", "-noF"},
		{"mksquashfs", "-noX"},
		{"mksquashfs", "-noId"},
		{"mksquashfs", "-noI -noD -noF -noX"},
		{"mksquashfs", "-no-fragments"},
		{"mksquashfs", "-no-fragments -b 4K -comp lz4"},
		{"mksquashfs", "-always-use-fragments"},
		{"mksquashfs", "-no-xattrs"},
		{"mksquashfs", "-exports"},
		{"mksquashfs", "-no-duplicates"},
		{"mksquashfs", "-no-sparse"},
		{"mksquashfs", "-nopad"},
		{"tar2sqfs", "-c gzip"},
		{"tar2sqfs", "-c zstd -b 65536"},
		{"tar2sqfs", "-c xz --no-tail-packing"},
		{"tar2sqfs", "-c lz4 -X hc --exportable"},
		{"tar2sqfs", "-c lzo -X level=1"},
	}
	for _, c := range cases {
		t.Run(c.tool+" "+c.options, func(t *testing.T) {
			if testing.Short() && c.tool == "mksquashfs" {
				t.Skip("what the other tool writes is read by the same goroutines, by all compressors but one")
			}
			t.Parallel()
			want := want
			if strings.Contains(c.options, "-no-xattrs") {
				want = want.withoutXattrs()
			}
			r := openImage(t, packTar(t, archive, c.tool, strings.Fields(c.options)...))
			checkInfo(t, r.Info(), strings.Fields(c.options))
			got := readObjects(t, r)
			if c.tool == "mksquashfs" {
				got.takeRoot(want)
			}
			sameObjects(t, want, got)
			readAllWays(t, r, want)
		})
	}
}

func (o objects) withoutXattrs() objects {
	without := objects{}
	for name, x := range o {
		x.Xattrs = nil
		without[name] = x
	}
	return without
}

// checkInfo compares what an image says about itself with the options that it was made with.
func checkInfo(t *testing.T, info Info, options []string) {
	t.Helper()
	has := func(o string) bool { return slices.Contains(options, o) }
	after := func(o, otherwise string) string {
		if i := slices.Index(options, o); i >= 0 {
			return options[i+1]
		}
		return otherwise
	}
	compressor := after("-comp", after("-c", "gzip"))
	if has("-noI") && has("-noD") {
		compressor = "none"
	}
	if info.Compressor.String() != compressor {
		t.Errorf("compressor %v, want %s", info.Compressor, compressor)
	}
	if level := after("-Xcompression-level", ""); level != "" && fmt.Sprint(info.Level) != level {
		t.Errorf("level %d, want %s", info.Level, level)
	}
	sizes := map[string]int{"4K": 4 << 10, "32K": 32 << 10, "64K": 64 << 10, "65536": 65536, "256K": 256 << 10, "1M": 1 << 20, "": DefaultBlockSize}
	if size := sizes[after("-b", "")]; info.BlockSize != size {
		t.Errorf("block size %d, want %d", info.BlockSize, size)
	}
	flags := []struct {
		option string
		flag   bool
	}{
		{"-noI", info.InodesStored},
		{"-noD", info.DataStored},
		{"-noF", info.FragmentsStored},
		{"-noX", info.XattrsStored},
		{"-no-fragments", info.NoFragments},
		{"-no-xattrs", info.NoXattrs},
	}
	for _, f := range flags {
		if f.flag != has(f.option) {
			t.Errorf("flag of %s: %v", f.option, f.flag)
		}
	}
	if info.Inodes < 1500 || info.IDs < 5 || info.Fragments == 0 != has("-no-fragments") || info.ModTime.Year() < 2020 && !has("-c") {
		t.Errorf("%+v", info)
	}
}

// TestReadsDirectories reads what is made of a directory instead of a tar file: with sockets, and with the names of their own
// that squashfs-tools give to devices.
func TestReadsDirectories(t *testing.T) {
	want := objects{}
	for name, o := range sampleObjects(true) {
		switch o.Type {
		case Dir, Regular, Symlink, 0:
			want[name] = object{Type: o.Type, Data: o.Data, Target: o.Target, Same: o.Same}
		}
	}
	dir := unpackedDir(t, want)
	image := filepath.Join(t.TempDir(), "image")
	cases := [][]string{
		{"mksquashfs", dir, image, "-noappend", "-quiet", "-no-progress", "-p", "a-socket i 600 7 8 s", "-p", "a-device b 640 1 2 8 1"},
		{"gensquashfs", "--pack-dir", dir, "--force", "--quiet", image},
	}
	for _, c := range cases {
		t.Run(c[0], func(t *testing.T) {
			tooltest.Path(t, c[0])
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			r := openImage(t, image)
			got := readObjects(t, r)
			if c[0] == "mksquashfs" {
				socket, device := got["a-socket"], got["a-device"]
				if socket.Type != Socket || socket.Mode != 0o600 || socket.UID != 7 || socket.GID != 8 {
					t.Errorf("socket: %+v", socket)
				}
				if device.Type != Block || device.Major != 8 || device.Minor != 1 {
					t.Errorf("device: %+v", device)
				}
				delete(got, "a-socket")
				delete(got, "a-device")
			}
			for name, o := range got {
				got[name] = object{Type: o.Type, Data: o.Data, Target: o.Target, Same: o.Same}
			}
			if c[0] == "gensquashfs" { // it does not look for hard links
				want = want.withoutLinks()
			}
			sameObjects(t, want, got)
			readAllWays(t, r, want)
		})
	}
}

func (o objects) withoutLinks() objects {
	without := objects{}
	for name, x := range o {
		if x.Same != "" {
			x = o[x.Same]
		}
		without[name] = x
	}
	return without
}

// TestListsAsUnsquashfs compares listings.
func TestListsAsUnsquashfs(t *testing.T) {
	tooltest.Path(t, "unsquashfs")
	o := sampleObjects(false)
	delete(o, "disk") // unsquashfs does not know about minor numbers of more than 8 bits
	image := packTar(t, o.tarOf(t), "mksquashfs")
	out, err := exec.Command("unsquashfs", "-lln", "-UTC", "-d", "", image).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	err = openImage(t, image).Walk(func(name string, f *File) error {
		name = strings.TrimPrefix("/"+name, "/.")
		letters := map[Type]string{Dir: "d", Regular: "-", Symlink: "l", Char: "c", Block: "b", Fifo: "p"}
		mode := []byte(letters[f.Type] + "rwxrwxrwx")
		for i := range 9 {
			if f.Mode>>(8-i)&1 == 0 {
				mode[i+1] = '-'
			}
		}
		special := func(at int, bit uint16, with, without byte) {
			if f.Mode&bit != 0 && mode[at] == '-' {
				mode[at] = without
			} else if f.Mode&bit != 0 {
				mode[at] = with
			}
		}
		special(3, 0o4000, 's', 'S')
		special(6, 0o2000, 's', 'S')
		special(9, 0o1000, 't', 'T')
		size := fmt.Sprint(f.Size)
		if f.Type == Char || f.Type == Block {
			size = fmt.Sprintf("%d,%d", f.Major, f.Minor)
		}
		if f.Type == Symlink {
			name += " -> " + f.Target
		}
		fmt.Fprintf(&got, "%s %d/%d %s %s %s\n", mode, f.UID, f.GID, size, f.ModTime.Format("2006-01-02 15:04"), name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := listingLines(string(out))
	mine := listingLines(got.String())
	for i := range max(len(want), len(mine)) {
		if i >= len(want) || i >= len(mine) || want[i] != mine[i] {
			t.Fatalf("line %d:\n%q\nwant\n%q", i, mine[i:min(i+1, len(mine))], want[i:min(i+1, len(want))])
		}
	}
}

// listingLines makes one blank of the blanks between columns.
func listingLines(s string) []string {
	var lines []string
	for line := range strings.Lines(s) {
		line = strings.Join(strings.Fields(line), " ")
		lines = append(lines, strings.ReplaceAll(line, ", ", ","))
	}
	return lines
}

// TestLargeSparseFile reads a file of more than 4 GiB that takes almost nothing. It is composed by hand: other programs would have
// to read as much.
func TestLargeSparseFile(t *testing.T) {
	const size, blockSize = 4<<30 + 12345, 1 << 20
	marks := []int64{0, 1<<30 + 77, 2 << 30, 4<<30 - 3, size - 6}
	words := make([]uint32, (size+blockSize-1)/blockSize)
	h := &handmade{change: func(s *superblock) { s.BlockSize, s.BlockLog = blockSize, 20 }}
	blocks := map[int64][]byte{}
	for _, at := range marks {
		for k := range int64(len("a mark")) { // one goes over the end of a block
			i := (at + k) / blockSize
			if blocks[i] == nil {
				blocks[i] = make([]byte, min(blockSize, size-i*blockSize))
			}
			blocks[i][(at+k)%blockSize] = "a mark"[k]
		}
	}
	for i := range words {
		if blocks[int64(i)] != nil {
			packed := zlibOf(t, blocks[int64(i)])
			h.data, words[i] = append(h.data, packed...), uint32(len(packed))
		}
	}
	ref := h.inode(typeFile+extended, 2, uint64(superblockSize), uint64(size), uint64(0), uint32(1), uint32(noFragment), uint32(0), uint32(noXattrs), words)
	image := h.image(h.dir(1, dirText("sparse", typeFile, ref)))
	r, err := New(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	file, err := r.Lookup("sparse", false)
	if err != nil {
		t.Fatal(err)
	}
	if file.Size != size {
		t.Fatalf("%d bytes", file.Size)
	}
	c := file.Content()
	for _, at := range append(marks, marks[1]) { // there and back
		p := make([]byte, 10)
		n, err := c.ReadAt(p[:min(10, size-at)], at)
		if err != nil || string(p[:6]) != "a mark" || strings.Trim(string(p[6:n]), "\x00") != "" {
			t.Errorf("at %d: %q %v", at, p[:n], err)
		}
	}
	if err := r.CheckData(t.Context()); err != nil {
		t.Error(err)
	}
	_, _ = c.Seek(4<<30-100<<20, io.SeekStart)
	if n, err := c.WriteTo(io.Discard); err != nil || n != size-(4<<30-100<<20) {
		t.Error(n, err)
	}
}

// TestFS has package fstest judge the file system.
func TestFS(t *testing.T) {
	if testing.Short() {
		t.Skip("many reads of all files, by one goroutine")
	}
	o := sampleObjects(false)
	delete(o, "dangling")
	r := openImage(t, packTar(t, o.tarOf(t), "mksquashfs", "-comp", "zstd", "-Xcompression-level", "1"))
	if err := fstest.TestFS(r.FS(), "bin/su", "zz", "large", "attr/small", "big/a-name-that-is-not-short-00007"); err != nil {
		t.Error(err)
	}
	info, err := fs.Stat(r.FS(), "zz")
	if err != nil || info.Mode() != 0o755|fs.ModeSetuid || info.Sys().(*File).Links != 3 {
		t.Error(info, err)
	}
	if b, err := fs.ReadFile(r.FS(), "link"); err != nil || !bytes.Equal(b, o["bin/su"].Data) {
		t.Error(err)
	}
	if target, err := fs.ReadLink(r.FS(), "absolute"); target != "/bin" || err != nil {
		t.Error(target, err)
	}
}

// TestPaths looks up paths with links.
func TestPaths(t *testing.T) {
	o := objects{
		".": {Type: Dir, Mode: 0o755}, "a": {Type: Dir, Mode: 0o755}, "a/b": {Type: Dir, Mode: 0o755},
		"a/b/file": {Type: Regular, Mode: 0o644, Data: []byte("x")},
		"a/up":     {Type: Symlink, Mode: 0o777, Target: "../../../a/b"},
		"to":       {Type: Symlink, Mode: 0o777, Target: "/a/up/"},
		"loop":     {Type: Symlink, Mode: 0o777, Target: "a/../loop"},
		"broken":   {Type: Symlink, Mode: 0o777, Target: "a/none"},
	}
	r := openImage(t, packTar(t, o.tarOf(t), "tar2sqfs")) // mksquashfs takes ../ away from links
	file, err := r.Lookup("a/b/file", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/to/file", "to/../b/file", "a//./up/file", "../../a/b/file"} {
		if f, err := r.Lookup(p, false); err != nil || f.Number != file.Number {
			t.Errorf("%s: %v", p, err)
		}
	}
	if f, err := r.Lookup("to", false); err != nil || f.Type != Symlink {
		t.Error(f, err)
	}
	if f, err := r.Lookup("to", true); err != nil || f.Type != Dir {
		t.Error(f, err)
	}
	for p, want := range map[string]string{
		"loop": "too many levels of symbolic links", "broken": "not exist", "a/b/file/": "not a directory", "a/b/file/x": "not a directory",
		"a/b/file/..": "not a directory", "a/b/fil": "not exist",
	} {
		if _, err := r.Lookup(p, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", p, err, want)
		}
	}
}

// TestConcurrentReads reads the same files in many goroutines.
func TestConcurrentReads(t *testing.T) {
	o := sampleObjects(false)
	r := openImage(t, packTar(t, o.tarOf(t), "mksquashfs", "-comp", "lz4", "-b", "16K"))
	r.dataCache.Room = 100 << 10 // so that there is always something to drop
	r.metaCache.Room = 50 << 10
	f, err := r.Lookup("holes", false)
	if err != nil {
		t.Fatal(err)
	}
	want := o["holes"].Data
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			c := f.Content()
			for j := range 200 {
				p := make([]byte, 3000)
				at := (i*j*7919 + j*104729) % (len(want) - len(p))
				if _, err := c.ReadAt(p, int64(at)); err != nil || !bytes.Equal(p, want[at:at+len(p)]) {
					t.Errorf("at %d: %v", at, err)
					return
				}
				if _, err := r.Lookup(fmt.Sprintf("big/a-name-that-is-not-short-%05d", j*7), true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if used := r.dataCache.Used(); used > r.dataCache.Room {
		t.Errorf("cache: %d of %d bytes", used, r.dataCache.Room)
	}
}

// TestWriteToStops returns the error of a writer and goes on from there.
func TestWriteToStops(t *testing.T) {
	o := sampleObjects(false)
	r := openImage(t, packTar(t, o.tarOf(t), "mksquashfs", "-comp", "lz4", "-b", "16K"))
	f, err := r.Lookup("large", false)
	if err != nil {
		t.Fatal(err)
	}
	c := f.Content()
	w := &shortWriter{left: 500_000}
	n, err := c.WriteTo(w)
	if n != 500_000 || err == nil || err.Error() != "full" {
		t.Fatal(n, err)
	}
	rest, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(rest, o["large"].Data[n:]) {
		t.Error(len(rest), err)
	}
	if n, err := c.WriteTo(w); n != 0 || err != nil {
		t.Error("at the end:", n, err)
	}
	dir, _ := r.Root()
	if _, err := dir.Content().WriteTo(io.Discard); err == nil {
		t.Error("wrote a directory")
	}
}

type shortWriter struct{ left int }

func (w *shortWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		n := w.left
		w.left = 0
		return n, fmt.Errorf("full")
	}
	w.left -= len(p)
	return len(p), nil
}

// TestWalkSkips skips directories and ends as fs.WalkDir does.
func TestWalkSkips(t *testing.T) {
	r := openImage(t, packTar(t, sampleObjects(false).tarOf(t), "mksquashfs"))
	for _, skip := range []error{fs.SkipDir, fs.SkipAll} {
		for _, at := range []string{".", "big", "attr", "attr/cap", "zeros"} {
			var got, want []string
			err := r.Walk(func(name string, _ *File) error {
				got = append(got, name)
				if name == at {
					return skip
				}
				return nil
			})
			_ = fs.WalkDir(r.FS(), ".", func(name string, _ fs.DirEntry, _ error) error {
				want = append(want, name)
				if name == at {
					return skip
				}
				return nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v at %s: %d and %d names, %v", skip, at, len(got), len(want), err)
			}
		}
	}
	stop := fmt.Errorf("stop")
	if err := r.Walk(func(string, *File) error { return stop }); err != stop { //nolint:errorlint // the very same
		t.Error(err)
	}
}

// BenchmarkWalk lists 20,000 files.
func BenchmarkWalk(b *testing.B) {
	o := objects{".": {Type: Dir, Mode: 0o755}}
	for d := range 100 {
		dir := fmt.Sprintf("d%03d", d)
		o[dir] = object{Type: Dir, Mode: 0o755}
		for i := range 200 {
			o[fmt.Sprintf("%s/file_%05d.py", dir, i)] = object{Type: Regular, Mode: 0o644, Data: []byte{byte(i)}}
		}
	}
	image := packTar(b, o.tarOf(b), "mksquashfs", "-comp", "zstd", "-Xcompression-level", "3")
	for b.Loop() {
		n := 0
		if err := openImage(b, image).Walk(func(string, *File) error { n++; return nil }); err != nil || n != len(o) {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(len(o)*b.N)/b.Elapsed().Seconds(), "files/s")
}

// BenchmarkRead reads a large file.
func BenchmarkRead(b *testing.B) {
	o := objects{".": {Type: Dir, Mode: 0o755}, "file": {Type: Regular, Mode: 0o644, Data: sampleText(64 << 20)}}
	archive := o.tarOf(b)
	for _, c := range []string{"gzip", "lzo", "xz", "lz4", "zstd"} {
		b.Run(c, func(b *testing.B) {
			options := []string{"-comp", c}
			if c == "gzip" || c == "lzo" || c == "zstd" {
				options = append(options, "-Xcompression-level", "3")
			}
			r := openImage(b, packTar(b, archive, "mksquashfs", options...))
			f, err := r.Lookup("file", false)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(f.Size)
			for b.Loop() {
				if _, err := f.Content().WriteTo(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
