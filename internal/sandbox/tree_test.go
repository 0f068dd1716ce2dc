package sandbox

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// helperOrdinary becomes an ordinary user, for whom /dev/fuse is open as it is on most machines, and starts over.
func helperOrdinary() int {
	runtime.LockOSThread()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	device := filepath.Join(os.Getenv("HOME"), "fuse")
	if unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(10, 229))) == nil {
		if err := os.Chmod(device, 0o666); err != nil {
			panic(err)
		}
		_ = unix.Mount(device, fuse.Device, "", unix.MS_BIND, "")
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(ordinaryID), syscall.Setuid(ordinaryID), os.Unsetenv(helperEnv)); err != nil {
		panic(err)
	}
	panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// helperNoFUSE runs the options on a host whose /dev has little in it.
func helperNoFUSE() int {
	dev, err := os.MkdirTemp("", "dev-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dev)
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, ""); err != nil {
		panic(err)
	}
	for _, name := range []string{"null", "zero", "urandom"} {
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o644); err != nil {
			panic(err)
		}
		if err := unix.Mount("/dev/"+name, filepath.Join(dev, name), "", unix.MS_BIND, ""); err != nil {
			panic(err)
		}
	}
	if os.Getenv("SCONCE_TEST_CLOSED") != "" { // there, but not for this user, or not the device
		if err := os.WriteFile(filepath.Join(dev, "fuse"), nil, 0); err != nil {
			panic(err)
		}
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		if err := unix.Mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			panic(err)
		}
	}
	return helperRun(context.Background())
}

// openSquashfs opens a squashfs as a tree, until done is called.
func openSquashfs(name string) (tree fuse.Node, done func(), err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	r, err := squashfs.New(f, info.Size())
	if err != nil {
		return nil, nil, err
	}
	tree, err = Squashfs(r)
	return tree, func() { f.Close() }, err
}

// needFUSE skips where this user cannot open the device; most machines, but not all, give it to everybody.
func needFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(fuse.Device, os.O_RDWR, 0)
	if err != nil {
		tooltest.Missing(t, "files cannot be served here: %v", err)
	}
	f.Close()
}

// squashed makes a squashfs of dir by the tool that everybody has.
func squashed(t testing.TB, dir string, options ...string) string {
	t.Helper()
	tool := tooltest.Path(t, "mksquashfs")
	image := filepath.Join(t.TempDir(), "image.sqsh")
	args := append([]string{dir, image, "-noappend", "-no-progress", "-quiet"}, options...)
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image
}

// served returns options that run a script in a squashfs of busybox and what fill adds below /data.
func served(t testing.TB, script string, fill func(dir string), options ...string) Options {
	t.Helper()
	needFUSE(t)
	o := shell(t, script)
	root := o.Layers[0]
	o.Layers = nil
	data := filepath.Join(root, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if fill != nil {
		fill(data)
	}
	if options == nil {
		options = []string{"-comp", "lz4"} // is made in no time
	}
	image := squashed(t, root, options...)
	t.Setenv(treeEnv, image) // for a helper
	tree, done, err := openSquashfs(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	o.Tree = tree
	return o
}

// random returns n bytes that are the same every time and do not compress.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// fillVariety makes one of everything that an image may hold.
func fillVariety(t *testing.T) func(dir string) {
	return func(dir string) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, size := range []int{0, 1, 4096, 131071, 131072, 131073, 3<<20 + 5} {
			must(os.WriteFile(filepath.Join(dir, fmt.Sprint("size-", size)), random(size), 0o640))
		}
		holes, err := os.Create(filepath.Join(dir, "holes"))
		must(err)
		_, err = holes.WriteAt(random(1000), 9<<20)
		must(err)
		must(holes.Close())
		for i := range 1000 {
			write(t, filepath.Join(dir, "many", fmt.Sprintf("name-%d-%s", i, strings.Repeat("n", i%200))), fmt.Sprint(i))
		}
		write(t, filepath.Join(dir, "a", "b", "c", "deep file with spaces"), "deep")
		must(os.Link(filepath.Join(dir, "size-1"), filepath.Join(dir, "a", "hard link")))
		must(os.Symlink("../size-4096", filepath.Join(dir, "a", "link")))
		must(os.Symlink(strings.Repeat("long/", 400), filepath.Join(dir, "a", "dangling")))
		must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
		must(os.Chmod(filepath.Join(dir, "a"), 0o701))
		_ = unix.Setxattr(filepath.Join(dir, "size-1"), "user.color", []byte("blue"), 0)
		if ownsFiles() {
			must(unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
			must(os.Chown(filepath.Join(dir, "a", "b"), 33, 70000))
			must(os.Lchown(filepath.Join(dir, "a", "link"), 33, 33))
		}
	}
}

// describeScript lists all that stat(1) says of the files below the working directory, and the sums of their contents.
const describeScript = `(find . -type d -exec busybox stat -c "%n %a OWNER %Y %h %F" {} +
find . ! -type d -exec busybox stat -c "%n %a OWNER %Y %h %F %s %t:%T %N" {} +) | busybox sort
find . -type f -exec busybox sha256sum {} + | busybox sort`

func TestTreeIsTheSame(t *testing.T) {
	owner := "0:0"
	if ownsFiles() {
		owner = "%u:%g"
	}
	for _, options := range [][]string{{"-comp", "gzip"}, {"-comp", "zstd", "-Xcompression-level", "3", "-b", "1M"}, {"-no-fragments", "-noI", "-noD"}} {
		var dir string
		o := served(t, "cd /data; "+strings.ReplaceAll(describeScript, "OWNER", owner), func(d string) {
			dir = d
			fillVariety(t)(d)
		}, options...)
		cmd := exec.Command(tooltest.Path(t, "busybox"), "sh", "-c", strings.ReplaceAll(describeScript, "OWNER", owner))
		cmd.Dir = dir
		want, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		code, got := run(t, o)
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
		wantLines(t, got, string(want))
	}
}

func wantLines(t *testing.T, got, want string) {
	t.Helper()
	have := strings.Split(got, "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(have) || have[i] != line {
			t.Fatalf("line %d of %d: have %q, want %q", i, len(have), have[min(i, len(have)-1)], line)
		}
	}
}

// What is written lies over the tree as it does over layers: it is seen, and gone afterwards.
func TestTreeIsWrittenOver(t *testing.T) {
	script := `cd /data; echo more >>size-1; rm size-0; mkdir many/new; chmod 755 size-4096; chown 1:1 size-4096 2>/dev/null
		busybox wc -c <size-1; test ! -e size-0; test -x size-4096; busybox mv size-131071 many/new/; ls many/new; ls / | busybox grep -c data`
	o := served(t, script, fillVariety(t))
	for range 2 {
		wantOutput(t, o, "6\nsize-131071\n1\n")
		wantEmpty(t, o.ScratchDir)
	}
	o.ReadOnly = true
	o.Args = []string{"sh", "-c", "touch /data/x 2>/dev/null || echo refused; cat /data/a/link | wc -c"}
	wantOutput(t, o, "refused\n4096\n")
}

func TestTreeExitCodes(t *testing.T) {
	o := served(t, "", nil)
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 137} {
		o.Args = []string{"sh", "-c", script}
		if code, _ := run(t, o); code != want {
			t.Errorf("%s: exit code %d, want %d", script, code, want)
		}
	}
	o.Args = []string{"no-such-command"}
	if code, err := Run(t.Context(), o); code != 127 || err == nil {
		t.Errorf("a command that is not there: %d, %v", code, err)
	}
	o.Layers = []string{"/"}
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no error for an image given twice")
	}
}

func TestTreeParallelReaders(t *testing.T) {
	data := random(2<<20 + 1)
	o := served(t, `for i in $(busybox seq 100); do busybox md5sum </data/big & done; wait`, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "big"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	})
	wantOutput(t, o, strings.Repeat(fmt.Sprintf("%x  -\n", md5.Sum(data)), 100))
}

// Many sandboxes may use one tree, each through a mount of its own; afterwards none has left anything in this process.
func TestTreeOfManySandboxes(t *testing.T) {
	o := served(t, "busybox sha256sum /bin/busybox >/dev/null && echo fine", nil)
	wantOutput(t, o, "fine\n")
	files := openFiles(t)
	routines := runtime.NumGoroutine()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			var out bytes.Buffer
			own := o
			own.Stdout = &out
			if code, err := Run(t.Context(), own); code != 0 || err != nil || out.String() != "fine\n" {
				t.Errorf("exit code %d, %v, output %q", code, err, out.String())
			}
		})
	}
	all.Wait()
	childtest.Eventually(t, "end of all goroutines", func() bool { return runtime.NumGoroutine() <= routines })
	if now := openFiles(t); now > files {
		t.Errorf("%d files are open, %d were before", now, files)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

func TestTreeForGroup(t *testing.T) {
	o := served(t, "read line; cat /data/$line", func(dir string) {
		for i := range 3 {
			write(t, filepath.Join(dir, fmt.Sprint("f", i)), fmt.Sprintln("content", i))
		}
	})
	group, err := StartGroup(t.Context(), o, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range group {
		fmt.Fprintf(p.Stdin, "f%d\n", i)
		got, err := io.ReadAll(p.Stdout)
		if err != nil || string(got) != fmt.Sprintln("content", i) {
			t.Errorf("process %d: %q, %v", i, got, err)
		}
		if code, err := p.Wait(); code != 0 || err != nil {
			t.Errorf("process %d: %d, %v", i, code, err)
		}
	}
}

// The kernel must take everything down with the caller: readers of the tree wait for an answer that will not come.
func TestTreeOfAKilledCaller(t *testing.T) {
	marker := fmt.Sprint("76543.", os.Getpid())
	o := served(t, "trap '' HUP TERM INT; sleep "+marker+" & while :; do busybox sha256sum /data/* >/dev/null; done & while :; do busybox find / -xdev >/dev/null; done & echo ready; sleep "+marker, fillVariety(t))
	t.Cleanup(func() { store.RemoveAll(o.ScratchDir) }) // nobody is left to do it
	o.Tree = nil                                        // the helper has its own
	cmd := helperCommand(t, "run", o)
	startHelper(t, cmd)
	childtest.Eventually(t, "start of both processes", func() bool { return len(processesWith(t, marker)) == 2 })
	time.Sleep(200 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	childtest.Eventually(t, "end of all processes", func() bool { return len(processesWith(t, marker)) == 0 })
}

func TestTreeAndControlC(t *testing.T) {
	o := served(t, "echo ready; while :; do busybox sha256sum /data/* >/dev/null; done", fillVariety(t))
	o.Tree = nil
	if out, code := terminal(t, o, dialogue{"ready", "\x03"}); code != 128+2 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
	wantEmpty(t, o.ScratchDir)
}

// The caller's mounts are the same afterwards.
func TestTreeLeavesNoMount(t *testing.T) {
	o := served(t, "ls -d /data; echo done", nil)
	o.Tree = nil
	cmd := helperCommand(t, "private", o)
	inNamespaces(cmd)
	out, err := cmd.CombinedOutput()
	if !ownsFiles() && bytes.Contains(out, []byte("no FUSE")) {
		t.Skip("the device is not open to the nested user namespace")
	}
	if err != nil || !strings.HasSuffix(string(out), "done\nmounts are the same\n") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTreeCancel(t *testing.T) {
	o := served(t, "echo ready; while :; do busybox sha256sum /bin/* >/dev/null; done", nil)
	ctx, cancel := context.WithCancel(t.Context())
	out := &notifyingWriter{told: make(chan struct{})}
	o.Stdout = out
	go func() {
		<-out.told
		cancel()
	}()
	if code, err := Run(ctx, o); code != 128+15 || !errors.Is(err, context.Canceled) {
		t.Errorf("exit code %d and error %v", code, err)
	}
	wantEmpty(t, o.ScratchDir)
}

// Somebody on the host who looks into the sandbox must not keep it from ending.
func TestTreeThatIsHeldOpen(t *testing.T) {
	marker := fmt.Sprint("65432.", os.Getpid())
	o := served(t, "exec sleep "+marker, nil)
	p, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	childtest.Eventually(t, "start", func() bool { return len(processesWith(t, marker)) == 1 })
	held, err := unix.Open("/proc/"+processesWith(t, marker)[0]+"/root/etc", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		p.Kill()
		t.Skipf("this user cannot look into a sandbox: %v", err)
	}
	defer unix.Close(held)
	p.Kill()
	ended := make(chan struct{})
	go func() {
		p.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Minute):
		t.Fatal("the sandbox does not end")
	}
	if fd, err := unix.Openat(held, "passwd", unix.O_RDONLY, 0); err == nil { // it may be known, but not be read
		defer unix.Close(fd)
		if n, err := unix.Read(fd, make([]byte, 10)); err == nil {
			t.Errorf("%d bytes could be read of a tree that nobody serves", n)
		}
	}
}

// A file that cannot be read: the program gets an error, the caller is told the cause, once.
func TestDamagedTree(t *testing.T) {
	o := served(t, "cat /data/one; cat /data/two; cat /data/intact", func(dir string) {
		for _, name := range []string{"intact", "one", "two"} {
			write(t, filepath.Join(dir, name), "content of "+name+"\n")
		}
	}, "-no-fragments", "-noD")
	image, err := os.ReadFile(os.Getenv(treeEnv))
	if err != nil {
		t.Fatal(err)
	}
	disk := &badDisk{data: image, bad: [][]byte{[]byte("content of one"), []byte("content of two")}}
	r, err := squashfs.New(disk, int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	if o.Tree, err = Squashfs(r); err != nil {
		t.Fatal(err)
	}
	var warnings collected
	var out, errOut bytes.Buffer
	o.Stdout, o.Stderr = &out, &errOut
	code, err := Run(progress.With(t.Context(), &warnings), o)
	if code != 0 || err != nil || out.String() != "content of intact\n" || strings.Count(errOut.String(), "Input/output error") != 2 {
		t.Errorf("exit code %d, %v, output %q, errors %q", code, err, out.String(), errOut.String())
	}
	if got := warnings.list(); len(got) != 1 || !strings.Contains(got[0], "could not be read: ") || !strings.Contains(got[0], "bad sector") {
		t.Errorf("warnings: %q", got)
	}
}

// badDisk is a file parts of which cannot be read.
type badDisk struct {
	data []byte
	bad  [][]byte
}

func (d *badDisk) ReadAt(p []byte, at int64) (int, error) {
	n, err := bytes.NewReader(d.data).ReadAt(p, at)
	for _, b := range d.bad {
		if bytes.HasPrefix(p[:n], b) {
			return 0, errors.New("bad sector")
		}
	}
	return n, err
}

type collected struct {
	mu   sync.Mutex
	text []string
}

func (c *collected) Emit(e progress.Event) {
	if e.Kind == progress.Warning {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.text = append(c.text, e.Text)
	}
}

func (c *collected) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.text)
}

// Without the device the caller is told so in a way that it can act on.
func TestNoFUSE(t *testing.T) {
	for _, test := range []struct{ closed, want string }{
		{"", "hint: this host has no FUSE: an administrator can load it (modprobe fuse)"},
		{"yes", "hint: "},
	} {
		o := served(t, "echo started", nil)
		o.Tree = nil
		cmd := helperCommand(t, "nofuse", o)
		cmd.Env = append(cmd.Env, "SCONCE_TEST_CLOSED="+test.closed)
		inNamespaces(cmd)
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), test.want) || !strings.HasSuffix(string(out), "no FUSE\n") || cmd.ProcessState.ExitCode() != codeNotMade {
			t.Errorf("exit code %d, output %s", cmd.ProcessState.ExitCode(), out)
		}
		wantEmpty(t, o.ScratchDir)
	}
}

func BenchmarkStartServed(b *testing.B) {
	o := served(b, "", nil)
	o.Args = []string{"true"}
	for b.Loop() {
		if code, err := Run(b.Context(), o); code != 0 || err != nil {
			b.Fatal(code, err)
		}
	}
}
