package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// childVariable makes the test binary a process that resolves the suite of what the file it names pins, builds that into a store of
// its own, and prints the layer: run as another user, it shows that the user makes no difference.
const childVariable = "SCONCE_BOOTSTRAP_CHILD"

func TestMain(m *testing.M) {
	sandbox.Init()
	if file := os.Getenv(childVariable); file != "" {
		if err := buildChild(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func buildChild(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var p Pinned
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sconce-child-*")
	if err != nil {
		return err
	}
	defer store.RemoveAll(dir)
	d, err := buildInto(dir, &p)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(d)
}

func buildInto(dir string, p *Pinned) (layer.Descriptor, error) {
	ctx := context.Background()
	st, err := store.Open(ctx, dir)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer st.Close()
	return Build(ctx, st, fetch.New(st, fetch.Options{}), p, layer.Options{Compression: layer.None})
}

// resolved asks the mirror that this machine's own packages come from.
func resolved(t *testing.T, r Request) *Pinned {
	t.Helper()
	st, _ := openStore(t)
	p, err := Resolve(t.Context(), st, fetch.New(st, fetch.Options{}), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The root file system is the same, byte for byte, for root and for a user without any privilege, with another umask, in
// another directory, without any other program; also of a suite with a newer C library than this machine's.
func TestSameForEveryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("bootstraps twice")
	}
	p := resolved(t, Request{Suite: "trixie", Variant: "apt", Packages: []string{"python3-minimal"}, Architecture: runtime.GOARCH})
	if len(p.Packages) < 50 || !strings.Contains(p.Sources, "trixie") || p.Epoch.Before(time.Unix(1e9, 0)) {
		t.Fatalf("resolved to %d packages, epoch %s, sources %q", len(p.Packages), p.Epoch, p.Sources)
	}
	for _, pkg := range p.Packages {
		if pkg.Name == "usrmerge" {
			t.Error("usrmerge is there, which brings all of perl")
		}
	}
	mine, err := buildInto(t.TempDir(), p)
	if err != nil {
		t.Fatal(err)
	}
	if theirs := buildAsNobody(t, p); !cmp.Equal(mine, theirs) {
		t.Errorf("another user makes another base (-mine +theirs):\n%s", cmp.Diff(mine, theirs))
	}
}

// An epoch of 0 that a package writes out is none: dpkg does not write it down.
func TestEpochOfZero(t *testing.T) {
	if testing.Short() {
		t.Skip("bootstraps a base, which takes half a minute")
	}
	tooltest.Path(t, "dpkg-deb")
	p := resolved(t, Request{Suite: "bookworm", Variant: "essential", Packages: []string{"hostname", "adduser"}, Architecture: runtime.GOARCH})
	st, f := openStore(t)
	dir := t.TempDir()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer s.Close()
	for i := range p.Packages {
		pkg := &p.Packages[i]
		if pkg.Name != "hostname" && pkg.Name != "adduser" { // one that is unpacked here, and one that apt installs there
			continue
		}
		if err := f.Blob(t.Context(), fetch.Request{URL: pkg.URL, Digest: pkg.SHA256, Size: pkg.Size, Name: pkg.Name}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, pkg.Name+".deb")
		if err := st.CopyBlob(pkg.SHA256, file); err != nil {
			t.Fatal(err)
		}
		script := `set -e; dpkg-deb -R "$1" "$1.d"; sed -i 's/^Version: /Version: 0:/' "$1.d/DEBIAN/control"; dpkg-deb --root-owner-group -b "$1.d" "$1"`
		if out, err := exec.Command("sh", "-c", script, "sh", file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pkg.Version, pkg.URL, pkg.Size, pkg.SHA256 = "0:"+pkg.Version, s.URL+"/"+pkg.Name+".deb", int64(len(data)), store.DigestOf(data)
	}
	if _, err := Build(t.Context(), st, f, p, layer.Options{Compression: layer.None}); err != nil {
		t.Error(err)
	}
}

// buildAsNobody builds p as a user without subordinate ids; as the test's own user when that is not root.
func buildAsNobody(t *testing.T, p *Pinned) layer.Descriptor {
	t.Helper()
	dir, err := os.MkdirTemp("", "sconce-nobody-*") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	pinned, home, binary := filepath.Join(dir, "pinned.json"), filepath.Join(dir, "home"), filepath.Join(dir, "child")
	copyFile(t, os.Args[0], binary)
	if err := os.WriteFile(pinned, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `umask 077; exec "$0"`, binary)
	// There is no program to be found: not gpg, apt, dpkg, tar, perl.
	cmd.Env = []string{childVariable + "=" + pinned, "HOME=" + home, "TMPDIR=" + home, "PATH=" + filepath.Join(home, "none")}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
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
		t.Fatalf("build as another user: %v\n%s", err, stderrOf(err))
	}
	var d layer.Descriptor
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(exit.Stderr)
	}
	return ""
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
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
