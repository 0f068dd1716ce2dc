package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the process that is killed: it runs the script in the variable and waits.
func TestMain(m *testing.M) {
	script := os.Getenv("SCONCE_TEST_CHILD")
	if script == "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout = os.Stdout
	var err error
	if os.Getenv("SCONCE_TEST_GROUP") != "" {
		err = Group(cmd, syscall.SIGINT)
	} else {
		err = Run(cmd)
	}
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// parent starts a process that runs a script, and returns it and the process ids that the script prints.
func parent(t *testing.T, script string, pids int, env ...string) (*exec.Cmd, []int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "SCONCE_TEST_CHILD="+script)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var found []int
	lines := bufio.NewScanner(out)
	for len(found) < pids && lines.Scan() {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	if len(found) < pids {
		t.Fatalf("the script printed %d process ids, want %d", len(found), pids)
	}
	return cmd, found
}

// wantGone waits until none of the processes runs. One that nobody waited for yet counts as gone.
func wantGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		for range 60_000 {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			if errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ") {
				pid = 0
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Errorf("process %d goes on after its parent was killed", pid)
		}
	}
}

func TestProgramEndsWithItsParent(t *testing.T) {
	cmd, pids := parent(t, `echo $$; exec sleep 1000`, 1)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	wantGone(t, pids)
}

func TestGroupEndsWithItsParent(t *testing.T) {
	cmd, pids := parent(t, `sleep 1000 & echo $!; ( trap "" INT TERM; sleep 1000 ) & echo $!; echo $$; wait`, 3, "SCONCE_TEST_GROUP=1")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	wantGone(t, pids)
}

// A program of a group that would ask at the terminal fails, and is not stopped as one in the background.
func TestGroupHasNoTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	near, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	for group, want := range map[string]string{"": "there is one\n", "1": "there is none\n"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SCONCE_TEST_GROUP="+group, `SCONCE_TEST_CHILD=if true < /dev/tty; then echo there is one; else echo there is none; fi`)
		cmd.Stdin = near
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if out, err := cmd.Output(); err != nil || string(out) != want {
			t.Errorf("group %q: %q, %v", group, out, err)
		}
	}
}

// What a program of a group leaves running ends with it, while its parent goes on.
func TestGroupLeavesNothing(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", `sleep 1000 > /dev/null & echo $!`)
	var out strings.Builder
	cmd.Stdout = &out
	if err := Group(cmd, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	wantGone(t, []int{pid})
}

// The program of a group gets the signal, and its code comes back as if it had been run alone.
func TestGroupIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `trap "exit 7" INT; echo ready; while :; do sleep 0.05; done`)
	cmd.WaitDelay = 30 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	go func() {
		_, _ = bufio.NewReader(r).ReadString('\n')
		cancel()
	}()
	err = Group(cmd, syscall.SIGINT)
	w.Close()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("error %v, want exit status 7", err)
	}
}

func TestOutput(t *testing.T) {
	out, err := Output(exec.Command("/bin/echo", "hello"))
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
}
