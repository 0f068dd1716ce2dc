package ospackages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// childVariable makes the test binary a process that resolves and installs what the file it names says, into a store of its own,
// and prints what came of it: run as another user, it shows that the user makes no difference.
const childVariable = "SCONCE_SYSTEM_CHILD"

func TestMain(m *testing.M) {
	sandbox.Init()
	code := 0
	if file := os.Getenv(childVariable); file != "" {
		if err := installChild(file); err != nil {
			fmt.Fprintln(os.Stderr, err, fault.HintOf(err))
			code = 1
		}
	} else {
		code = m.Run()
		for _, w := range sharedWorlds {
			w.st.Close()
		}
		store.RemoveAll(sharedDir)
	}
	os.Exit(code)
}

// job is what a child does.
type job struct {
	Base     string // tar
	Packages []string
}

// outcome is what a child prints.
type outcome struct {
	Pinned *Pinned
	Layer  layer.Descriptor
}

func installChild(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sconce-child-*")
	if err != nil {
		return err
	}
	defer store.RemoveAll(dir)
	w, err := openWorld(context.Background(), dir, j.Base)
	if err != nil {
		return err
	}
	defer w.st.Close()
	p, err := w.resolve(context.Background(), j.Packages...)
	if err != nil {
		return err
	}
	d, err := w.install(context.Background(), p)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(outcome{p, d})
}

// world is a store with a base in it.
type world struct {
	st *store.Store
	on []layer.Descriptor
}

func openWorld(ctx context.Context, dir, base string) (*world, error) {
	st, err := store.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(base)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, err := layer.FromTar(ctx, st, f, layer.Options{ModTime: layer.KeepTimes, Compression: layer.None})
	return &world{st, []layer.Descriptor{d}}, err
}

func (w *world) install(ctx context.Context, p *Pinned) (layer.Descriptor, error) {
	return Layer(ctx, Install{Runner: &execop.Runner{Store: w.st, Layer: layer.Options{Compression: layer.None}}, Fetch: fetch.New(w.st, fetch.Options{}), On: w.on, Packages: p})
}

func (w *world) resolve(ctx context.Context, packages ...string) (*Pinned, error) {
	return Resolve(ctx, w.st, Request{On: w.on, Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, Packages: packages})
}

// sharedDir holds what tests share, until all are done.
var sharedDir string

// makeSharedDir makes it, where anybody may read.
var makeSharedDir = sync.OnceValue(func() (err error) {
	if sharedDir, err = os.MkdirTemp("", "sconce-system-*"); err != nil {
		return err
	}
	return os.Chmod(sharedDir, 0o755)
})

// debianTar makes the smallest Debian that has apt, once.
var debianTar = sync.OnceValues(func() (string, error) {
	if err := makeSharedDir(); err != nil {
		return "", err
	}
	name := filepath.Join(sharedDir, "debian.tar")
	out, err := mirrortest.Run(func() *exec.Cmd { return exec.Command("mmdebstrap", "--variant=apt", "bookworm", name) })
	if err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return name, os.Chmod(name, 0o644)
})

func debianBase(t *testing.T) *world {
	t.Helper()
	return bootstrapped(t, debianTar)
}

// bootstrapped is a base whose tar tar makes.
func bootstrapped(t *testing.T, tar func() (string, error)) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("bootstraps a base, which takes half a minute")
	}
	tooltest.Path(t, "mmdebstrap")
	base, err := tar()
	if err != nil {
		t.Fatal(err)
	}
	return sharedWorld(t, base)
}

// sharedWorlds are bases in stores, by the tar they were made of. They are imported and unpacked once: no test changes what another has.
var sharedWorlds = map[string]*world{}

// sharedWorld is a base in a store that tests share. More layers on it are the test's own.
func sharedWorld(t *testing.T, base string) *world {
	t.Helper()
	w, ok := sharedWorlds[base]
	if !ok {
		var err error
		if w, err = openWorld(context.Background(), filepath.Join(sharedDir, "store-of-"+filepath.Base(base)), base); err != nil {
			t.Fatal(err)
		}
		sharedWorlds[base] = w
	}
	return &world{w.st, slices.Clone(w.on)}
}

// The same packages make the same layer, byte for byte, in every run, for root and for a user without any privilege.
func TestSameForEveryUser(t *testing.T) {
	w := debianBase(t)
	packages := []string{"openssh-server", "git", "libibverbs1", "python3"}
	if more := os.Getenv("SCONCE_TEST_PACKAGES"); more != "" {
		packages = strings.Fields(more)
	}
	p, err := w.resolve(t.Context(), packages...)
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	mine, err := w.install(t.Context(), p)
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	again, err := w.install(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(mine, again) {
		t.Errorf("another run makes another layer:\n%s", strings.Join(differences(t, w.st, mine, again), "\n"))
	}
	if diff := cmp.Diff(outcome{p, mine}, asNobody(t, packages)); diff != "" {
		t.Errorf("another user makes another layer (-mine +theirs):\n%s", diff)
	}
	checkInstalled(t, w, mine, p)
}

// checkInstalled looks at the layer of openssh-server and others.
func checkInstalled(t *testing.T, w *world, d layer.Descriptor, p *Pinned) {
	t.Helper()
	if !slices.Contains(p.Asked, "openssh-server") {
		return
	}
	index, err := layer.OpenIndex(t.Context(), w.st, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range index.Entries {
		for _, no := range []string{"var/lib/apt/lists", "var/log/", "run/sconce", "usr/sbin/policy-rc.d", "etc/ssh/ssh_host", "var/cache/apt", "-old"} {
			if strings.Contains(e.Path, no) && e.Type != layer.Dir && !strings.Contains(e.Path, layer.WhiteoutPrefix) {
				t.Errorf("the layer has %s", e.Path)
			}
		}
	}
	tree, err := image.NewTree(t.Context(), w.st, append(slices.Clone(w.on), d))
	if err != nil {
		t.Fatal(err)
	}
	passwd, err := tree.ReadFile("etc/passwd", 1<<20)
	if err != nil || !bytes.Contains(passwd, []byte("\nsshd:")) {
		t.Errorf("/etc/passwd has no sshd: %v\n%s", err, passwd)
	}
	agent, err := tree.Lookup("usr/bin/ssh-agent")
	if err != nil || agent.Mode != 0o2755 || agent.GID == 0 {
		t.Errorf("ssh-agent: %+v, %v", agent, err)
	}
	states, err := tree.ReadFile("var/lib/apt/extended_states", 1<<20)
	if err != nil || !bytes.Contains(states, []byte("Package: openssh-client\n")) || bytes.Contains(states, []byte("Package: openssh-server\n")) {
		t.Errorf("what was asked for is not told from what came with it: %v\n%s", err, states)
	}
}

// asNobody installs packages as a user without subordinate ids; as the test's own user when that is not root.
func asNobody(t *testing.T, packages []string) outcome {
	t.Helper()
	dir, err := os.MkdirTemp("", "sconce-nobody-*") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(dir) })
	base, err := debianTar()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(job{base, packages})
	if err != nil {
		t.Fatal(err)
	}
	file, home, binary := filepath.Join(dir, "job.json"), filepath.Join(dir, "home"), filepath.Join(dir, "child")
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := tooltest.WriteProgram(binary, program); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `umask 077; exec "$0"`, binary)
	cmd.Env = append(os.Environ(), childVariable+"="+file, "HOME="+home, "TMPDIR="+home)
	cmd.Dir = dir
	if os.Geteuid() == 0 {
		nobody := lookup(t, "nobody")
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(nobody), Gid: uint32(nobody)}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("install as another user: %v\n%s", err, stderrOf(err))
	}
	var theirs outcome
	if err := json.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	return theirs
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(exit.Stderr)
	}
	return ""
}

func lookup(t *testing.T, name string) int {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(u.Uid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A small base has no certificates, and its sources may be at https addresses all the same.
func TestSourcesAtHTTPS(t *testing.T) {
	w := debianBase(t)
	plain, err := w.resolve(t.Context(), "libibverbs1")
	if err != nil || len(plain.Packages) == 0 {
		t.Fatal(plain, err)
	}
	mirror, _, _ := strings.Cut(plain.Packages[0].URL, "/pool/") // the base's own, which is also there at https
	mirror = strings.Replace(mirror, "http://", "https://", 1)
	w.on = append(w.on, layerOf(t, w.st, map[string][]byte{"etc/apt/sources.list": []byte("deb " + mirror + " bookworm main\n")}))
	p, err := w.resolve(t.Context(), "libibverbs1")
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	if len(p.Packages) == 0 || !strings.HasPrefix(p.Packages[0].URL, mirror+"/pool/") {
		t.Errorf("%+v", p)
	}
	w.on = append(w.on, layerOf(t, w.st, map[string][]byte{"etc/apt/sources.list": []byte("deb http://127.0.0.1:9/debian bookworm main\n")}))
	if _, err = w.resolve(t.Context(), "libibverbs1"); err == nil || !strings.Contains(err.Error(), "cannot fetch the lists") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("sources that are not there: %v", err)
	}
}

func TestWhatCannotBeInstalled(t *testing.T) {
	w := debianBase(t)
	for _, test := range []struct{ asked, message, hint string }{
		{"libibverb1", "Unable to locate package libibverb1", `did you mean "libibverbs1"?`},
		{"git=1.0", "Version '1.0' for 'git' was not found", "the base's sources have git 1:2."},
		{"libssl", "Unable to locate package libssl", `did you mean "libssl3"?`},
		{"git:ppc64", "git:ppc64", ""},
		{"nodejs-", "does not name a package", ""},
		{"--yes", "does not name a package", ""},
	} {
		_, err := w.resolve(t.Context(), "git", test.asked)
		if err == nil || !strings.Contains(err.Error(), test.message) || !strings.Contains(fault.HintOf(err), test.hint) {
			t.Errorf("%s: %v\nhint: %s", test.asked, err, fault.HintOf(err))
		}
	}
}

// differences lists the files in which two layers of one store differ.
func differences(t *testing.T, st *store.Store, a, b layer.Descriptor) []string {
	t.Helper()
	var sums [2]map[string]string
	for i, d := range []layer.Descriptor{a, b} {
		index, err := layer.OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = map[string]string{}
		for j, e := range index.Entries {
			sums[i][e.Path] = fmt.Sprintf("%+v", e.Entry)
			if e.Type != layer.Regular {
				continue
			}
			in, err := index.Open(j)
			if err != nil {
				t.Fatal(err)
			}
			h := sha256.New()
			if _, err := io.Copy(h, in); err != nil {
				t.Fatal(err)
			}
			in.Close()
			sums[i][e.Path] += " " + store.SumDigest(h).Short()
		}
	}
	var lines []string
	for name := range sums[0] {
		if sums[0][name] != sums[1][name] {
			lines = append(lines, name+"\n\t"+sums[0][name]+"\n\t"+sums[1][name])
		}
	}
	for name := range sums[1] {
		if sums[0][name] == "" {
			lines = append(lines, name+" is only in the second")
		}
	}
	return lines
}
