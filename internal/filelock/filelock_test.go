package filelock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the other process.
const holdEnv = "SCONCE_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdEnv); path != "" {
		l, err := Acquire(context.Background(), path, "makes x", nil)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("held\n")
		time.Sleep(time.Hour) // until it is killed
		l.Release()
	}
	os.Exit(m.Run())
}

func TestOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sqsh")
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				l, err := Acquire(t.Context(), path, "makes x", nil)
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				inside.Add(-1)
				l.Release()
			}
		})
	}
	all.Wait()
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// holdElsewhere has another process hold the lock of path.
func holdElsewhere(t *testing.T, path string) *os.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process
}

func TestLockOfAKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sqsh")
	holder := holdElsewhere(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	note := ""
	if l, err := Acquire(ctx, path, "makes x", func(said string, _ time.Duration) { note = said; cancel() }); !errors.Is(err, context.Canceled) {
		t.Fatalf("while another process holds it: %v, %v", l, err)
	}
	node, _ := os.Hostname()
	if want := fmt.Sprintf("waiting for process %d on %s, which makes x (%s); ", holder.Pid, node, filepath.Base(os.Args[0])); !strings.HasPrefix(note, want) {
		t.Errorf("note %q, want %q", note, want)
	}
	if err := holder.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = holder.Wait()
	l, err := Acquire(t.Context(), path, "makes x", nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

func TestByName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	l, err := tryByName(name, "makes x")
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	if again, err := tryByName(name, "makes x"); err != nil || again != nil {
		t.Fatal("taken twice", err)
	}
	l.Release()
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the file is left", err)
	}

	abandonedLock, err := tryByName(name, "makes x")
	if err != nil || abandonedLock == nil {
		t.Fatal(err)
	}
	defer abandonedLock.Release()
	old := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := tryByName(name, "makes x"); err != nil { // removes it
		t.Fatal(err)
	}
	fresh, err := tryByName(name, "makes x")
	if err != nil || fresh == nil {
		t.Fatal("an abandoned lock is not taken over", err)
	}
	fresh.Release()
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	if _, err := Acquire(t.Context(), filepath.Join(t.TempDir(), "missing", "x.sqsh"), "makes x", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A lock file that another user has made a moment ago, and whose mode is not set yet, is waited for; one that stays so is an error.
func TestLockFileInTheMaking(t *testing.T) {
	dir := t.TempDir()
	file := Path(filepath.Join(dir, "x.sqsh"))
	if err := errors.Join(os.WriteFile(file, nil, 0), os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holdEnv+"="+filepath.Join(dir, "x.sqsh"))
	if os.Getuid() == 0 { // to whom nothing is forbidden
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // it has mostly looked by then
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("the other process says %q, %v", line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()

	long := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(file, long, long); err != nil {
		t.Fatal(err)
	}
	if isNew(file) {
		t.Error("it is taken for a new one for ever")
	}
}
