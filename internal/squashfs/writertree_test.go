package squashfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// everything is a tree with each type of file and all that is special about one.
func everything(b *build) (*Inode, []byte) {
	content := textOf(200_000, 8)
	long := strings.Repeat("n", 255)
	linked := fileOf(b.add([]byte("linked\n")))
	big := strings.Repeat("value ", 5000)
	root := dirOf(
		DirEntry{"sock", &Inode{Type: Socket, Mode: 0o600, ModTime: aTime}},
		DirEntry{"fifo", &Inode{Type: Fifo, Mode: 0o600, ModTime: aTime, Xattrs: map[string]string{"trusted.f": "fifo"}}},
		DirEntry{"null", &Inode{Type: Char, Mode: 0o666, Major: 1, Minor: 3, ModTime: aTime}},
		DirEntry{"disk", &Inode{Type: Block, Mode: 0o660, Major: 4095, Minor: 1<<20 - 1, ModTime: aTime, Xattrs: map[string]string{"trusted.d": "disk"}}},
		DirEntry{"link", &Inode{Type: Symlink, Mode: 0o777, Target: "dir/file", ModTime: aTime}},
		DirEntry{"tagged", &Inode{Type: Symlink, Mode: 0o777, Target: "/x", ModTime: aTime, Xattrs: map[string]string{"trusted.l": "link"}}},
		DirEntry{"empty", fileOf(nil)},
		DirEntry{"owned", &Inode{Type: Regular, Mode: 0o6755, UID: math.MaxUint32 - 1, GID: 100_000, ModTime: aTime, Data: b.add([]byte("x"))}},
		DirEntry{"one", linked},
		DirEntry{"attrs", &Inode{
			Type: Regular, Mode: 0o600, ModTime: time.Unix(math.MaxUint32, 0), Data: b.add(content),
			Xattrs: map[string]string{"user.big": big, "security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.empty": ""},
		}},
		DirEntry{"big", &Inode{Type: Regular, Mode: 0o600, ModTime: aTime, Xattrs: map[string]string{"user.other": big, "user.big": big}}},
		DirEntry{"dir", &Inode{
			Type: Dir, Mode: 0o1777, GID: 7, ModTime: aTime, Xattrs: map[string]string{"user.dir": "yes"},
			Entries: []DirEntry{
				{"two", linked},
				{"file", fileOf(b.add(content))},
				{long, fileOf(b.add([]byte("long\n")))},
				{"not\xffutf\x80 \n8", fileOf(b.add([]byte("bytes\n")))},
				{"sub", dirOf(DirEntry{"three", linked})},
			},
		}},
		DirEntry{"none", dirOf()},
	)
	return root, content
}

// inTar is what an image holds, as sqfs2tar sees it.
func inTar(t *testing.T, image string) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	cmd := exec.Command(tooltest.Path(t, "sqfs2tar"), image)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sqfs2tar: %v\n%s", err, text.String())
	}
	headers, contents := map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		headers[name] = h
		if contents[name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryInodeType(t *testing.T) {
	for _, o := range []Options{DefaultOptions(), {Compression: Stored, BlockSize: MinBlockSize}} {
		t.Run(o.Key(), func(t *testing.T) {
			b := newBuild(t, 0, o)
			b.start()
			root, content := everything(b)
			b.end()
			image := b.finish(root)
			headers, contents := inTar(t, image)
			checkTar(t, root, "", headers, contents, content)
			list := runTool(t, "unsquashfs", "-lln", image)
			for _, want := range []string{"srw------- 0/0", "prw------- 0/0", " 1,  3 ", "-rwsr-sr-x 4294967294/100000", "drwxrwxrwt 0/7"} {
				if !strings.Contains(list, want) {
					t.Errorf("the listing lacks %q:\n%s", want, list)
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			if os.Geteuid() == 0 {
				runTool(t, "unsquashfs", "-no-progress", "-no-xattrs", "-d", out, image) // such attributes need not fit in here
			}
			runTool(t, "rdsquashfs", "-d", image)
		})
	}
}

// checkTar compares a tree with its listing.
func checkTar(t *testing.T, in *Inode, name string, headers map[string]*tar.Header, contents map[string][]byte, big []byte) {
	t.Helper()
	h := headers[name]
	if name != "" && in.Type != Socket { // which tar does not know
		if h == nil {
			t.Errorf("%q is missing", name)
			return
		}
		if h.Typeflag == tar.TypeLink { // checked under its first name
			return
		}
		if h.Mode&0o7777 != int64(in.Mode) || h.Uid != int(in.UID) || h.Gid != int(in.GID) || !h.ModTime.Equal(in.ModTime) {
			t.Errorf("%q: mode %o, owner %d:%d, time %v", name, h.Mode, h.Uid, h.Gid, h.ModTime)
		}
		kinds := map[Type]byte{Dir: tar.TypeDir, Regular: tar.TypeReg, Symlink: tar.TypeSymlink, Fifo: tar.TypeFifo, Char: tar.TypeChar, Block: tar.TypeBlock}
		if h.Typeflag != kinds[in.Type] || h.Linkname != in.Target || h.Devmajor != int64(in.Major) || h.Devminor != int64(in.Minor) {
			t.Errorf("%q: type %c, target %q, device %d %d", name, h.Typeflag, h.Linkname, h.Devmajor, h.Devminor)
		}
		if n := in.Data; n != nil && int64(len(contents[name])) != n.Size() || n != nil && n.Size() == int64(len(big)) && !bytes.Equal(contents[name], big) {
			t.Errorf("%q: %d bytes", name, len(contents[name]))
		}
		attrs := map[string]string{}
		for k, v := range h.PAXRecords {
			if k, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
				attrs[k] = v
			}
		}
		if !maps.Equal(attrs, in.Xattrs) {
			t.Errorf("%q: %d attributes, not %d", name, len(attrs), len(in.Xattrs))
		}
	}
	for _, e := range in.Entries {
		checkTar(t, e.Inode, strings.TrimPrefix(name+"/"+e.Name, "/"), headers, contents, big)
	}
}

// mounted mounts an image, at an offset of a file, and returns where.
func mounted(t *testing.T, image string, base int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	out, err := exec.Command(tooltest.Path(t, "mount"), "-t", "squashfs", "-o", "ro,loop,offset="+strconv.FormatInt(base, 10), image, dir).CombinedOutput()
	if err != nil {
		tooltest.Missing(t, "mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		// lazy: a process that a test beside this one just forked may still have a file of it open
		if out, err := exec.Command("umount", "--lazy", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

func TestKernelMounts(t *testing.T) {
	for _, o := range optionSets(t) {
		t.Run(o.Key(), func(t *testing.T) {
			b := newBuild(t, 12288, o)
			b.start()
			root, content := everything(b)
			b.end()
			dir := mounted(t, b.finish(root), 12288)
			compareMounted(t, dir, root, content)
			one, two := lstat(t, dir+"/one"), lstat(t, dir+"/dir/sub/three")
			if one.Ino != two.Ino || one.Nlink != 3 {
				t.Errorf("hard links: inodes %d and %d, %d names", one.Ino, two.Ino, one.Nlink)
			}
			if s := lstat(t, dir+"/dir"); s.Nlink != 3 {
				t.Errorf("a directory has %d links", s.Nlink)
			}
		})
	}
}

func lstat(t *testing.T, name string) syscall.Stat_t {
	t.Helper()
	var s syscall.Stat_t
	if err := syscall.Lstat(name, &s); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

func compareMounted(t *testing.T, name string, in *Inode, big []byte) {
	t.Helper()
	s := lstat(t, name)
	formats := map[Type]uint32{Dir: unix.S_IFDIR, Regular: unix.S_IFREG, Symlink: unix.S_IFLNK, Fifo: unix.S_IFIFO, Socket: unix.S_IFSOCK, Char: unix.S_IFCHR, Block: unix.S_IFBLK}
	if s.Mode != formats[in.Type]|uint32(in.Mode) || s.Uid != in.UID || s.Gid != in.GID || s.Mtim.Sec != in.ModTime.Unix() {
		t.Errorf("%s: mode %o, owner %d:%d, time %d", name, s.Mode, s.Uid, s.Gid, s.Mtim.Sec)
	}
	switch in.Type {
	case Symlink:
		if got, err := os.Readlink(name); err != nil || got != in.Target {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	case Block, Char:
		if rdev := s.Rdev; unix.Major(rdev) != in.Major || unix.Minor(rdev) != in.Minor {
			t.Errorf("%s: device %d, %d", name, unix.Major(rdev), unix.Minor(rdev))
		}
	case Regular:
		if got, err := os.ReadFile(name); err != nil || in.Data != nil && (len(got) != int(in.Data.Size()) || len(got) == len(big) && !bytes.Equal(got, big)) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	case Dir:
		if got, err := os.ReadDir(name); err != nil || len(got) != len(in.Entries) {
			t.Errorf("%s: %d names, %v", name, len(got), err)
		}
	}
	for key, want := range in.Xattrs {
		p := make([]byte, 1<<16)
		if n, err := unix.Lgetxattr(name, key, p); err != nil || string(p[:n]) != want {
			t.Errorf("%s: attribute %s: %d bytes, %v", name, key, n, err)
		}
	}
	for _, e := range in.Entries {
		compareMounted(t, name+"/"+e.Name, e.Inode, big)
	}
}

func TestManyXattrs(t *testing.T) {
	b := newBuild(t, 0, DefaultOptions())
	var entries []DirEntry
	big := strings.Repeat("0123456789abcdef", 4096) // the most that Linux takes
	for i := range 3000 {
		attrs := map[string]string{"user.number": strconv.Itoa(i / 2), "user.same": "the same everywhere"}
		if i%100 == 0 {
			attrs["user.big"] = big
		}
		if i%1000 == 0 {
			for k := range 200 {
				attrs[fmt.Sprintf("trusted.%d.%d", i, k)] = strings.Repeat("v", k)
			}
		}
		entries = append(entries, DirEntry{fmt.Sprintf("f%05d", i), &Inode{Type: Regular, ModTime: aTime, Xattrs: attrs}})
	}
	root := dirOf(entries...)
	image := b.finish(root)
	if info, err := os.Stat(image); err != nil || info.Size() > 100_000 {
		t.Errorf("the image has %d bytes: equal lists and values are to be there once", info.Size())
	}
	headers, contents := inTar(t, image)
	checkTar(t, root, "", headers, contents, nil)
	compareMounted(t, mounted(t, image, 0), root, nil)
}

// TestManyFiles has 100,000 names in one directory and 100,000 in others: it needs directory indexes, and directory
// headers that end before their inode numbers are too far apart.
func TestManyFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 200,000 files")
	}
	b := newBuild(t, 0, DefaultOptions())
	b.start()
	shared := b.add([]byte("small\n"))
	var one []DirEntry
	for i := range 100_000 {
		d := shared
		if i%2 == 0 {
			d = nil
		}
		one = append(one, DirEntry{fmt.Sprintf("file-%d-%s", i, strings.Repeat("x", i%60)), fileOf(d)})
	}
	entries := []DirEntry{{"many", dirOf(one...)}}
	for i := range 1000 {
		var some []DirEntry
		for k := range 100 {
			some = append(some, DirEntry{strconv.Itoa(k), fileOf(shared)})
		}
		entries = append(entries, DirEntry{fmt.Sprintf("dir%d", i), dirOf(some...)})
	}
	b.end()
	// Files of the large directory have further names in this one, so that their numbers are far apart.
	var far []DirEntry
	for i := 0; i < len(one); i += 1000 {
		far = append(far, DirEntry{strconv.Itoa(i), one[(i*7)%len(one)].Inode})
	}
	entries = append(entries, DirEntry{"far", dirOf(far...)})
	image := b.finish(dirOf(entries...))
	list := runTool(t, "unsquashfs", "-l", image)
	if n := strings.Count(list, "\n"); n != 1+1+100_000+1000*101+1+len(far) {
		t.Errorf("%d lines are listed", n)
	}
	dir := mounted(t, image, 0)
	for i := 0; i < len(one); i += 37 {
		if _, err := os.Lstat(dir + "/many/" + one[i].Name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir + "/many/file-100000-"); !os.IsNotExist(err) {
		t.Errorf("a name that is not there: %v", err)
	}
	if got, err := os.ReadDir(dir + "/many"); err != nil || len(got) != len(one) {
		t.Errorf("%d names, %v", len(got), err)
	}
	for _, e := range far {
		if got := lstat(t, dir+"/far/"+e.Name); got.Nlink < 2 {
			t.Errorf("%s: %d names", e.Name, got.Nlink)
		}
	}
}

// zeroReader yields zeros.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestSparseFile has a file of 6 GiB that holds data at its end only.
func TestSparseFile(t *testing.T) {
	const size = 6 << 30
	end := []byte("the end\n")
	b := newBuild(t, 0, DefaultOptions())
	b.start()
	d, err := b.w.Add(context.Background(), Key{}, size+int64(len(end)), func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(io.LimitReader(zeroReader{}, size), bytes.NewReader(end))), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	nothing, err := b.w.Add(context.Background(), Key{Nth: 1}, 1<<20+1, func() (io.ReadCloser, error) { return io.NopCloser(zeroReader{}), nil })
	if err != nil {
		t.Fatal(err)
	}
	b.end()
	image := b.finish(dirOf(DirEntry{"sparse", fileOf(d)}, DirEntry{"zeros", fileOf(nothing)}))
	if info, err := os.Stat(image); err != nil || info.Size() > 64<<10 {
		t.Errorf("the image has %d bytes", info.Size())
	}
	if list := runTool(t, "unsquashfs", "-ll", image); !strings.Contains(list, strconv.Itoa(size+len(end))) {
		t.Errorf("listing:\n%s", list)
	}
	dir := mounted(t, image, 0)
	f, err := os.Open(dir + "/sparse")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 16+len(end))
	if _, err := f.ReadAt(got, size-16); err != nil || string(got) != strings.Repeat("\x00", 16)+string(end) {
		t.Errorf("%q, %v", got, err)
	}
	if s := lstat(t, dir+"/sparse"); s.Size != size+int64(len(end)) || s.Blocks > 1 {
		t.Errorf("%d bytes in %d blocks", s.Size, s.Blocks)
	}
	if got, err := os.ReadFile(dir + "/zeros"); err != nil || len(got) != 1<<20+1 || !allZero(got) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestTreesThatCannotBe(t *testing.T) {
	dir := dirOf()
	for name, root := range map[string]*Inode{
		"no root":          nil,
		"a file as root":   {Type: Regular},
		"no name":          dirOf(DirEntry{"", dirOf()}),
		"dots":             dirOf(DirEntry{"..", dirOf()}),
		"a slash":          dirOf(DirEntry{"a/b", dirOf()}),
		"a zero byte":      dirOf(DirEntry{"a\x00", dirOf()}),
		"a long name":      dirOf(DirEntry{strings.Repeat("x", 256), dirOf()}),
		"a name twice":     dirOf(DirEntry{"a", dirOf()}, DirEntry{"a", dirOf()}),
		"two names":        dirOf(DirEntry{"a", dir}, DirEntry{"b", dir}),
		"no inode":         dirOf(DirEntry{"a", nil}),
		"no target":        dirOf(DirEntry{"a", &Inode{Type: Symlink}}),
		"a long target":    dirOf(DirEntry{"a", &Inode{Type: Symlink, Target: strings.Repeat("x", 1<<16)}}),
		"a large device":   dirOf(DirEntry{"a", &Inode{Type: Block, Major: 1 << 12}}),
		"a type":           dirOf(DirEntry{"a", &Inode{Type: 9}}),
		"an attribute":     dirOf(DirEntry{"a", &Inode{Type: Fifo, Xattrs: map[string]string{"system.x": ""}}}),
		"a large value":    dirOf(DirEntry{"a", &Inode{Type: Fifo, Xattrs: map[string]string{"user.x": strings.Repeat("x", 1<<16+1)}}}),
		"another's data":   dirOf(DirEntry{"a", &Inode{Type: Regular, Data: &Data{}}}),
		"a directory loop": func() *Inode { d := dirOf(); d.Entries = []DirEntry{{"a", d}}; return d }(),
	} {
		b := newBuild(t, 0, DefaultOptions())
		if _, err := b.w.Finish(root); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var many []DirEntry
	for i := range 1 << 16 {
		many = append(many, DirEntry{strconv.Itoa(i), &Inode{Type: Fifo, UID: uint32(i)}})
	}
	if _, err := newBuild(t, 0, DefaultOptions()).w.Finish(dirOf(many...)); !errors.Is(err, errTooManyIDs) {
		t.Errorf("65536 owners: %v", err)
	}
	if _, err := newBuild(t, 0, DefaultOptions()).w.Finish(dirOf(many[:math.MaxUint16]...)); err != nil {
		t.Errorf("65535 owners: %v", err)
	}
}
