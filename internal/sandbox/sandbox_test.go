package sandbox

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// The test binary is its own sandbox init, like sconce. With helperEnv it plays the program whose signals, terminal and
// death are tested from outside.
func TestMain(m *testing.M) {
	Init()
	if mode := os.Getenv(helperEnv); mode != "" {
		os.Exit(helper(mode))
	}
	os.Exit(m.Run())
}

// ordinaryID is the user and group that the tests run as when root runs them. No account has, or needs, that number.
const ordinaryID = 61234

const asUserEnv = "SCONCE_TEST_AS_USER"

// Every test runs as the user who runs the tests; when that is root, all of them run again as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv(asUserEnv) != "" {
		t.Skip("this is an ordinary user already")
	}
	dir := worldDir(t)
	binary := filepath.Join(dir, "sandbox.test")
	copyFile(t, testBinary(t), binary, 0o755)
	if err := os.Chown(dir, ordinaryID, ordinaryID); err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.v"}
	if tooltest.Less(t) {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asUserEnv+"=1", "HOME="+dir, "TMPDIR="+dir, helperEnv+"=ordinary")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("as user %d:\n%s", ordinaryID, out)
	if err != nil {
		t.Fatal(err)
	}
}

func testBinary(t testing.TB) string {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// worldDir is a temporary directory that every user can reach, which t.TempDir is not.
func worldDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sconce-sandbox-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t testing.TB, from, to string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, mode); err != nil {
		t.Fatal(err)
	}
}

// busyboxLayer makes the layer of a small image: busybox under the names of its commands, /etc/passwd and /tmp.
func busyboxLayer(t testing.TB) string {
	t.Helper()
	busybox := tooltest.Path(t, "busybox")
	f, err := elf.Open(busybox)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".interp") != nil {
		tooltest.Missing(t, "%s", busybox+" is not a static program: apt-get install busybox-static")
	}
	root := filepath.Join(t.TempDir(), "busybox")
	for _, dir := range []string{"bin", "etc", "tmp", "root", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, busybox, filepath.Join(root, "bin/busybox"), 0o755)
	for _, name := range []string{
		"sh", "cat", "echo", "env", "id", "ls", "ps", "pwd", "rm", "mkdir", "mount", "hostname", "sleep", "stat", "stty",
		"touch", "true", "kill", "tty", "dd", "grep", "readlink", "chroot", "df", "head", "mknod", "test", "umount", "wc", "tr", "printf", "find",
	} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	return root
}

// write makes a file and the directories above it.
func write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// shell returns options that run a script in the image made of layers on top of busybox.
func shell(t testing.TB, script string, layers ...string) Options {
	t.Helper()
	return Options{
		Layers:     append([]string{busyboxLayer(t)}, layers...),
		Args:       []string{"sh", "-c", script},
		Env:        []string{"PATH=/bin", "HOME=/root"},
		ScratchDir: t.TempDir(),
	}
}

// run runs o and returns its exit code and what it printed.
func run(t testing.TB, o Options) (code int, stdout string) {
	t.Helper()
	var out, errOut bytes.Buffer
	o.Stdout, o.Stderr = &out, &errOut
	code, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\nstderr: %s", err, errOut.String())
	}
	if errOut.Len() > 0 {
		t.Logf("stderr: %s", errOut.String())
	}
	return code, out.String()
}

// wantOutput runs o and compares.
func wantOutput(t testing.TB, o Options, want string) {
	t.Helper()
	code, got := run(t, o)
	if code != 0 || got != want {
		t.Errorf("exit code %d, output %q, want 0 and %q", code, got, want)
	}
}

// Root's commands become somebody else for good; in an ordinary user's sandbox there is nobody else.
func TestUser(t *testing.T) {
	o := shell(t, `id -u; id -g; id -G; touch /root/file 2>/dev/null || echo refused; cd /dev/shm && touch file && stat -c %u:%g file`)
	o.UID, o.GID, o.Groups = 70, 71, []int{71, 80}
	if ownsFiles() {
		wantOutput(t, o, "70\n71\n71 80\nrefused\n70:71\n")
	} else if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "cannot run as user 70 and group 71") {
		t.Errorf("error %v", err)
	}
	o.UID = -1
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "-1 is no id") {
		t.Errorf("error %v", err)
	}
}

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"exit 255", 255},
		{"kill -TERM $$", 128 + 15},
		{"kill -KILL $$", 128 + 9},
		{"kill -SEGV $$", 128 + 11},
	} {
		if code, _ := run(t, shell(t, test.script)); code != test.want {
			t.Errorf("%s: exit code %d, want %d", test.script, code, test.want)
		}
	}
}

func TestCommandDoesNotStart(t *testing.T) {
	layer := t.TempDir()
	write(t, filepath.Join(layer, "plain"), "text")
	write(t, filepath.Join(layer, "script"), "#!/no/such/interpreter\n")
	write(t, filepath.Join(layer, "foreign"), "\x7fELF not for this machine")
	for _, name := range []string{"script", "foreign"} {
		if err := os.Chmod(filepath.Join(layer, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		command string
		code    int
		says    string
	}{
		{"no-such-command", 127, `command "no-such-command" is not in the image`},
		{"/no/such/command", 127, "command /no/such/command is not in the image"},
		{"/plain/below", 127, "is not in the image"},
		{"/plain", 126, "command /plain is not executable"},
		{"/bin", 126, "command /bin is a directory"},
		{"/script", 126, "no such file or directory"},
		{"/foreign", 126, "exec format error"},
	} {
		o := shell(t, "", layer)
		o.Args = []string{test.command}
		code, err := Run(t.Context(), o)
		if err == nil || code != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: exit code %d and error %v, want %d and %q", test.command, code, err, test.code, test.says)
		}
		var e *Error
		if errors.As(err, &e) && e.ExitCode() != test.code {
			t.Errorf("%s: the error means exit code %d, want %d", test.command, e.ExitCode(), test.code)
		}
		wantEmpty(t, o.ScratchDir)
	}
}

func wantEmpty(t testing.TB, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%s holds %v (%v), want nothing", dir, left, err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, test := range []struct {
		change func(*Options)
		says   string
	}{
		{func(o *Options) { o.Layers = nil }, "no layers"},
		{func(o *Options) { o.Args = nil }, "no command"},
		{func(o *Options) { o.Layers = []string{"/no/such/layer"} }, "/no/such/layer"},
		{func(o *Options) { o.Binds = []Bind{{Source: "/no/such/source", Target: "/x"}} }, "/no/such/source"},
		{func(o *Options) { o.Binds = []Bind{{Source: "relative", Target: "/x"}} }, "absolute"},
		{func(o *Options) { o.Binds = []Bind{{Source: "/", Target: "/"}} }, "not /"},
		{func(o *Options) { o.Binds = []Bind{{Source: "/", Target: "/etc/passwd"}} }, "/etc/passwd must be a directory"},
		{func(o *Options) { o.Binds = []Bind{{Source: "/etc/passwd", Target: "/bin"}} }, "/bin must be a file"},
		{func(o *Options) { o.ScratchDir = "/no/such/scratch" }, "/no/such/scratch"},
	} {
		o := shell(t, "exit 0")
		test.change(&o)
		_, err := Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %v, want one that says %q", err, test.says)
		}
	}
}

func TestEnvironmentAndWorkDir(t *testing.T) {
	t.Setenv("SCONCE_LEAK", "must not be seen")
	o := shell(t, "")
	o.Args = []string{"/bin/busybox", "env"}
	o.Env = []string{"ONE=1", "SPACES=a b  c", "EMPTY="}
	wantOutput(t, o, "ONE=1\nSPACES=a b  c\nEMPTY=\n")

	o = shell(t, "pwd; umask; tr '\\0' '\\n' </proc/1/environ | grep LEAK; cat /proc/1/cmdline | tr '\\0' ' '")
	o.WorkDir = "/made/on/the/way"
	wantOutput(t, o, "/made/on/the/way\n0022\n"+initName+" ")
}

func TestStandardStreams(t *testing.T) {
	o := shell(t, "cat; echo problem >&2")
	o.Stdin = strings.NewReader("through the pipe")
	var out, errOut bytes.Buffer
	o.Stdout, o.Stderr = &out, &errOut
	if code, err := Run(t.Context(), o); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	if out.String() != "through the pipe" || errOut.String() != "problem\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errOut.String())
	}
}

// A reader must see the end of the output when the command closes it, not when the sandbox ends.
func TestOutputClosesWithTheCommand(t *testing.T) {
	o := shell(t, "exec >/dev/null; read line; echo $line")
	p, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.Stdout.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes, %v; want the end of the output", n, err)
	}
	p.Stdin.Close()
	p.Wait()
}

func TestIsolation(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"root inside", "id -u; id -g", "0\n0\n"},
		{"few processes", "ps -o pid >/tmp/ps; wc -l </tmp/ps", "4\n"},              // a head, init, sh and ps
		{"no files of the caller", "exec busybox ls /proc/self/fd", "0\n1\n2\n3\n"}, // 3 is the listed directory
		{"no new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"},
		{"the program on the host is out of reach", "cat /proc/1/exe >/dev/null 2>&1 || echo refused", "refused\n"},
		{"init's root is out of reach", "ls /proc/1/root/ >/dev/null 2>&1 || readlink /proc/1/cwd || echo refused", "refused\n"},
		{"sys cannot be written", "touch /sys/x 2>/dev/null || echo refused", "refused\n"},
		{"kernel settings cannot be written", "(echo 1 >/proc/sys/kernel/sysrq) 2>/dev/null || echo refused", "refused\n"},
		{"devices", "echo x >/dev/null && head -c 2 /dev/zero | wc -c && test -c /dev/urandom && test -d /dev/shm && readlink /dev/fd", "2\n/proc/self/fd\n"},
		{"pseudo terminals", "test -c /dev/ptmx && echo yes", "yes\n"},
		{"tmp", "echo x >/tmp/x && cat /tmp/x", "x\n"},
		{"init cannot be killed", "kill -9 1; kill -STOP 1; echo alive", "alive\n"},
	} {
		t.Run(test.name, func(t *testing.T) { wantOutput(t, shell(t, test.script), test.want) })
	}
}

// Root learns no more of the host than others do: neither its keys, nor what its kernel's memory, timers and firmware hold.
func TestRootSeesNoMore(t *testing.T) {
	const files = "/proc/keys /proc/kcore /proc/timer_list /proc/sched_debug /proc/latency_stats"
	wantOutput(t, shell(t, "cat "+files+" 2>/dev/null | head -c 100; for d in /proc/scsi /proc/acpi /proc/asound; do ls $d 2>/dev/null; done; true"), "")
	if ownsFiles() {
		wantOutput(t, shell(t, "ls /sys/firmware; mkdir /sys/firmware/x 2>/dev/null || echo refused"), "refused\n")
	}
}

// What root's command does to a device is not done to the host's.
func TestDeviceOfTheHostStaysAsItIs(t *testing.T) {
	const name = "/dev/full" // which nobody misses, should it be the host's
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, shell(t, "chmod 640 "+name+"; echo x >/dev/null; head -c 3 /dev/zero | wc -c"), "3\n")
	after, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if after.Mode() != before.Mode() {
		t.Errorf("the mode of %s was %v and is %v", name, before.Mode(), after.Mode())
		_ = os.Chmod(name, before.Mode())
	}
}

// A file of the host that is the command's input can be read, and not opened once more. There is no input without one.
func TestInputIsReadOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "in")
	write(t, name, "said\n")
	for _, c := range []struct{ file, want string }{{name, "said\npipe\n"}, {"/dev/null", "pipe\n"}, {"", "pipe\n"}} {
		o := shell(t, "cat; echo written > /proc/self/fd/0 2>/dev/null; chmod 600 /proc/self/fd/0; ls /proc/self/fd/0/ 2>/dev/null; readlink /proc/self/fd/0 | grep -q ^pipe: && echo pipe")
		if c.file != "" {
			f, err := os.Open(c.file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			o.Stdin = f
		}
		wantOutput(t, o, c.want)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "said\n" {
		t.Errorf("the host's file says %q, %v", text, err)
	}
}

// What is written to nothing is not written to the host's device.
func TestOutputIsNoDeviceOfTheHost(t *testing.T) {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, file := range []io.Writer{nil, null} {
		o := shell(t, "readlink /proc/self/fd/2 | grep -q ^pipe: && readlink /proc/$$/fd/1 | grep -q ^pipe:")
		o.Stdout, o.Stderr = file, file
		if code, err := Run(t.Context(), o); err != nil || code != 0 {
			t.Errorf("code %d, %v", code, err)
		}
	}
}

// A directory is no input: all files of the host would be below it or above.
func TestInputIsNoDirectory(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	o := shell(t, "ls /proc/self/fd/0/..")
	o.Stdin = dir
	if code, err := Run(t.Context(), o); err == nil || code != codeNotMade || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestHostIsNotInTheMountTable(t *testing.T) {
	layer := t.TempDir()
	write(t, filepath.Join(layer, "f"), "")
	o := shell(t, "cat /proc/self/mountinfo", layer)
	_, table := run(t, o)
	for _, secret := range []string{layer, o.ScratchDir, filepath.Base(t.TempDir())} {
		if strings.Contains(table, secret) {
			t.Errorf("the mount table names %s:\n%s", secret, table)
		}
	}
	for line := range strings.Lines(table) {
		if strings.Contains(line, " shared:") {
			t.Errorf("a mount can reach the host: %s", line)
		}
	}
}

func TestHostname(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	o := shell(t, "hostname")
	wantOutput(t, o, host+"\n")
	o = shell(t, "hostname; grep -c lantern /etc/hosts")
	o.Hostname = "lantern"
	wantOutput(t, o, "lantern\n1\n")
	if now, _ := os.Hostname(); now != host {
		t.Errorf("the host is called %s now", now)
	}
}

func TestNameResolutionIsTheHosts(t *testing.T) {
	want, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Skip("this host has no resolv.conf")
	}
	wantOutput(t, shell(t, "cat /etc/resolv.conf"), string(want))
	// What the command makes of it stays inside.
	if code, _ := run(t, shell(t, "echo changed >/etc/resolv.conf && cat /etc/resolv.conf")); code != 0 {
		t.Error("the copy in the sandbox cannot be written")
	}
	if now, _ := os.ReadFile("/etc/resolv.conf"); !bytes.Equal(now, want) {
		t.Error("the host's resolv.conf has changed")
	}
}

func TestBinds(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "file"), "host\n")
	o := shell(t, `cat /data/file /etc/one; echo new >/data/new; echo x 2>/dev/null >/ro/x || echo refused; cat /ro/file`)
	o.Binds = []Bind{
		{Source: outside, Target: "/data"},
		{Source: outside, Target: "/ro", ReadOnly: true},
		{Source: filepath.Join(outside, "file"), Target: "/etc/one", ReadOnly: true},
	}
	wantOutput(t, o, "host\nhost\nrefused\nhost\n")
	if b, err := os.ReadFile(filepath.Join(outside, "new")); err != nil || string(b) != "new\n" {
		t.Errorf("the file written in the sandbox: %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); err == nil {
		t.Error("a read-only bind was written to")
	}
}

// What the sandbox itself mounts over the host's /tmp is not seen in a bind of it.
func TestBindOfBase(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "sconce-bind-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	write(t, filepath.Join(dir, "file"), "host\n")
	o := shell(t, "cat /host"+strings.TrimPrefix(dir, "/tmp")+"/file /all"+dir+"/file /own"+dir+"/file /tmp"+strings.TrimPrefix(dir, "/tmp")+"/file && ls -d /host/upper /all/tmp/upper 2>/dev/null")
	o.Binds = []Bind{{Source: "/tmp", Target: "/host"}, {Source: "/", Target: "/all", ReadOnly: true}, {Source: dir, Target: "/own" + dir}, {Source: "/tmp", Target: "/tmp", ReadOnly: true}}
	if code, got := run(t, o); code == 0 || got != strings.Repeat("host\n", 4) {
		t.Errorf("exit code %d, output %q", code, got)
	}
}

// A bind takes what is mounted below it along, and read-only holds for that too.
func TestReadOnlyBindOfMounts(t *testing.T) {
	o := shell(t, "touch /devices/shm/x 2>/dev/null || echo refused; (echo x >/devices/null) && echo null")
	o.Binds = []Bind{{Source: "/dev", Target: "/devices", ReadOnly: true}}
	wantOutput(t, o, "refused\nnull\n")
}

func TestReadOnlyRoot(t *testing.T) {
	o := shell(t, "for f in /x /bin/x /etc/passwd; do touch $f 2>/dev/null && echo $f; done; echo y >/scratch/x && cat /scratch/x; mount -o remount,rw / 2>/dev/null; touch /x 2>/dev/null; ls /scratch")
	o.ReadOnly, o.Tmpfs = true, []string{"/scratch"}
	code, got := run(t, o)
	if code != 0 || !strings.HasPrefix(got, "y\n") {
		t.Errorf("exit code %d, output %q", code, got)
	}
	wantEmpty(t, o.ScratchDir)
}

func TestLayersLieOverEachOther(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	for _, name := range []string{"both", "gone", "dir/gone", "opaque/gone", "kept"} {
		write(t, filepath.Join(low, name), "low\n")
	}
	write(t, filepath.Join(high, "both"), "high\n")
	write(t, filepath.Join(high, "opaque/new"), "high\n")
	if err := os.Mkdir(filepath.Join(high, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "dir/gone"} {
		if err := unix.Mknod(filepath.Join(high, name), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setxattr(filepath.Join(high, "opaque"), "user.overlay.opaque", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	o := shell(t, "cat both kept; ls -d gone dir/gone opaque/gone 2>/dev/null; ls opaque", low, high)
	wantOutput(t, o, "high\nlow\nnew\n")
	o = shell(t, "rm -r both kept opaque && mkdir opaque && ls opaque; ls -d both kept 2>/dev/null; echo done", low, high)
	wantOutput(t, o, "done\n")
	if b, err := os.ReadFile(filepath.Join(low, "kept")); err != nil || string(b) != "low\n" {
		t.Errorf("the layer has changed: %q, %v", b, err)
	}
}

func TestManyLayers(t *testing.T) {
	// Long names, with characters that mount options would have to quote: none of it may matter.
	parent := filepath.Join(t.TempDir(), strings.Repeat("long", 40)+",lowerdir=a:b\\c")
	for _, count := range []int{120, MaxLayers - 1} {
		var layers []string
		for i := range count {
			dir := filepath.Join(parent, fmt.Sprintf("layer-%032d", i))
			write(t, filepath.Join(dir, "top"), fmt.Sprintln(i))
			write(t, filepath.Join(dir, fmt.Sprint("of-", i)), "")
			layers = append(layers, dir)
		}
		o := shell(t, "cat top; ls -d of-* | wc -l", layers...)
		wantOutput(t, o, fmt.Sprintf("%d\n%d\n", count-1, count))
	}
	o := shell(t, "", slices.Repeat([]string{""}, MaxLayers)...)
	for i := range o.Layers {
		o.Layers[i] = fmt.Sprint(i)
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "501 layers") {
		t.Errorf("error %v, want one about 501 layers", err)
	}
}

// Images do repeat layers, empty ones above all.
func TestRepeatedLayer(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write(t, filepath.Join(a, "f"), "a\n")
	write(t, filepath.Join(b, "f"), "b\n")
	wantOutput(t, shell(t, "cat /f", a, b, a, a), "a\n")
}

// Whatever links an image plants, setting the sandbox up must not touch the host: outside stays as it was.
func TestHostileImage(t *testing.T) {
	outside := t.TempDir()
	climb := strings.Repeat("../", 30) + strings.TrimPrefix(outside, "/")
	for _, test := range []struct{ name, link, target string }{
		{"etc leads out", "etc", outside},
		{"etc climbs out", "etc", climb},
		{"resolv.conf leads out", "etc/resolv.conf", outside + "/resolv.conf"},
		{"resolv.conf climbs out", "etc/resolv.conf", climb + "/resolv.conf"},
		{"resolv.conf dangles", "etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"},
		{"resolv.conf by magic link", "etc/resolv.conf", "/proc/self/root/" + outside + "/resolv.conf"},
		{"resolv.conf is itself", "etc/resolv.conf", "resolv.conf"},
		{"proc leads out", "proc", outside},
		{"dev climbs out", "dev", climb},
		{"sys leads out", "sys", outside + "/sys"},
		{"tmp leads out", "tmp", outside + "/tmp"},
		{"bind leads out", "data", outside + "/data"},
		{"work climbs out", "work", climb + "/work"},
	} {
		t.Run(test.name, func(t *testing.T) {
			evil := t.TempDir()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(evil, test.link)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(test.target, filepath.Join(evil, test.link)); err != nil {
				t.Fatal(err)
			}
			o := shell(t, "echo x >/data/x && echo x >/etc/x && echo x >/tmp/x && echo x >/work/x && echo started", evil)
			data := t.TempDir()
			o.Binds = []Bind{{Source: data, Target: "/data"}}
			o.WorkDir = "/work"
			var out bytes.Buffer
			o.Stdout = &out
			code, err := Run(t.Context(), o)
			if err != nil || code != 0 || out.String() != "started\n" {
				t.Errorf("exit code %d, error %v, output %q", code, err, out.String())
			}
			wantEmpty(t, outside)
		})
	}
}

// A dangling link in a directory of the host that is bound writable is not the image's, and must survive.
func TestLinksOfTheHostAreNotReplaced(t *testing.T) {
	outside := t.TempDir()
	link := filepath.Join(outside, "link")
	if err := os.Symlink("/no/such/place", link); err != nil {
		t.Fatal(err)
	}
	o := shell(t, "true")
	o.Binds = []Bind{{Source: outside, Target: "/data"}, {Source: "/etc", Target: "/data/link"}}
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no error for a mount point that is a dangling link of the host")
	}
	if target, err := os.Readlink(link); err != nil || target != "/no/such/place" {
		t.Errorf("the link leads to %q now (%v)", target, err)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	// Each inner shell ends at once and leaves its sleep to init.
	script := `for i in 1 2 3 4 5; do sh -c 'sleep 0.1 &'; done
		for try in $(busybox seq 6000); do
			[ $(ps -o comm,stat | grep -c sleep) = 0 ] && echo clean && exit
			sleep 0.1
		done; ps`
	wantOutput(t, shell(t, script), "clean\n")
}

func TestNothingIsLeft(t *testing.T) {
	marker := fmt.Sprint("98765.", os.Getpid())
	o := shell(t, "mkdir -p /a/b && touch /a/b/c && busybox chmod 0 /a/b /a; sleep "+marker+" & busybox setsid sleep "+marker+" & echo started")
	wantOutput(t, o, "started\n")
	wantEmpty(t, o.ScratchDir)
	if pids := processesWith(t, marker); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

// The caller's mounts are the same afterwards. Others mount things on this machine meanwhile, so it has a copy of the
// mount table to itself.
func TestNoMountIsLeft(t *testing.T) {
	cmd := helperCommand(t, "private", shell(t, "mount -t tmpfs x /tmp; echo done"))
	inNamespaces(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "done\nmounts are the same\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// processesWith lists the processes on this host that have arg among their arguments.
func processesWith(t testing.TB, arg string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && slices.Contains(strings.Split(string(b), "\x00"), arg) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

func TestCancel(t *testing.T) {
	for _, test := range []struct {
		name, trap string
		want       int
	}{
		{"heeds SIGTERM", "trap 'echo told; exit 9' TERM", 9},
		{"ignores SIGTERM", "trap '' TERM", 128 + 9},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			o := shell(t, test.trap+"; echo ready; while :; do sleep 0.1; done")
			out := &notifyingWriter{told: make(chan struct{})}
			o.Stdout = out
			go func() {
				<-out.told
				cancel()
			}()
			code, err := Run(ctx, o)
			if code != test.want || !errors.Is(err, context.Canceled) {
				t.Errorf("exit code %d and error %v, want %d and %v", code, err, test.want, context.Canceled)
			}
			wantEmpty(t, o.ScratchDir)
		})
	}
}

// notifyingWriter closes told when the first bytes come.
type notifyingWriter struct {
	once sync.Once
	told chan struct{}
}

func (w *notifyingWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.told) })
	return len(p), nil
}

func TestGroup(t *testing.T) {
	o := shell(t, "while read line; do echo $$ $line; done; exit 4")
	o.ReadOnly, o.NoNetwork = true, true
	group, err := StartGroup(t.Context(), o, 3)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, p := range group {
		fmt.Fprintln(p.Stdin, "hello", i)
		var pid, n int
		if _, err := fmt.Fscanf(p.Stdout, "%d hello %d\n", &pid, &n); err != nil || n != i {
			t.Errorf("process %d answers %d, %v", i, n, err)
		}
		seen[fmt.Sprint(pid)] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d processes answered, want 3", len(seen))
	}
	for i, p := range group {
		p.Stdin.Close() // the others go on
		if code, err := p.Wait(); code != 4 || err != nil {
			t.Errorf("process %d ended with %d, %v", i, code, err)
		}
	}
}

func TestKill(t *testing.T) {
	p, err := Start(t.Context(), shell(t, "trap '' TERM INT; while :; do sleep 1; done"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if code, err := p.Wait(); code != 128+9 || err != nil {
		t.Errorf("ended with %d, %v", code, err)
	}
	wantEmpty(t, p.session.scratchParent())
}

func (s *session) scratchParent() string { return filepath.Dir(s.scratch) }

func TestNoNetwork(t *testing.T) {
	o := shell(t, "grep -c : /proc/net/dev; busybox ping -c1 -W5 127.0.0.1 >/dev/null && echo up")
	o.NoNetwork = true
	wantOutput(t, o, "1\nup\n")
}

func TestCheck(t *testing.T) {
	if err := Check(); err != nil {
		t.Error(err)
	}
}

func BenchmarkStart(b *testing.B) {
	for _, readOnly := range []bool{false, true} {
		b.Run(fmt.Sprint("readOnly=", readOnly), func(b *testing.B) {
			o := shell(b, "")
			o.Args, o.ReadOnly = []string{"true"}, readOnly
			for b.Loop() {
				if code, err := Run(b.Context(), o); code != 0 || err != nil {
					b.Fatal(code, err)
				}
			}
		})
	}
}
