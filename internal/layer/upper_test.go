package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// upperTree makes an upper directory by hand; sandbox tests those that the kernel makes.
type upperTree struct {
	t   testing.TB
	dir string
}

func newUpper(t testing.TB) upperTree {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return upperTree{t, dir}
}

func (u upperTree) at(p string) string { return filepath.Join(u.dir, p) }

func (u upperTree) check(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

func (u upperTree) mkdir(p string) {
	u.t.Helper()
	u.check(os.MkdirAll(u.at(p), 0o755))
}

func (u upperTree) file(p, content string) {
	u.t.Helper()
	u.check(os.WriteFile(u.at(p), []byte(content), 0o644))
	u.check(os.Chmod(u.at(p), 0o644))
}

func (u upperTree) xattr(p, name, value string) {
	u.t.Helper()
	err := unix.Lsetxattr(u.at(p), name, []byte(value), 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		tooltest.Missing(u.t, "set %s: %v", name, err)
	}
	u.check(err)
}

func (u upperTree) whiteout(p string) {
	u.t.Helper()
	u.check(unix.Mknod(u.at(p), unix.S_IFCHR, 0))
}

// entries makes a layer and lists it.
func (u upperTree) entries(o UpperOptions) []string {
	u.t.Helper()
	st := storetest.Alone(u.t)
	d, err := FromUpper(u.t.Context(), st, u.dir, o)
	u.check(err)
	ix, err := OpenIndex(u.t.Context(), st, d)
	u.check(err)
	lines := []string{}
	for _, e := range ix.Entries {
		line := fmt.Sprintf("%s %d %o %d:%d", e.Path, e.Type, e.Mode, e.UID, e.GID)
		if e.Link != "" {
			line += " " + e.Link
		}
		if e.Type == Char || e.Type == Block {
			line += fmt.Sprintf(" device %d:%d", e.Major, e.Minor)
		}
		for k, v := range e.Xattrs {
			line += fmt.Sprintf(" %s=%q", k, v)
		}
		lines = append(lines, line)
	}
	return lines
}

// ownedByRoot is what belongs to the user who runs the tests.
var ownedByRoot = UpperOptions{Options: Options{Compression: None}}

func (u upperTree) want(o UpperOptions, want ...string) {
	u.t.Helper()
	if diff := cmp.Diff(want, u.entries(o)); diff != "" {
		u.t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestUpperWithoutBase(t *testing.T) {
	u := newUpper(t)
	u.mkdir("dir/below")
	u.mkdir("opaque")
	u.mkdir("xattrs")
	u.whiteout("gone")
	u.whiteout("opaque/nothing") // it has nothing to hide
	u.whiteout("dir/gone")
	u.xattr("opaque", "user.overlay.opaque", "y")
	u.xattr("xattrs", "user.overlay.opaque", "x") // xattr whiteouts may be in it (overlayfs.rst, "whiteouts and opaque directories")
	u.file("xattrs/gone", "")
	u.xattr("xattrs/gone", "user.overlay.whiteout", "y")
	u.file("xattrs/full", "it has content")
	u.xattr("xattrs/full", "user.overlay.whiteout", "y")
	u.file("dir/file", "x")
	u.xattr("dir/file", "user.kept", "v")
	u.xattr("dir/file", "user.overlay.origin", "")
	u.check(os.Link(u.at("dir/file"), u.at("dir/below/name")))
	u.check(unix.Mkfifo(u.at("fifo"), 0o600))
	socket, err := net.Listen("unix", u.at("socket"))
	u.check(err)
	defer socket.Close()
	u.want(ownedByRoot,
		".wh.gone 0 600 0:0", ".wh.socket 0 600 0:0", "dir 1 755 0:0", "dir/.wh.gone 0 600 0:0", "dir/below 1 755 0:0",
		`dir/below/name 0 644 0:0 user.kept="v"`, "dir/file 3 644 0:0 dir/below/name", "fifo 6 600 0:0", "opaque 1 755 0:0",
		"opaque/.wh..wh..opq 0 600 0:0", "xattrs 1 755 0:0", "xattrs/.wh.gone 0 600 0:0", "xattrs/full 0 644 0:0")
}

func TestUpperOfAnOverlayOfRoot(t *testing.T) {
	u := newUpper(t)
	u.mkdir("opaque")
	u.xattr("opaque", "trusted.overlay.opaque", "y")
	u.xattr(".", "trusted.overlay.impure", "y")
	u.want(ownedByRoot, "opaque 1 755 0:0", "opaque/.wh..wh..opq 0 600 0:0")
}

func TestUpperRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		make func(u upperTree)
		says string
	}{
		"redirected directories": {func(u upperTree) {
			u.mkdir("d")
			u.xattr("d", "user.overlay.redirect", "/e")
		}, "redirect_dir"},
		"files without their content": {func(u upperTree) {
			u.file("f", "")
			u.xattr("f", "user.overlay.metacopy", "")
		}, "metacopy"},
		"a name of whiteouts":    {func(u upperTree) { u.file(".wh.x", "") }, ".wh.x"},
		"one of opaque ones":     {func(u upperTree) { u.mkdir("d/.wh..wh..opq") }, "d/.wh..wh..opq"},
		"directories too deep":   {func(u upperTree) { u.mkdir(strings.Repeat("d/", maxDepth+1)) }, "more than 512"},
		"a path that is no path": {func(u upperTree) { u.longPath() }, "4095"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpper(t)
			c.make(u)
			st := storetest.Alone(t)
			_, err := FromUpper(t.Context(), st, u.dir, UpperOptions{})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
			if strings.Contains(name, "of ") && fault.HintOf(err) == "" {
				t.Error("no hint")
			}
			checkNoBlobs(t, st)
		})
	}
	if _, err := FromUpper(t.Context(), storetest.Alone(t), "/no/such/directory", UpperOptions{}); err == nil {
		t.Error("no error without a directory")
	}
}

// longPath makes a file whose path is longer than Linux lets one say.
func (u upperTree) longPath() {
	u.t.Helper()
	fd, err := unix.Open(u.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	u.check(err)
	name := strings.Repeat("n", 250)
	for range 20 {
		u.check(unix.Mkdirat(fd, name, 0o755))
		next, err := openDirAt(fd, name)
		u.check(err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

func checkNoBlobs(t *testing.T, st *store.Store) {
	t.Helper()
	u, err := st.Usage()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range u {
		if b.Bytes > 0 {
			t.Errorf("something is left in the store: %+v", b)
		}
	}
}

// memoryBase is a base that is no image.
type memoryBase map[string]struct {
	BaseEntry
	content string
}

func (m memoryBase) Find(p string) (BaseEntry, bool, error) {
	e, ok := m[p]
	e.Path = p
	e.Size = int64(len(e.content))
	return e.BaseEntry, ok, nil
}

func (m memoryBase) Open(p string) (io.ReadCloser, error) {
	if m[p].content == "broken" {
		return nil, errors.New("the disk is gone")
	}
	return io.NopCloser(strings.NewReader(m[p].content)), nil
}

func (m memoryBase) add(e Entry, content string) {
	m[e.Path] = struct {
		BaseEntry
		content string
	}{BaseEntry{Entry: e, Inode: len(m) + 1, Links: 1}, content}
}

func TestUpperAgainstBase(t *testing.T) {
	base := memoryBase{}
	old := time.Unix(1e9, 0)
	base.add(Entry{Path: "d", Type: Dir, Mode: 0o2750, UID: 7, GID: 8, ModTime: old}, "")
	base.add(Entry{Path: "d/same", Mode: 0o4755, UID: 7, GID: 8, ModTime: old}, "same")
	base.add(Entry{Path: "d/other", Mode: 0o4755, UID: 7, GID: 8, Xattrs: map[string]string{capability: "c", "security.selinux": "s"}, ModTime: old}, "same")
	base.add(Entry{Path: "d/chmod", Mode: 0o600, Xattrs: map[string]string{capability: "c"}, ModTime: old}, "same")
	base.add(Entry{Path: "d/socket", Mode: 0o600}, "")
	base.add(Entry{Path: "way", Type: Symlink, Link: "d"}, "")
	base.add(Entry{Path: "broken", Mode: 0o644}, "broken")

	u := newUpper(t)
	u.mkdir("d")
	u.mkdir("way") // in place of the link
	u.check(os.Chmod(u.at("d"), 0o750|os.ModeSetgid))
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{{"d/same", "same", 0o755}, {"d/other", "else", 0o755}, {"d/chmod", "same", 0o640}, {"way/same", "same", 0o644}} {
		u.file(f.name, f.content)
		u.check(os.Chmod(u.at(f.name), f.mode))
		u.xattr(f.name, "user.overlay.origin", "")
	}
	u.xattr("d", "user.overlay.origin", "")
	u.whiteout("never")
	u.whiteout("way/other") // d/other stays: the base's way leads there, but way is a directory now
	socket, err := net.Listen("unix", u.at("d/socket"))
	u.check(err)
	defer socket.Close()
	o := ownedByRoot
	o.Base = base
	u.mkdir("d/new") // which the group of d is handed on to, with the bit that does it
	u.file("d/new/f", "")
	u.want(o, "d 1 2750 7:8", "d/.wh.socket 0 600 0:0", `d/chmod 0 640 0:0 security.capability="c"`, "d/new 1 2755 0:8", "d/new/f 0 644 0:8",
		"d/other 0 4755 7:8",
		"way 1 755 0:0", "way/same 0 644 0:0")

	u.file("broken", "decide")
	if _, err := FromUpper(t.Context(), storetest.Alone(t), u.dir, o); err == nil || !strings.Contains(err.Error(), "compare broken: the disk is gone") {
		t.Errorf("a base that cannot be read: %v", err)
	}
}

func TestUpperOwner(t *testing.T) {
	base := memoryBase{}
	base.add(Entry{Path: "setuid", Mode: 0o4755, UID: 7, GID: 7}, "x")
	base.add(Entry{Path: "again", Mode: 0o4755, UID: 7, GID: 7}, "x")
	u := newUpper(t)
	for _, name := range []string{"setuid", "again", "device", "plain", "daemon"} {
		u.file(name, "x")
		u.check(os.Chmod(u.at(name), 0o755))
	}
	u.xattr("setuid", "user.overlay.origin", "")
	u.xattr("again", "user.overlay.origin", "")
	u.check(os.Chmod(u.at("again"), 0o755|os.ModeSetuid))
	u.check(os.Symlink("nowhere", u.at("link")))
	o := ownedByRoot
	o.Base = base
	o.Owner = func(f UpperFile, o Ownership) Ownership {
		var again unix.Stat_t
		if err := unix.Lstat(f.Upper+"/"+f.Path, &again); err != nil || again.Ino != f.Stat.Ino {
			t.Errorf("%s is not what it is said to be: %v", f.Path, err)
		}
		switch f.Path {
		case "device":
			o.Mode, o.Rdev = unix.S_IFBLK|0o660, unix.Mkdev(8, 1)
		case "daemon":
			o.UID, o.GID, o.Mode, o.Capability = 33, 34, unix.S_IFREG|0o2755, "cap"
		case "setuid", "again", "link":
			o.UID = 9
		}
		return o
	}
	// chown(2) takes the setuid bit away, and a chmod(2) after it gave it back to one.
	u.want(o, "again 0 4755 9:7", `daemon 0 2755 33:34 security.capability="cap"`, "device 5 660 0:0 device 8:1", "link 2 777 9:0 nowhere",
		"plain 0 755 0:0", "setuid 0 755 9:7")
}

// Capabilities that the root of a user namespace gave are those of root in the layer.
func TestUpperCapabilityOfNamespace(t *testing.T) {
	given := "\x01\x00\x00\x03\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x32\xef\x00\x00"
	want := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	u := &upperReader{uid: 61234}
	if got := u.imageValue(capability, given); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	u.uid = 5
	for _, value := range []string{given, want, "", given[:23]} {
		if got := u.imageValue(capability, value); got != value {
			t.Errorf("%q became %q", value, got)
		}
	}
}

// What a step writes has one time, later than all that it kept.
func TestUpperTimes(t *testing.T) {
	u := newUpper(t)
	started := time.Now()
	u.file("new", "")
	u.file("unpacked", "")
	long := time.Unix(1e9, 5)
	u.check(os.Chtimes(u.at("unpacked"), long, long))
	fixed, kept := time.Unix(4e8, 0), long.Truncate(time.Second)
	after, later := kept.Add(time.Second), kept.Add(time.Hour)
	for _, c := range []struct {
		o             UpperOptions
		new, unpacked time.Time
	}{
		{UpperOptions{}, DefaultModTime, DefaultModTime},
		{UpperOptions{Started: started}, after, kept},
		{UpperOptions{Started: started, Options: Options{ModTime: fixed}}, after, kept},
		{UpperOptions{Started: started, Options: Options{ModTime: kept}}, after, kept},
		{UpperOptions{Started: started, Options: Options{ModTime: later}}, later, kept},
		{UpperOptions{Options: Options{ModTime: fixed}}, fixed, fixed},
	} {
		st := storetest.Alone(t)
		d, err := FromUpper(t.Context(), st, u.dir, c.o)
		u.check(err)
		ix, err := OpenIndex(t.Context(), st, d)
		u.check(err)
		if !ix.Entries[0].ModTime.Equal(c.new) || !ix.Entries[1].ModTime.Equal(c.unpacked) {
			t.Errorf("times %v and %v, want %v and %v", ix.Entries[0].ModTime, ix.Entries[1].ModTime, c.new, c.unpacked)
		}
	}
}

func TestUpperCancelled(t *testing.T) {
	u := newUpper(t)
	u.file("f", "x")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := FromUpper(ctx, storetest.Alone(t), u.dir, UpperOptions{}); !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestEqualStreams(t *testing.T) {
	u := &upperReader{ctx: t.Context()}
	big := bytes.Repeat([]byte("0123456789"), compareSize/4)
	for _, c := range []struct {
		a, b []byte
		want bool
	}{
		{nil, nil, true},
		{big, big, true},
		{big, big[:len(big)-1], false},
		{big[:compareSize], big[:compareSize], true},
		{big[:compareSize], big[:compareSize+1], false},
		{big, append(bytes.Clone(big[:len(big)-1]), 'x'), false},
	} {
		got, err := u.equalStreams(bytes.NewReader(c.a), bytes.NewReader(c.b))
		if got != c.want || err != nil {
			t.Errorf("%d and %d bytes: %v, %v", len(c.a), len(c.b), got, err)
		}
	}
	broken := errors.New("broken")
	if _, err := u.equalStreams(bytes.NewReader(big), io.MultiReader(bytes.NewReader(big[:10]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// BenchmarkUpper makes a layer of many small files.
func BenchmarkUpper(b *testing.B) {
	u := newUpper(b)
	const dirs, files = 200, 200
	for i := range dirs {
		u.mkdir(fmt.Sprint("d", i))
		for k := range files {
			u.file(fmt.Sprint("d", i, "/f", k), "content")
		}
	}
	st := storetest.Alone(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromUpper(b.Context(), st, u.dir, ownedByRoot); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(dirs*files), "ns/file")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-of-process")
}
