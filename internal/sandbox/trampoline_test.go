package sandbox

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/users"
)

//go:embed testdata/reach.c
var reachSource string

// reachEnv are the numbers by which reach knows the host's files.
const reachEnv = "SCONCE_TEST_REACH"

// helperSpawn is what this program does where a command has managed to execute it: it has the image's own program as a child, which looks
// at its parent.
func helperSpawn() int {
	fmt.Println("this program runs in the image")
	cmd := exec.Command("/bin/reach", strings.Fields(os.Getenv(reachEnv))...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if cmd.Run() != nil {
		return 1
	}
	return 0
}

// numbersOfHost are the device and inode numbers of files of the host that nothing in an image may reach: this program, the root and a directory.
func numbersOfHost(t *testing.T) (numbers []string) {
	t.Helper()
	for _, name := range []string{testBinary(t), "/", "."} {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, strconv.FormatUint(st.Dev, 10), strconv.FormatUint(st.Ino, 10))
	}
	return numbers
}

// reachLayer has the program that looks for the host's files, and a script for each path that might lead to this program.
func reachLayer(t *testing.T) (layer string, ways []string) {
	t.Helper()
	layer = compile(t, "reach", reachSource)
	ways = []string{"/bin/reach"}
	for i, link := range []string{"/proc/self/exe", "/proc/1/exe", fmt.Sprintf("/proc/%d/exe", os.Getpid())} {
		script := fmt.Sprintf("/bin/script%d", i)
		if err := os.WriteFile(filepath.Join(layer, script), []byte("#!"+link+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ways = append(ways, link, script)
	}
	return layer, ways
}

// sameAsBefore returns a function that fails the test when this program's file has changed meanwhile.
func sameAsBefore(t *testing.T) func() {
	t.Helper()
	var before unix.Stat_t
	if err := unix.Stat(testBinary(t), &before); err != nil {
		t.Fatal(err)
	}
	return func() {
		var after unix.Stat_t
		if err := unix.Stat(testBinary(t), &after); err != nil {
			t.Fatal(err)
		}
		if after.Ctim != before.Ctim || after.Mode != before.Mode {
			t.Errorf("the host's program was changed at %v (before: %v), its mode is %o (before: %o)", after.Ctim, before.Ctim, after.Mode, before.Mode)
		}
	}
}

// No command, however it is called, is this program, and none finds an open file of the host in a process that it can see: a file that is
// found so can be changed, and is what everybody runs who runs sconce.
func TestHostIsOutOfReach(t *testing.T) {
	layer, ways := reachLayer(t)
	numbers := numbersOfHost(t)
	defer sameAsBefore(t)()
	steps := []struct {
		name string
		of   func(Options) Options
	}{
		{"what a user runs", func(o Options) Options { return o }},
		{"as oneself", func(o Options) Options {
			o.Self = me()
			return o
		}},
		{"a step", func(o Options) Options {
			o.ScratchDir, o.UpperDir, o.Owners, o.NoMounts = "", t.TempDir(), &rootemu.Owners{}, true
			t.Cleanup(func() { store.RemoveAll(o.UpperDir) })
			return o
		}},
	}
	for _, step := range steps {
		for _, way := range ways {
			o := shell(t, "", layer)
			o.Args = []string{way}
			if way == "/bin/reach" {
				o.Args = append(o.Args, numbers...)
			}
			o.Env = append(o.Env, helperEnv+"=spawn", reachEnv+"="+strings.Join(numbers, " "))
			var out bytes.Buffer
			o = step.of(o)
			o.Stdout = &out
			code, err := Run(t.Context(), o)
			wantOutOfReach(t, step.name, way, out.String(), fmt.Sprintf("code %d, %v", code, err))
		}
	}
}

func me() *users.Account {
	return &users.Account{UID: os.Geteuid(), GID: os.Getegid(), Name: "me", Group: "us", Home: "/home/me"}
}

func wantOutOfReach(t *testing.T, what, way, out, end string) {
	t.Helper()
	want := ""
	if way == "/bin/reach" {
		want = "nothing reached\n"
	}
	if out != want {
		t.Errorf("%s, %s: output %q, want %q (%s)", what, way, out, want, end)
	}
}

// helperJoin runs the options as a command that joins a sandbox of the same options.
func helperJoin() int {
	var o Options
	if err := json.Unmarshal([]byte(os.Getenv(optionsEnv)), &o); err != nil {
		panic(err)
	}
	h, err := Hold(context.Background(), o)
	if err != nil {
		panic(err)
	}
	defer h.Close()
	code, err := Join(context.Background(), JoinOptions{Spaces: h.Spaces(), UserNS: h.UserNS(), Args: o.Args, Env: o.Env, WorkDir: o.WorkDir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// The same of a task of a job step, which sees all processes of the machine; among them are those that hold its sandbox.
func TestHostIsOutOfReachOfTasks(t *testing.T) {
	layer, ways := reachLayer(t)
	numbers := numbersOfHost(t)
	defer sameAsBefore(t)()
	join := func(what, way string, self *users.Account) {
		o := shell(t, "", layer)
		o.ScratchDir, o.Self, o.Args = "", self, []string{way}
		if way == "/bin/reach" {
			o.Args = append(o.Args, numbers...)
		}
		o.Env = append(o.Env, helperEnv+"=spawn", reachEnv+"="+strings.Join(numbers, " "))
		cmd := helperCommand(t, "join", o)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		wantOutOfReach(t, what, way, string(out), fmt.Sprintf("%v, %s", err, stderr.String()))
	}
	for _, way := range ways {
		join("a task", way, nil)
		join("a task as oneself", way, me())
	}
}

// A working directory is looked for in the image, where a process that joins it has more rights than its command.
func TestWorkDirIsInTheImage(t *testing.T) {
	for _, dir := range []string{"/proc/1/root", "/proc/self/fd/3", fmt.Sprintf("/proc/%d/root", os.Getpid()), fmt.Sprintf("/proc/%d/cwd", os.Getpid())} {
		o := shell(t, "pwd")
		o.WorkDir = dir
		if code, err := Run(t.Context(), o); err == nil {
			t.Errorf("run in %s: exit code %d, want an error", dir, code)
		}
		o.ScratchDir, o.WorkDir = "", "/"
		h, err := Hold(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		code, err := Join(t.Context(), JoinOptions{Spaces: h.Spaces(), UserNS: h.UserNS(), Args: o.Args, Env: o.Env, WorkDir: dir})
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("join in %s: exit code %d, %v, want an error that names it", dir, code, err)
		}
		h.Close()
	}
}

// helperNoMemory runs the options where no program is executed from memory.
func helperNoMemory() int {
	if err := os.WriteFile(memoryNoExec, []byte("2"), 0); err != nil {
		panic(err)
	}
	return helperRun(context.Background())
}

// memoryNoExec is a setting of a pid name space since Linux 6.3.
const memoryNoExec = "/proc/sys/vm/memfd_noexec"

// Where no program is executed from memory, a file without a name does.
func TestTrampolineInFile(t *testing.T) {
	if _, err := os.Stat(memoryNoExec); err != nil || !ownsFiles() {
		t.Skip("only root of Linux 6.3 can forbid it")
	}
	cmd := helperCommand(t, "nomemory", shell(t, "echo runs"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "runs\n" {
		t.Errorf("%v: %s", err, out)
	}
}
