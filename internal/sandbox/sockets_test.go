package sandbox

import (
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

//go:embed testdata/abstract.c
var abstractSource string

// scopesSockets reports whether [scopeSockets] has an effect here.
func scopesSockets() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && version >= 6
}

// Nothing that runs in an image reaches a socket of the host's abstract name space, and it can have its own. Tasks of a job step meet there.
func TestAbstractSockets(t *testing.T) {
	if !scopesSockets() {
		t.Skip("this kernel cannot keep anyone from abstract sockets: Linux 6.12 can")
	}
	name := fmt.Sprintf("sconce-test-%d", os.Getpid())
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	layer := compile(t, "abstract", abstractSource)
	step := func(script string) Options { return stepOf(t, script, layer) }
	wantOutput(t, step("abstract "+name+" || true"), "Operation not permitted\n")
	wantOutput(t, step("abstract own-"+name+" listen"), "connected\n")
	wantOutput(t, shell(t, "abstract "+name+" || true", layer), "Operation not permitted\n")
	wantOutput(t, shell(t, "abstract own-"+name+" listen", layer), "connected\n")

	o := shell(t, "", layer)
	o.ScratchDir = ""
	if code, err := holdAndJoin(t, o, "abstract "+name+" > /dev/null"); err != nil || code != 0 {
		t.Errorf("a task: code %d, %v, want a connection", code, err)
	}
}

// compile makes a layer that has a program of C, linked statically, under its name in /bin.
func compile(t *testing.T, name, source string) string {
	t.Helper()
	layer := t.TempDir()
	program := filepath.Join(layer, "bin", name)
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tooltest.WriteProgram(program, compiled(t, source)); err != nil {
		t.Fatal(err)
	}
	return layer
}

// programs are those that were compiled, by their source: most tests take less time than the linker.
var programs = make(map[string][]byte)

func compiled(t *testing.T, source string) []byte {
	t.Helper()
	if program, done := programs[source]; done {
		return program
	}
	to := filepath.Join(t.TempDir(), "program")
	compiler := exec.Command(tooltest.Path(t, "gcc"), "-O1", "-static", "-pthread", "-o", to, "-x", "c", "-")
	compiler.Stdin = strings.NewReader(source)
	if out, err := compiler.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	programs[source] = program
	return program
}

// stepOf makes a script what a step is.
func stepOf(t *testing.T, script, layer string) Options {
	t.Helper()
	o := shell(t, script, layer)
	o.ScratchDir, o.UpperDir, o.Owners = "", t.TempDir(), &rootemu.Owners{}
	t.Cleanup(func() { store.RemoveAll(o.UpperDir) })
	return o
}
