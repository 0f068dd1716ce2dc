package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// What the helper does, and with which options, comes in its environment.
const (
	helperEnv  = "SCONCE_TEST_HELPER"
	optionsEnv = "SCONCE_TEST_OPTIONS"
	treeEnv    = "SCONCE_TEST_TREE" // a squashfs for Options.Tree
)

func helper(mode string) int {
	switch mode {
	case "run":
		return helperRun(context.Background())
	case "refuse":
		return helperRefuse()
	case "check":
		if err := Check(); err != nil {
			fmt.Printf("error: %v\nhint: %s\n", err, fault.HintOf(err))
			return 1
		}
		return 0
	case "overlay":
		return helperOverlay()
	case "private":
		return helperPrivate()
	case "mounts":
		return helperMounts()
	case "covered":
		return helperCovered()
	case "ordinary":
		return helperOrdinary()
	case "nofuse":
		return helperNoFUSE()
	case "walk":
		return helperWalk()
	case "spawn":
		return helperSpawn()
	case "nomemory":
		return helperNoMemory()
	case "join":
		return helperJoin()
	case "upperhere":
		return helperUpperHere()
	}
	return 99
}

// helperRun runs the options as sconce run does: with its own streams, passing on its own signals.
func helperRun(ctx context.Context) int {
	var o Options
	if err := json.Unmarshal([]byte(os.Getenv(optionsEnv)), &o); err != nil {
		panic(err)
	}
	o.Stdin, o.Stdout, o.Stderr, o.ForwardSignals = os.Stdin, os.Stdout, os.Stderr, true
	if name := os.Getenv(treeEnv); name != "" {
		tree, done, err := openSquashfs(name)
		if err != nil {
			panic(err)
		}
		defer done()
		o.Tree = tree
	}
	code, err := Run(ctx, o)
	if err != nil {
		fmt.Printf("error: %v\nhint: %s\n", err, fault.HintOf(err))
	}
	if errors.Is(err, ErrNoFUSE) {
		fmt.Println("no FUSE")
	}
	if o.Owners != nil {
		printRecords(o.Owners)
	}
	return code
}

func helperCommand(t *testing.T, mode string, o Options) *exec.Cmd {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testBinary(t))
	cmd.Env = append(os.Environ(), helperEnv+"="+mode, optionsEnv+"="+string(options))
	return cmd
}

// startHelper starts the helper and returns its output after the line "ready".
func startHelper(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the command never said that it is ready: %v", err)
		}
		if strings.TrimSpace(line) == "ready" {
			return r
		}
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
		o := shell(t, "trap 'echo got; exit 21' "+name+"; echo ready; while :; do sleep 0.1; done")
		cmd := helperCommand(t, "run", o)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, as in a batch job
		out := startHelper(t, cmd)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		if string(rest) != "got\n" || cmd.ProcessState.ExitCode() != 21 {
			t.Errorf("%s: output %q, exit code %d", name, rest, cmd.ProcessState.ExitCode())
		}
		wantEmpty(t, o.ScratchDir)
	}
}

func TestSignalWithoutHandlerEndsTheCommand(t *testing.T) {
	cmd := helperCommand(t, "run", shell(t, "echo ready; exec sleep 1000"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	startHelper(t, cmd)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+15 {
		t.Errorf("exit code %d", code)
	}
}

// SIGKILL cannot be handled: the kernel must take the sandbox down with its caller.
func TestNothingSurvivesTheCaller(t *testing.T) {
	marker := fmt.Sprint("87654.", os.Getpid())
	o := shell(t, "trap '' HUP TERM INT; busybox setsid sleep "+marker+" & echo ready; sleep "+marker)
	t.Cleanup(func() { store.RemoveAll(o.ScratchDir) }) // nobody is left to do it
	cmd := helperCommand(t, "run", o)
	startHelper(t, cmd)
	childtest.Eventually(t, "start of both processes", func() bool { return len(processesWith(t, marker)) == 2 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	childtest.Eventually(t, "end of all processes", func() bool { return len(processesWith(t, marker)) == 0 })
}

// dialogue is what is typed once something has appeared.
type dialogue struct{ seen, typed string }

// terminal runs the helper on a pseudo terminal made by script(1), holds the dialogue, and returns what appeared and the
// exit code.
func terminal(t *testing.T, o Options, steps ...dialogue) (string, int) {
	t.Helper()
	script := tooltest.Path(t, "script")
	inner := helperCommand(t, "run", o)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	// With exec no shell of script's stays between: dash would answer the key's signal by ending with it in the end.
	cmd := exec.CommandContext(ctx, script, "-qec", "exec "+inner.Path, "/dev/null")
	inner.Env = append(inner.Env, "SHELL=/bin/sh")
	cmd.Env = inner.Env
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all, fresh bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := pipe.Read(buf)
		all.Write(buf[:n])
		fresh.Write(buf[:n])
		if len(steps) > 0 && strings.Contains(fresh.String(), steps[0].seen) {
			fresh.Reset()
			io.WriteString(keys, steps[0].typed)
			steps = steps[1:]
		}
		if err != nil {
			break
		}
	}
	keys.Close()
	_ = cmd.Wait()
	return all.String(), cmd.ProcessState.ExitCode()
}

func TestTerminal(t *testing.T) {
	out, code := terminal(t, shell(t, "test -t 0 && test -t 1 && tty && echo ready && read line && echo \"<$line>\"; exit 6"), dialogue{"ready", "typed\n"})
	if !strings.Contains(out, "<typed>") || !strings.Contains(out, "/dev/") || code != 6 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
}

// Ctrl-C goes to the foreground group, which holds the command and its caller: the command must get it once, and the
// caller must outlive it.
func TestControlC(t *testing.T) {
	o := shell(t, "n=0; trap 'n=$((n+1)); echo got' INT; echo ready; until [ $n -gt 0 ]; do sleep 0.1; done; for i in 1 2 3 4 5; do sleep 0.1; done; echo total $n; exit 8")
	out, code := terminal(t, o, dialogue{"ready", "\x03"})
	if strings.Count(out, "got") != 1 || !strings.Contains(out, "total 1") || code != 8 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
	out, code = terminal(t, shell(t, "echo ready; exec sleep 1000"), dialogue{"ready", "\x03"})
	if code != 128+2 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
}

func TestInteractiveShell(t *testing.T) {
	o := shell(t, "")
	o.Args = []string{"sh", "-i"}
	o.Env = append(o.Env, "PS1=prompt> ")
	out, code := terminal(t, o,
		dialogue{"prompt> ", "sleep 1000 &\n"},
		dialogue{"prompt> ", "jobs; kill %1\n"},
		dialogue{"prompt> ", "sh -c 'echo wait-$((1+1)); exec sleep 1000'\n"},
		dialogue{"wait-2", "\x03"},
		dialogue{"prompt> ", "echo after-$((20+3))\n"},
		dialogue{"prompt> ", "exit 5\n"},
	)
	for _, want := range []string{"Running", "after-23"} {
		if !strings.Contains(out, want) {
			t.Errorf("terminal lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "job control turned off") || code != 5 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
}

// inNamespaces gives the helper a mount namespace of its own; an ordinary user needs a user namespace for that.
func inNamespaces(cmd *exec.Cmd) {
	if ownsFiles() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		return
	}
	inUserNamespace(cmd)
}

// inUserNamespace makes the helper root of a user and mount namespace of its own.
func inUserNamespace(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
}

// A user namespace has a limit of its own, so a host that refuses can be made anywhere.
func TestRefusedUserNamespace(t *testing.T) {
	cmd := helperCommand(t, "refuse", Options{})
	inUserNamespace(cmd)
	out, _ := cmd.CombinedOutput()
	got := string(out)
	for _, want := range []string{
		"error: no user namespace may be made on this host (user.max_user_namespaces = 0)",
		"hint: an administrator can allow them: sysctl -w user.max_user_namespaces=",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("output %q lacks %q", got, want)
		}
	}
}

// helperRefuse forbids user namespaces below this one, then goes on without capabilities, as an ordinary user would.
func helperRefuse() int {
	runtime.LockOSThread()
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		panic(err)
	}
	return withoutCapabilities("check")
}

// withoutCapabilities does what mode says in a process that has no capabilities but the one without which user 0 cannot be
// mapped into a user namespace. The calling thread must be locked.
func withoutCapabilities(mode string) int {
	for c := range unix.CAP_LAST_CAP + 1 {
		if c != unix.CAP_SETFCAP {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+mode)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return 1
	}
	return 0
}

// An overlay cannot have its upper layer on another overlay, nor on most network file systems.
func TestScratchThatCannotHoldAnUpperLayer(t *testing.T) {
	o := shell(t, "echo kept >/tmp/x && cat /tmp/x")
	cmd := helperCommand(t, "overlay", o)
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir())
	inUserNamespace(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "kept\n") || !strings.Contains(string(out), "(overlay) cannot hold the upper layer") {
		t.Errorf("%v: %s", err, out)
	}
}

// helperOverlay mounts an overlay and runs with scratch in it.
func helperOverlay() int {
	dir, err := os.MkdirTemp("", "overlay")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"l", "u", "w", "m"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			panic(err)
		}
	}
	data := fmt.Sprintf("lowerdir=%s/l,upperdir=%s/u,workdir=%s/w,userxattr", dir, dir, dir)
	if err := unix.Mount("overlay", filepath.Join(dir, "m"), "overlay", 0, data); err != nil {
		panic(err)
	}
	options := strings.ReplaceAll(os.Getenv(optionsEnv), `"ScratchDir":"`, fmt.Sprintf(`"ScratchDir":"%s/m","X":"`, dir))
	os.Setenv(optionsEnv, options)
	return helperRun(progress.With(context.Background(), printWarnings{}))
}

type printWarnings struct{}

func (printWarnings) Emit(e progress.Event) {
	if e.Kind == progress.Warning {
		fmt.Println(e.Text)
	}
}

// helperCovered covers a part of /proc, as container runtimes do, and runs without rights in that mount namespace.
func helperCovered() int {
	runtime.LockOSThread()
	if err := unix.Mount("/dev/null", "/proc/meminfo", "", unix.MS_BIND, ""); err != nil {
		panic(err)
	}
	return withoutCapabilities("run")
}

// helperPrivate separates this mount namespace from the host's and compares mounts as the user who runs the tests would.
func helperPrivate() int {
	runtime.LockOSThread()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	if ownsFiles() {
		return helperMounts()
	}
	return withoutCapabilities("mounts")
}

// helperMounts runs the options and tells whether this process's mounts are the same afterwards.
func helperMounts() int {
	before := mountTable()
	code := helperRun(context.Background())
	if after := mountTable(); after != before {
		fmt.Printf("mounts before:\n%s\nafter:\n%s\n", before, after)
		return 1
	}
	fmt.Println("mounts are the same")
	return code
}

func mountTable() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	return string(b)
}
