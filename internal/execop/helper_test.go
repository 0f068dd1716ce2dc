package execop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

const (
	asUserEnv  = "SCONCE_TEST_AS_USER"
	helperEnv  = "SCONCE_TEST_HELPER"
	ordinaryID = 61234 // the user and group that the tests run as when root runs them; no account has that number
)

func TestMain(m *testing.M) {
	sandbox.Init()
	switch os.Getenv(helperEnv) {
	case "ordinary":
		becomeOrdinary()
	case "step":
		os.Exit(helperStep())
	}
	os.Exit(m.Run())
}

// becomeOrdinary gives up all rights and starts the tests again.
func becomeOrdinary() {
	os.Unsetenv(helperEnv)
	must(syscall.Setgroups(nil))
	must(syscall.Setgid(ordinaryID))
	must(syscall.Setuid(ordinaryID))
	must(syscall.Exec(os.Args[0], os.Args, os.Environ()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Every test runs as the user who runs the tests; when that is root, all of them run again as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("the tests of package sandbox run again as an ordinary user, with all that root emulation does at once")
	}
	if os.Getuid() != 0 || os.Getenv(asUserEnv) != "" {
		t.Skip("this is an ordinary user already")
	}
	dir, err := os.MkdirTemp("", "sconce-step-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(os.Chmod(dir, 0o755))
	must(os.Chown(dir, ordinaryID, ordinaryID))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "step.test")
	must(os.WriteFile(name, binary, 0o755))
	cmd := exec.Command(name, "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asUserEnv+"=1", "HOME="+dir, "TMPDIR="+dir, helperEnv+"=ordinary")
	out, err := cmd.CombinedOutput()
	t.Logf("as user %d:\n%s", ordinaryID, out)
	if err != nil {
		t.Fatal(err)
	}
}

// asRoot reports whether the tests can give files to others.
func asRoot() bool { return sandbox.Unpacked().Owners }

// bench is a store with an image of busybox, and what runs steps in it.
type bench struct {
	*Runner
	t      testing.TB
	on     []layer.Descriptor
	events *recorder
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return newBenchIn(t, t.TempDir())
}

// newBenchIn has its store in a directory.
func newBenchIn(t testing.TB, dir string) *bench {
	t.Helper()
	t.Cleanup(func() { store.RemoveAll(filepath.Join(dir, "store")) })
	st, err := store.Open(t.Context(), filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	b := &bench{t: t, Runner: &Runner{Store: st, Layer: layer.Options{Compression: layer.None}}, events: &recorder{}}
	b.on = []layer.Descriptor{b.layerOf(busyboxRoot(t))}
	return b
}

// layerOf makes a layer of a directory.
func (b *bench) layerOf(dir string) layer.Descriptor {
	b.t.Helper()
	d, err := layer.FromDir(b.t.Context(), b.Store, dir, layer.Options{Compression: layer.None})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// busyboxRoot makes a root file system with all programs of busybox, and some accounts.
func busyboxRoot(t testing.TB) string {
	t.Helper()
	busybox := tooltest.Path(t, "busybox")
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "busybox")
	for _, dir := range []string{"bin", "tmp", "root", "home/build"} {
		must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
	binary, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "bin/busybox"), string(binary))
	must(os.Chmod(filepath.Join(root, "bin/busybox"), 0o755))
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" {
			must(os.Symlink("busybox", filepath.Join(root, "bin", name)))
		}
	}
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nbuild:x:1000:100:Builder:/home/build:/bin/sh\n")
	write(t, filepath.Join(root, "etc/group"), "root:x:0:\nusers:x:100:\nwheel:x:10:build,root\nvideo:x:44:other,build\n")
	return root
}

// write makes a file and the directories above it.
func write(t testing.TB, name, content string) {
	t.Helper()
	must(os.MkdirAll(filepath.Dir(name), 0o755))
	must(os.WriteFile(name, []byte(content), 0o644))
}

// sh is a command that runs a script.
func sh(script string) Command { return Command{Args: []string{"/bin/sh", "-ec", script}} }

// run runs a step that must end well, and returns what it printed.
func (b *bench) run(c Command) (layer.Descriptor, string) {
	b.t.Helper()
	d, err := b.try(c)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.events.text())
	}
	return d, b.events.text()
}

func (b *bench) try(c Command) (layer.Descriptor, error) {
	b.t.Helper()
	b.events.reset()
	return b.Run(progress.With(b.t.Context(), b.events), "test", b.on, c)
}

// fail runs a step that must end badly.
func (b *bench) fail(c Command) *Failure {
	b.t.Helper()
	_, err := b.try(c)
	var f *Failure
	if !errors.As(err, &f) {
		b.t.Fatalf("error %v, no failure of the command\n%s", err, b.events.text())
	}
	return f
}

// entries lists a layer, a line for each entry.
func (b *bench) entries(d layer.Descriptor) []string {
	b.t.Helper()
	ix, err := layer.OpenIndex(b.t.Context(), b.Store, d)
	if err != nil {
		b.t.Fatal(err)
	}
	lines := []string{}
	for _, e := range ix.Entries {
		line := fmt.Sprintf("%s %o %d:%d", e.Path, e.Mode, e.UID, e.GID)
		if path.Base(e.Path) != e.Path && layer.WhitesOut(e.Path) != "" {
			line = e.Path
		}
		lines = append(lines, line)
	}
	return lines
}

func (b *bench) wantEntries(d layer.Descriptor, want ...string) {
	b.t.Helper()
	if got := b.entries(d); !slices.Equal(got, want) {
		b.t.Errorf("layer:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// content reads a file of the image with the layers on top.
func (b *bench) content(name string, more ...layer.Descriptor) string {
	b.t.Helper()
	tree, err := image.NewTree(b.t.Context(), b.Store, append(slices.Clone(b.on), more...))
	if err != nil {
		b.t.Fatal(err)
	}
	data, err := tree.ReadFile(name, 1<<20)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// wantNothingLeft checks that a step left nothing behind but what the store keeps.
func (b *bench) wantNothingLeft() {
	b.t.Helper()
	left, err := os.ReadDir(filepath.Join(b.Store.Dir(), "tmp-v1"))
	if err != nil || len(left) > 0 {
		b.t.Errorf("left in the store: %v, %v", left, err)
	}
}

// everything reads all files of the store, by name.
func (b *bench) everything() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(b.Store.Dir(), func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		all[name] = string(data)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

func wantNowhere(t testing.TB, secret string, places map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(places)) {
		if strings.Contains(places[name], secret) {
			t.Errorf("the secret is in %s", name)
		}
	}
}

// recorder keeps events.
type recorder struct {
	mu  sync.Mutex
	all []progress.Event
}

func (r *recorder) Emit(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

// text returns what was printed.
func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text strings.Builder
	for _, e := range r.all {
		if e.Kind == progress.Log {
			io.WriteString(&text, e.Text+"\n")
		}
	}
	return text.String()
}

// warnings returns what was warned of.
func (r *recorder) warnings() (texts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e.Kind == progress.Warning {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// longTime is a number of seconds that nobody waits for, and that nobody else has in a command line.
func longTime() string { return fmt.Sprintf("4321.%018d", rand.Int64N(1e18)) }

// processesWith counts the processes of this machine that have text in their command line.
func processesWith(text string) int {
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), text) {
			n++
		}
	}
	return n
}

// helperStep runs a step of a store until it is killed, for a test that kills it.
func helperStep() int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	st, err := store.Open(ctx, os.Getenv("SCONCE_TEST_STORE"))
	must(err)
	defer st.Close()
	_ = unix.Umask(0o022)
	d, err := layer.FromDir(ctx, st, os.Getenv("SCONCE_TEST_ROOT"), layer.Options{Compression: layer.None})
	must(err)
	r := &Runner{Store: st, Layer: layer.Options{Compression: layer.None}}
	_, err = r.Run(progress.With(ctx, printLog{}), "test", []layer.Descriptor{d}, sh(os.Getenv("SCONCE_TEST_SCRIPT")))
	fmt.Println(err)
	return 1
}

// printLog prints what commands print.
type printLog struct{}

func (printLog) Emit(e progress.Event) {
	if e.Kind == progress.Log {
		fmt.Println(e.Text)
	}
}

// lockedBuilder collects what another goroutine writes.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
