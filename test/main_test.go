// Package test proves sconce from the outside: the real command, real packages, real registries, and other programs as
// judges.
//
// Each test works in a [place] of its own: a user, a home, a store and a directory. What many of them stand on, a
// bootstrapped base and a directory of wheels, is made once. `go test -short` leaves all of it out.
package test

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/store"
)

// workshop is the directory of this run, which every user may enter, with the programs under test in bin.
var workshop string

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		return
	}
	if os.Getenv(onceEnv) != "" {
		os.Exit(m.Run()) // nothing else is needed there
	}
	// Most of a test is waiting, for disks, servers and clocks.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	var err error
	// Not t.TempDir: ordinary users have no way into that.
	if workshop, err = os.MkdirTemp("", "sconce-e2e-"); err != nil {
		return 1, err
	}
	defer store.RemoveAll(workshop)
	if err := os.Chmod(workshop, 0o755); err != nil {
		return 1, err
	}
	if err := os.Mkdir(filepath.Join(workshop, "bin"), 0o755); err != nil {
		return 1, err
	}
	if err := compile(runtime.GOARCH, filepath.Join(workshop, "bin", "sconce")); err != nil {
		return 1, err
	}
	if err := copyUV(); err != nil {
		return 1, err
	}
	defer removeOrdinary()
	return m.Run(), nil
}

// compile builds the command for an architecture.
func compile(arch, out string, flags ...string) error {
	cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", out, "./cmd/sconce"})...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build sconce for %s: %w\n%s", arch, err, text)
	}
	return os.Chmod(out, 0o755)
}

// copyUV puts uv where ordinary users find it: it may be installed in somebody's home. Without uv, the tests that need it
// say so.
func copyUV() error {
	from, err := uvProgram()
	if err != nil {
		return nil
	}
	return copyFile(from, filepath.Join(workshop, "bin", "uv"))
}

func uvProgram() (string, error) {
	path, err := exec.LookPath("uv")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, st.Mode().Perm()|0o444)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// begin is the first line of every test.
func begin(t *testing.T) {
	t.Helper()
	t.Parallel()
}

// once makes something that several tests stand on. Without it a test is skipped where its maker was, and fails where that
// failed; both name the maker. Like t.Fatal, get is for the test's own goroutine.
type once[T any] struct {
	do    sync.Once
	maker testing.TB // the test that made it, or tried to
	made  bool
	value T
}

func (o *once[T]) get(t *testing.T, maker func(t *testing.T) T) T {
	t.Helper()
	o.do.Do(func() {
		o.maker = t
		o.value = maker(t)
		o.made = true
	})
	switch {
	case o.made:
	case o.maker.Skipped():
		t.Skipf("what this test is based on was not made, as %s was skipped", o.maker.Name())
	default:
		t.Fatalf("what this test is based on could not be made: %s says why", o.maker.Name())
	}
	return o.value
}
