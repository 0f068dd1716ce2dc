package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// held makes a sandbox of busybox in which /out is the returned directory. join runs a script in it.
func held(t *testing.T) (h *Held, out string, join func(script string) (int, error)) {
	t.Helper()
	out = t.TempDir()
	o := shell(t, "")
	o.ScratchDir, o.WorkDir, o.Binds = "", "/work", []Bind{{Source: out, Target: "/out"}}
	h, err := Hold(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return h, out, func(script string) (int, error) {
		return Join(t.Context(), JoinOptions{
			Spaces: h.Spaces(), UserNS: h.UserNS(), Args: []string{"sh", "-c", script}, Env: []string{"PATH=/none:/bin", "WHO=" + t.Name()}, WorkDir: "/work",
		})
	}
}

// Commands that join a sandbox see each other's files and processes and the memory of this machine, each with its own exit code.
func TestJoin(t *testing.T) {
	h, out, join := held(t)
	defer h.Close()
	shm := filepath.Join("/dev/shm", fmt.Sprintf("sconce-test-%d-%d", os.Getpid(), os.Getuid()))
	write(t, shm, "shared")
	defer os.Remove(shm)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			code, err := join(fmt.Sprintf(`
				touch /here-%[1]d
				while [ "$(ls / | grep -c ^here-)" -lt 6 ]; do :; done
				echo "$(pwd) $WHO $(id -u) $(cat %[2]s) $(readlink /proc/self/ns/pid)" > /out/%[1]d
				exit %[1]d`, i, shm))
			if err != nil || code != i {
				t.Errorf("command %d ended with code %d, %v", i, code, err)
			}
		})
	}
	all.Wait()
	pid, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("/work %s 0 shared %s\n", t.Name(), pid)
	for i := range 6 {
		if got, err := os.ReadFile(filepath.Join(out, fmt.Sprint(i))); err != nil || string(got) != want {
			t.Errorf("command %d says %q, %v, want %q", i, got, err, want)
		}
	}
	if code, err := join("kill -TERM $$"); err != nil || code != 128+int(unix.SIGTERM) {
		t.Errorf("a command that a signal ended: code %d, %v", code, err)
	}
}

// A command that joins can gain no privileges, and cannot reach the process that holds the sandbox.
func TestJoinedHasNoRights(t *testing.T) {
	h, out, join := held(t)
	defer h.Close()
	first := h.session.cmd.Process.Pid
	code, err := join(fmt.Sprintf(`{ grep -E '^(NoNewPrivs|CapBnd)' /proc/self/status; ls -l /proc/self/fd | wc -l; readlink /proc/%d/exe || echo refused; umask; } > /out/said`, first))
	said, readErr := os.ReadFile(filepath.Join(out, "said"))
	if err := errors.Join(err, readErr); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	fields := strings.Fields(string(said))
	if len(fields) != 7 || fields[1] == "000001ffffffffff" || fields[3] != "1" || fields[5] != "refused" || fields[6] != "0022" {
		t.Errorf("the command says %q", said)
	}
	if fields[4] != "5" { // a line for all, the streams, and the directory itself
		t.Errorf("ls counts %s lines of file descriptors", fields[4])
	}
}

func TestJoinedDoesNotStart(t *testing.T) {
	h, _, _ := held(t)
	defer h.Close()
	for _, c := range []struct {
		args []string
		dir  string
		code int
		want string
	}{
		{[]string{"nothing"}, "/", 127, `command "nothing" is not in the image`},
		{[]string{"/bin/nothing"}, "/", 127, `command "/bin/nothing" is not in the image`},
		{[]string{"/etc/passwd"}, "/", 126, "command /etc/passwd is not executable"},
		{[]string{"etc"}, "/", 126, "command /etc is not executable"},
		{[]string{"true"}, "/nowhere", 125, "change to the working directory /nowhere"},
		{nil, "/", 125, "no command to run"},
	} {
		code, err := Join(t.Context(), JoinOptions{Spaces: h.Spaces(), UserNS: h.UserNS(), Args: c.args, Env: []string{"PATH=/:/bin"}, WorkDir: c.dir})
		if err == nil || code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q ended with code %d, %v; want %d and %q", c.args, code, err, c.code, c.want)
		}
	}
}

// What commands leave running ends with the sandbox.
func TestHeldEndsWhatIsLeft(t *testing.T) {
	h, out, join := held(t)
	if code, err := join(`sleep 1000 & echo $! > /out/pid; (while :; do sleep 1000; done) & true`); err != nil || code != 0 {
		t.Errorf("code %d, %v", code, err)
	}
	text, err := os.ReadFile(filepath.Join(out, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.Readlink(fmt.Sprintf("/proc/%s/ns/mnt", strings.TrimSpace(string(text))))
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	for end := time.Now().Add(10 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for _, pid := range processes() {
			if at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil && at == mounts {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes are left", left)
		}
	}
}

// A command that makes name spaces of its own ends with the sandbox as well.
func TestHeldEndsWhatHidesInNamespaces(t *testing.T) {
	h, out, join := held(t)
	code, err := join(`mkfifo /ready; (busybox unshare -U -m sh -c 'readlink /proc/self/ns/mnt > /out/space; echo > /ready; exec sleep 1000' || echo > /ready) & read line < /ready`)
	if err != nil || code != 0 {
		t.Errorf("code %d, %v", code, err)
	}
	text, err := os.ReadFile(filepath.Join(out, "space"))
	h.Close()
	if err != nil {
		return // it could not make any
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for _, pid := range processes() {
			if at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil && at == strings.TrimSpace(string(text)) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes are left", left)
		}
	}
}

// Nothing is run where there is no sandbox: it would be a program of the host.
func TestJoinNeedsMounts(t *testing.T) {
	own, err := os.Open("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, spaces := range [][]*os.File{nil, {own}} {
		if code, err := Join(t.Context(), JoinOptions{Spaces: spaces, Args: []string{"true"}}); err == nil || code != 125 || !strings.Contains(err.Error(), "no mounts of its own") {
			t.Errorf("code %d, %v", code, err)
		}
	}
}

// The memory that tasks share with the host holds no devices for root.
func TestSharedMemoryHasNoDevices(t *testing.T) {
	if !ownsFiles() {
		t.Skip("an ordinary user makes no devices")
	}
	h, out, join := held(t)
	defer h.Close()
	if code, err := join("grep ' /dev/shm ' /proc/self/mounts | grep -c nodev > /out/said; true"); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	if said, err := os.ReadFile(filepath.Join(out, "said")); err != nil || string(said) != "1\n" {
		t.Errorf("lines with nodev: %q, %v", said, err)
	}
}
