package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
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
	if again, err := Resolve(context.Background(), Request{Suite: p.Suite, Variant: "apt", Architecture: p.Architecture}); err != nil || again.Sources != p.Sources {
		return fmt.Errorf("resolve: %+v, %w", again, err)
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
	return Build(ctx, st, fetch.New(st, fetch.Options{}), p, layer.Options{})
}

func needTools(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv("SCONCE_REQUIRE_TOOLS") != "" {
			t.Fatalf("%s is not on PATH", tool)
		}
		t.Skipf("%s is not on PATH", tool)
	}
}

// The root file system is the same, byte for byte, for root and for a user without any privilege, with another umask, in
// another directory; also of a suite with a newer C library than this machine's.
func TestSameForEveryUser(t *testing.T) {
	if testing.Short() {
		t.Skip("bootstraps four times, which takes two minutes")
	}
	needTools(t, "mmdebstrap", "apt-get", "dpkg-deb")
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			p, err := Resolve(t.Context(), Request{Suite: suite, Variant: "apt", Architecture: runtime.GOARCH})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Packages) < 50 || !strings.Contains(p.Sources, suite) || p.Epoch.Before(time.Unix(1e9, 0)) {
				t.Fatalf("resolved to %d packages, epoch %s, sources %q", len(p.Packages), p.Epoch, p.Sources)
			}
			for _, pkg := range p.Packages {
				if pkg.Name == "usrmerge" {
					t.Error("apt chose usrmerge, which brings all of perl")
				}
			}
			mine, err := buildInto(t.TempDir(), p)
			if err != nil {
				t.Fatal(err)
			}
			if theirs := buildAsNobody(t, p); !cmp.Equal(mine, theirs) {
				t.Errorf("another user makes another base (-mine +theirs):\n%s", cmp.Diff(mine, theirs))
			}
		})
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
	cmd.Env = append(os.Environ(), childVariable+"="+pinned, "HOME="+home, "TMPDIR="+home)
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

func TestUnknownPackage(t *testing.T) {
	needTools(t, "mmdebstrap", "apt-get")
	_, err := Resolve(t.Context(), Request{Suite: "bookworm", Variant: "apt", Architecture: runtime.GOARCH, Packages: []string{"no-such-package-here"}})
	if err == nil || !strings.Contains(err.Error(), "Unable to locate package no-such-package-here") {
		t.Errorf("got %v, want apt's own explanation", err)
	}
}

// A mistake that only the mirror can find is explained, and it is not apt's or mmdebstrap's exit code that sconce ends with.
func TestNoLists(t *testing.T) {
	needTools(t, "mmdebstrap", "apt-get")
	r := Request{Suite: "bokworm", Variant: "apt", Architecture: runtime.GOARCH}
	for _, c := range []struct{ mirror, message, hint string }{
		{"", "does not have a Release file", `did you mean "bookworm"?`},
		{"http://127.0.0.1:9/debian", "Could not connect to 127.0.0.1:9", "base.bootstrap.mirror"},
	} {
		r.Mirror = c.mirror
		_, err := Resolve(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), c.message) || !strings.Contains(fault.HintOf(err), c.hint) || fault.CodeOf(err) != fault.CodeFailed {
			t.Errorf("mirror %q: got %v, hint %q, exit code %d", c.mirror, err, fault.HintOf(err), fault.CodeOf(err))
		}
	}
	unsigned := noLists(Request{Suite: "noble"}, "W: GPG error: http://archive.ubuntu.com/ubuntu noble InRelease: NO_PUBKEY 871920D1991BC93C")
	if hint := fault.HintOf(unsigned); !strings.Contains(hint, "ubuntu-keyring") {
		t.Errorf("without Ubuntu's keys the hint is %q", hint)
	}
}

// What a user can do something about is explained, and an error repeats what matters: no information, no line of a thousand words.
func TestExplain(t *testing.T) {
	w := tailWriter{task: progress.Begin(t.Context(), "bootstrap", "trixie", 0)}
	fmt.Fprint(&w, "I: installing essential packages...\nmount: permission denied\nE: setup failed: "+strings.Repeat("x.deb ", 100)+"failed\n")
	if len(w.lines) != 2 || len(w.lines[1]) > lineLength+len("…") {
		t.Errorf("kept %q", w.lines)
	}
	for text, want := range map[string]string{
		"E: install arch-test for foreign architecture support": "apt-get install arch-test",
		"E: setup_mounts failed: E: mount /dev/pts failed":      "mmdebstrap 1.2",
		"E: something else": "",
	} {
		if hint := fault.HintOf(explain(errors.New(text))); !strings.Contains(hint, want) || (want == "") != (hint == "") {
			t.Errorf("%s: the hint is %q", text, hint)
		}
	}
}

// An interrupt reaches the programs behind the first one, too.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nsh -c 'echo $$ > " + dir + "/pid; exec sleep 100'\ntrue\n"
	if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for range 1000 {
			if pid, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil && strings.HasSuffix(string(pid), "\n") {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err := run(ctx, progress.Begin(ctx, "bootstrap", "bookworm", 0), dir, "", time.Unix(0, 0), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 { // the last of them is init's to bury
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d was not interrupted", pid)
}

func TestParseURI(t *testing.T) {
	hexed := strings.Repeat("ab", 32)
	got, err := parseURI(`'http://mirror.example/pool/libcap2_2.66-4_amd64.deb' libcap2_1%3a2.66-4_amd64.deb 2700 SHA256:` + hexed)
	if err != nil {
		t.Fatal(err)
	}
	want := Package{
		Name: "libcap2", Version: "1:2.66-4", Architecture: "amd64", Size: 2700, SHA256: store.Digest("sha256:" + hexed),
		URL: "http://mirror.example/pool/libcap2_2.66-4_amd64.deb",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{
		"", "'u' a_1_b.deb 1", "'u' a_1_b.deb x SHA256:" + hexed, "'u' a_1.deb 1 SHA256:" + hexed,
		"'u' a_1_b.deb 1 MD5Sum:00", "'u' a_1_b.deb 1 SHA256:00",
	} {
		if _, err := parseURI(bad); err == nil {
			t.Errorf("parseURI(%q) succeeded", bad)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add(`'http://mirror.example/a' a_1%3a2_all.deb 12 SHA256:` + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, line string) {
		p, err := parseURI(line)
		if err == nil && (p.URL == "" && p.Name == "" || p.SHA256 == "") {
			t.Errorf("parseURI(%q) = %+v", line, p)
		}
	})
}

// Whatever a recipe names, the shell sees one word.
func TestQuote(t *testing.T) {
	for _, s := range []string{"", "a b", "it's", "$(touch /tmp/x)", "`x`", `"`, "\\", "a\nb"} {
		out, err := exec.Command("/bin/sh", "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("quote(%q) is read by the shell as %q (%v)", s, out, err)
		}
	}
}
