package fuse

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// The tests serve from this process and look from another, which mounts in namespaces of its own: a process that reads
// what it serves can wait for itself.
const lookerEnv = "SCONCE_TEST_FUSE_LOOKER"

func TestMain(m *testing.M) {
	if what := os.Getenv(lookerEnv); what != "" {
		os.Exit(looker(what))
	}
	os.Exit(m.Run())
}

// looker mounts on its working directory, hands the device over on file descriptor 3 and looks.
func looker(what string) int {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	fd, err := Open()
	if err != nil {
		fmt.Println("no device:", err)
		return 77
	}
	if err := Mount(fd, dir); err != nil {
		panic(err)
	}
	if err := Send(3, fd); err != nil {
		panic(err)
	}
	unix.Close(fd)
	unix.Close(3)
	if script, ok := strings.CutPrefix(what, "sh:"); ok {
		cmd := exec.Command("/bin/sh", "-c", script, "sh", dir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		cmd.Dir = "/"
		_ = cmd.Run() // what it printed tells
		return 0
	}
	for range 2 { // the second time from what the kernel has kept
		fmt.Print(describe(dir))
	}
	return 0
}

// look serves root, lets the looker do what, and returns what it printed.
func look(t *testing.T, root Node, what string) string {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	ours.Close()
	defer conn.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), lookerEnv+"="+what)
	cmd.Dir = t.TempDir()
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNS}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	dev, err := Receive(conn.(*net.UnixConn))
	if err != nil {
		cmd.Wait()
		why := fmt.Sprintf("nothing can be mounted here: %v: %s", err, out.String())
		tooltest.Missing(t, "%v", why)
	}
	served := make(chan error, 1)
	go func() { served <- Serve(dev, root, Options{Report: func(err error) { t.Logf("report: %v", err) }}) }()
	if err := cmd.Wait(); err != nil {
		t.Errorf("looker: %v\n%s", err, out.String())
	}
	select { // its mount namespace is gone, and with it the mount
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Minute):
		t.Error("the server does not end")
	}
	return out.String()
}

// describe lists all there is to know below dir.
func describe(dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		fmt.Fprintf(&b, "%s %o %d %d:%d %d %d %x", rel, st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Rdev)
		if d.Type()&fs.ModeType != fileType(st.Mode) {
			fmt.Fprintf(&b, " listed as %v", d.Type())
		}
		b.WriteString(content(name, st.Mode) + "\n")
		return nil
	})
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}

func fileType(mode uint32) fs.FileMode {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	case unix.S_IFIFO:
		return fs.ModeNamedPipe
	case unix.S_IFCHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		return fs.ModeDevice
	case unix.S_IFSOCK:
		return fs.ModeSocket
	}
	return 0
}

func content(name string, mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := os.Readlink(name)
		return fmt.Sprintf(" -> %s %v", target, err)
	case unix.S_IFREG:
		data, err := os.ReadFile(name)
		if err != nil {
			return " " + err.Error()
		}
		return fmt.Sprintf(" %x", sha256.Sum256(data))
	}
	return ""
}

// file is a Node in memory.
type file struct {
	attr     Attr
	data     []byte
	target   string
	names    []string // in the order of a listing
	children map[string]*file
	xattrs   map[string]string
	fails    error
}

func (f *file) Attr() Attr { return f.attr }

func (f *file) Lookup(name string) (Node, error) {
	if c, ok := f.children[name]; ok {
		return c, c.fails
	}
	return nil, fs.ErrNotExist
}

func (f *file) ReadDir() ([]Entry, error) {
	var list []Entry
	for _, name := range f.names {
		c := f.children[name]
		list = append(list, Entry{Name: name, Ino: c.attr.Ino, Mode: c.attr.Mode, Node: func() (Node, error) { return c, c.fails }})
	}
	return list, nil
}

func (f *file) Readlink() (string, error) { return f.target, nil }

func (f *file) Content() (io.ReaderAt, error) {
	if f.data == nil && f.attr.Size > 0 {
		return nil, errors.New("this file is damaged")
	}
	return bytes.NewReader(f.data), nil
}

func (f *file) Xattrs() (map[string]string, error) {
	if f.xattrs == nil {
		return nil, errors.ErrUnsupported
	}
	return f.xattrs, nil
}

// maker makes files with inode numbers of their own.
type maker struct{ last uint64 }

func (m *maker) file(mode uint32, data string) *file {
	m.last++
	return &file{attr: Attr{Ino: m.last, Mode: mode, Links: 1, Size: int64(len(data)), ModTime: time.Unix(1700000000, 0)}, data: []byte(data), children: map[string]*file{}}
}

func (m *maker) dir() *file {
	d := m.file(unix.S_IFDIR|0o755, "")
	d.attr.Links = 2
	return d
}

func (f *file) add(name string, c *file) *file {
	f.names = append(f.names, name)
	f.children[name] = c
	return c
}

// describeNode is describe for a tree that is not mounted.
func describeNode(f *file, name string, b *strings.Builder) {
	a := f.attr
	fmt.Fprintf(b, "%s %o %d %d:%d %d %d %x", name, a.Mode, a.Links, a.UID, a.GID, a.Size, a.ModTime.Unix(), unix.Mkdev(a.Major, a.Minor))
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		fmt.Fprintf(b, " -> %s <nil>", f.target)
	case unix.S_IFREG:
		fmt.Fprintf(b, " %x", sha256.Sum256(f.data))
	}
	b.WriteByte('\n')
	for _, n := range slices.Sorted(slices.Values(f.names)) {
		describeNode(f.children[n], filepath.Join(name, n), b)
	}
}

func variety() *file {
	m := &maker{}
	root := m.dir()
	root.add("empty", m.file(unix.S_IFREG|0o644, ""))
	shared := root.add("one-name", m.file(unix.S_IFREG|0o4750, "shared"))
	shared.attr.Links = 2
	sub := root.add("sub", m.dir())
	sub.attr.Mode = unix.S_IFDIR | 0o700
	sub.add("other-name", shared)
	link := sub.add("link", m.file(unix.S_IFLNK|0o777, ""))
	link.target, link.attr.Size = "../one-name", 11
	null := sub.add("null", m.file(unix.S_IFCHR|0o666, ""))
	null.attr.Major, null.attr.Minor = 1, 3
	disk := sub.add("disk", m.file(unix.S_IFBLK|0o600, ""))
	disk.attr.Major, disk.attr.Minor = 259, 70001
	sub.add("pipe", m.file(unix.S_IFIFO|0o600, ""))
	sub.add("sock", m.file(unix.S_IFSOCK|0o600, ""))
	root.add("big", m.file(unix.S_IFREG|0o600, strings.Repeat("0123456789abcde\n", 1<<18)+"the end"))
	many := root.add("many", m.dir())
	for i := range 5000 {
		many.add(fmt.Sprintf("file-with-a-long-name-%05d-%s", i, strings.Repeat("x", i%200)), m.file(unix.S_IFREG|0o644, fmt.Sprint(i)))
	}
	deep := root
	for range 200 {
		deep = deep.add("deep", m.dir())
	}
	return root
}

func TestEverythingIsAsDescribed(t *testing.T) {
	root := variety()
	var want strings.Builder
	describeNode(root, ".", &want)
	got := look(t, root, "describe")
	if got == want.String()+want.String() {
		return
	}
	seen := strings.Split(got, "\n")
	for i, line := range strings.Split(want.String()+want.String(), "\n") {
		if i >= len(seen) || seen[i] != line {
			t.Fatalf("line %d: want %s, and have %s", i, line, seen[min(i, len(seen)-1)])
		}
	}
}

func TestWhatProgramsAreTold(t *testing.T) {
	m := &maker{}
	root := m.dir()
	root.xattrs = map[string]string{}
	f := root.add("f", m.file(unix.S_IFREG|0o644, "hello"))
	f.xattrs = map[string]string{"user.color": "blue", "user.empty": ""}
	damaged := root.add("damaged", m.file(unix.S_IFREG|0o644, ""))
	damaged.attr.Size, damaged.data, damaged.xattrs = 5, nil, map[string]string{}
	lost := root.add("lost", m.file(unix.S_IFREG|0o644, ""))
	lost.fails = errors.New("no inode")
	root.add("loop", root)                                            // a hostile tree
	twin := root.add("twin", &file{attr: f.attr, data: []byte("12")}) // with f's inode number
	twin.attr.Size = 2
	for _, test := range []struct{ script, want string }{
		{"cat f", "hello"},
		{"cat none", "No such file"},
		{"cat none; cat none", "No such file"},
		{"cat damaged", "put/output error"},
		{"cat lost", "put/output error"},
		{"ls | tr '\\n' ' '", "damaged f loop lost twin"},
		{"ls loop/", "put/output error"},
		{"ls -l f >/dev/null; cat twin", "put/output error"},
		{"echo x >f", "Read-only file system"},
		{"touch new", "Read-only file system"},
		{"rm -f f", "Read-only file system"},
		{"chmod 600 f", "Read-only file system"},
		{"stat -f -c %l .", "255"},
		{"for i in 1 2 3 4 5 6 7 8; do cat f & done; wait", strings.Repeat("hello", 8)},
	} {
		if got := look(t, root, "sh:cd $1; export LC_ALL=C; "+test.script); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q lacks %q", test.script, got, test.want)
		}
	}
}

// A tree may be looked at from many sides at once, and by more than there are workers.
func TestParallelReaders(t *testing.T) {
	m := &maker{}
	root := m.dir()
	data := strings.Repeat("parallel\n", 300_000)
	for i := range 4 {
		root.add(fmt.Sprint("f", i), m.file(unix.S_IFREG|0o644, data))
	}
	got := look(t, root, "sh:cd $1; for i in $(seq 100); do (ls -l >/dev/null; wc -c <f$((i%4))) & done; wait")
	if n := strings.Count(got, fmt.Sprintln(len(data))); n != 100 {
		t.Errorf("%d of 100 readers have read all of it", n)
	}
}

// talkative is a content that tells all of itself, in parts that are no pages, when it is read for the first time.
type talkative struct {
	*file
	tell  func([]byte, int64)
	once  sync.Once
	asked atomic.Int64 // bytes
	done  chan struct{}
}

func (c *talkative) Content() (io.ReaderAt, error) { return c, nil }

func (c *talkative) Tell(tell func([]byte, int64)) { c.tell = tell }

func (c *talkative) ReadAt(p []byte, off int64) (int, error) {
	c.asked.Add(int64(len(p)))
	c.once.Do(func() {
		go func() {
			defer close(c.done)
			var parts sync.WaitGroup
			const part = 1_000_003
			for at := 0; at < len(c.data); at += part {
				parts.Go(func() { c.tell(c.data[at:min(at+part, len(c.data))], int64(at)) })
			}
			parts.Wait()
			c.tell([]byte("what lies"), int64(len(c.data))) // behind the end, is ignored
		}()
	})
	return bytes.NewReader(c.data).ReadAt(p, off)
}

// after is a content that is there when another has told all of itself.
type after struct {
	*file
	of *talkative
}

func (c after) Content() (io.ReaderAt, error) {
	<-c.of.done
	return c.file.Content()
}

// What the kernel was told it does not ask for, and programs see it as if it had.
func TestToldContentIsNotAskedFor(t *testing.T) {
	data := make([]byte, 10<<20+77)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	m := &maker{}
	big := &talkative{file: m.file(unix.S_IFREG|0o644, string(data)), done: make(chan struct{})}
	later := after{m.file(unix.S_IFREG|0o644, "."), big}
	got := look(t, names{m.dir(), map[string]Node{"big": big, "later": later}}, "sh:cd $1; head -c 1 big >/dev/null; cat later; sha256sum <big")
	if want := fmt.Sprintf(".%x", sha256.Sum256(data)); !strings.HasPrefix(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if asked := big.asked.Load(); asked > 1<<20 {
		t.Errorf("%d bytes were asked for, although all were told", asked)
	}
}

// names is a directory of any nodes.
type names struct {
	*file
	all map[string]Node
}

func (d names) Lookup(name string) (Node, error) {
	if n, ok := d.all[name]; ok {
		return n, nil
	}
	return nil, fs.ErrNotExist
}

// Requests that the kernel would not send must do no harm either.
func FuzzRequests(f *testing.F) {
	var seed []byte
	seed = order.AppendUint32(seed, 48)
	seed = order.AppendUint32(seed, opLookup)
	seed = append(seed, make([]byte, 40)...)
	for op := range uint32(60) {
		s := slices.Clone(seed)
		order.PutUint32(s[4:], op)
		order.PutUint64(s[16:], rootID)
		f.Add(s)
	}
	root := variety()
	f.Fuzz(func(_ *testing.T, b []byte) {
		r, ok := parseRequest(b)
		if !ok {
			return
		}
		w := &worker{server: &server{table: newTable(root, nil)}, out: make([]byte, outHeaderSize)}
		_, _ = w.answer(r)
	})
}

func TestForget(t *testing.T) {
	m := &maker{}
	table := newTable(m.dir(), nil)
	f := m.file(unix.S_IFREG|0o644, "")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			in, err := table.tell(f)
			if err != nil || in.node != f {
				t.Error(err)
			}
		})
	}
	all.Wait()
	id := f.attr.Ino + 1
	table.forget(id, 99)
	if table.get(id) == nil {
		t.Fatal("forgotten too early")
	}
	table.forget(id, 1000)
	table.forget(rootID, 1000)
	if table.get(id) != nil || table.get(rootID) == nil {
		t.Error("the file must be forgotten, and the root never")
	}
}
