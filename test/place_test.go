package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// account is a user of this machine; nil is the one who runs the tests.
type account struct {
	name     string
	uid, gid uint32
}

var ordinaryUser struct {
	sync.Mutex
	account *account
}

// ordinary returns a user without any rights, made for this run: a system user, which gets no subordinate ids. It is nil
// when the tests are run by an ordinary user anyway.
func ordinary(t testing.TB) *account {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	ordinaryUser.Lock()
	defer ordinaryUser.Unlock()
	if ordinaryUser.account != nil {
		return ordinaryUser.account
	}
	name := fmt.Sprintf("sconce-e2e-%d", os.Getpid())
	if out, err := exec.Command(tooltest.Path(t, "useradd"), "--system", "--no-create-home", "--user-group", name).CombinedOutput(); err != nil {
		t.Fatalf("useradd: %v\n%s", err, out)
	}
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		t.Fatal(err)
	}
	ordinaryUser.account = &account{name, uint32(uid), uint32(gid)}
	return ordinaryUser.account
}

func removeOrdinary() {
	if a := ordinaryUser.account; a != nil {
		_ = exec.Command("userdel", a.name).Run() // it owns nothing by now
	}
}

// needRoot leaves out what only root can set up. CI runs as root.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can set this up")
	}
}

// place is where sconce runs, and as whom.
type place struct {
	t       testing.TB
	dir     string // belongs to the user, as does everything below
	store   string
	user    *account
	umask   string
	env     []string // beside the usual, and before it
	program []string // the command, after programs that it runs under
}

// newPlace makes an empty place, which goes with the test.
func newPlace(t testing.TB, u *account) *place {
	t.Helper()
	dir, err := os.MkdirTemp(workshop, "place-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(dir) })
	return placeIn(t, dir, u)
}

func placeIn(t testing.TB, dir string, u *account) *place {
	t.Helper()
	p := &place{
		t: t, dir: dir, store: filepath.Join(dir, "store"), user: u, umask: "022",
		program: []string{filepath.Join(workshop, "bin", "sconce")},
	}
	for _, d := range []string{p.dir, p.home(), p.tmp()} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	p.own()
	return p
}

func (p *place) home() string { return filepath.Join(p.dir, "home") }
func (p *place) tmp() string  { return filepath.Join(p.dir, "tmp") }

// path returns where something in the place is.
func (p *place) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

// own gives everything in the place to its user.
func (p *place) own() {
	p.t.Helper()
	if p.user == nil {
		return
	}
	err := filepath.WalkDir(p.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(p.user.uid), int(p.user.gid))
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// write puts a file into the place.
func (p *place) write(name, text string) {
	p.t.Helper()
	path := p.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		p.t.Fatal(err)
	}
	p.own()
}

// take copies the files of a directory, such as a recipe with its lock, into the place.
func (p *place) take(from, name string) {
	p.t.Helper()
	if err := os.CopyFS(p.path(name), os.DirFS(from)); err != nil {
		p.t.Fatal(err)
	}
	p.own()
}

// kept are the variables of the tests' environment that say how to reach the network. All others stay outside: neither
// the machine nor its user have a say in what a test finds.
var kept = []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}

func (p *place) environ() []string {
	env := []string{
		"PATH=" + filepath.Join(workshop, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + p.home(),
		"TMPDIR=" + p.tmp(),
		"SCONCE_STORE=" + p.store,
		"CONTAINERS_REGISTRIES_CONF=" + filepath.Join(p.home(), "registries.conf"),
		"UV_NO_CONFIG=1",
		"SCONCE_ALLOW_PATHS=/", // recipes name what tests make once, outside of any place
	}
	for _, name := range kept {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, p.env...)
}

// result is what a command left.
type result struct {
	args           []string
	code           int
	stdout, stderr string
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("sconce %s\nended with code %d after %v\nstdout:\n%s\nstderr:\n%s", strings.Join(r.args, " "), r.code, r.took, r.stdout, r.stderr)
}

// command prepares sconce to be started. The shell in front sets the umask and becomes sconce.
func (p *place) command(args ...string) *exec.Cmd {
	return p.commandContext(p.t.Context(), args...)
}

func (p *place) commandContext(ctx context.Context, args ...string) *exec.Cmd {
	line := slices.Concat([]string{"-c", `umask "$0"; exec "$@"`, p.umask}, p.program, args)
	cmd := exec.CommandContext(ctx, "/bin/sh", line...)
	cmd.Dir = p.dir
	cmd.Env = p.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // of its own, so that what it starts is found
	if p.user != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.user.uid, Gid: p.user.gid}
	}
	cmd.WaitDelay = 10 * time.Minute
	return cmd
}

// sconce runs the command to its end.
func (p *place) sconce(args ...string) result {
	p.t.Helper()
	cmd := p.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	r := result{args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), time.Since(began)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("%v\n%v", err, r)
	}
	return r
}

// must runs the command, which has to succeed.
func (p *place) must(args ...string) result {
	p.t.Helper()
	r := p.sconce(args...)
	if r.code != 0 {
		p.t.Fatal(r)
	}
	return r
}

// fails runs the command, which has to end with the code, say each of the words on stderr, and not panic.
func (p *place) fails(code int, words []string, args ...string) result {
	p.t.Helper()
	r := p.sconce(args...)
	if r.code != code {
		p.t.Fatalf("exit code %d, want %d: %v", r.code, code, r)
	}
	for _, w := range append(words, "error: ") {
		if !strings.Contains(r.stderr, w) {
			p.t.Errorf("the error lacks %q: %v", w, r)
		}
	}
	if strings.Contains(r.stderr, "goroutine ") {
		p.t.Errorf("panic: %v", r)
	}
	return r
}

var digestLine = regexp.MustCompile(`(?m)^sha256:[0-9a-f]{64}$`)

// build builds a recipe and returns the digest that is printed.
func (p *place) build(args ...string) string {
	p.t.Helper()
	return digestOf(p.t, p.must(append([]string{"build"}, args...)...))
}

func digestOf(t testing.TB, r result) string {
	t.Helper()
	digest := digestLine.FindString(r.stdout)
	if digest == "" {
		t.Fatalf("no digest was printed: %v", r)
	}
	return digest
}

// wantSound fails unless every object in the store has the right hash.
func (p *place) wantSound() {
	p.t.Helper()
	for _, command := range []string{"verify", "info"} {
		if r := p.sconce("cache", command); r.code != 0 {
			p.t.Errorf("the store is not sound: %v", r)
		}
	}
}

// wantTidy fails when a command that came to its end left temporary files.
func (p *place) wantTidy() {
	p.t.Helper()
	for _, dir := range []string{filepath.Join(p.store, "tmp-v1"), p.tmp()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Error(err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "partial-") { // what was downloaded so far is kept
				p.t.Errorf("%s was left in %s", e.Name(), dir)
			}
		}
	}
}
