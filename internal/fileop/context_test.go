package fileop

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// names returns what a context holds.
func names(t testing.TB, c *Context) []string {
	t.Helper()
	top, err := c.top(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	err = top.walk("", func(_ *node, p string) error {
		if p != "" {
			list = append(list, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A context is somebody's directory: nothing in it is waited for.
func TestIgnoreFileIsAPipe(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, ".dockerignore"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := OpenContext(dir, "")
		if err == nil {
			c.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), ".dockerignore is not a regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Minute):
		t.Error("it waits for a writer")
	}
}

// Directories can lie deeper than any path is long.
func TestDeepContext(t *testing.T) {
	for name, want := range map[string]string{"level": "level/level/level", strings.Repeat("long", 30): "file name too long"} {
		dir := t.TempDir()
		t.Cleanup(func() { store.RemoveAll(dir) })
		fd, err := unix.Open(dir, unix.O_RDONLY, 0)
		for range 1000 {
			if err == nil {
				err = unix.Mkdirat(fd, name, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			up := fd
			fd, err = unix.Openat(up, name, unix.O_RDONLY, 0)
			unix.Close(up)
		}
		unix.Close(fd)
		_, err = openContext(t, dir).Digest(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.300v", err)
		}
	}
}

func TestIgnore(t *testing.T) {
	files := []string{"f README.md = ", "f a.go = ", "f a.log = ", "f d/a.go = ", "f d/a.log = ", "f d/e/a.go = ", "f d/e/b = ", "f [x] = ", "f sp ace = "}
	everything := []string{"README.md", "[x]", "a.go", "a.log", "d", "d/a.go", "d/a.log", "d/e", "d/e/a.go", "d/e/b", "sp", "sp/ace"}
	files[8] = "f sp/ace = "
	for name, c := range map[string]struct {
		ignore string
		want   string // what is left, or "all" but for some
	}{
		"nothing":                     {"", "all"},
		"comments and empty lines":    {"# a.go\n\n   \n#\n", "all"},
		"a name at the top only":      {"a.go", "all -a.go"},
		"a leading slash":             {"/a.go", "all -a.go"},
		"a star stays in a directory": {"*.go", "all -a.go"},
		"a star at each level":        {"*/*.go", "all -d/a.go"},
		"a question mark":             {"a.?o\nd/?.log", "all -a.go -d/a.log"},
		"any directory":               {"**/*.go", "all -a.go -d/a.go -d/e/a.go"},
		"any directory, by suffix":    {"**/a.go", "all -a.go -d/a.go -d/e/a.go"},
		"a suffix":                    {"**.log", "all -a.log -d/a.log"},
		"a directory with all":        {"d", "all -d -d/a.go -d/a.log -d/e -d/e/a.go -d/e/b"},
		"a slash at the end":          {"d/e/\na.go/", "all -d/e -d/e/a.go -d/e/b -a.go"},
		"what is in a directory":      {"d/**", "all -d/a.go -d/a.log -d/e -d/e/a.go -d/e/b"},
		"directories between":         {"d/**/a.go", "all -d/a.go -d/e/a.go"},
		"all but some":                {"*\n!README.md\n!d/e/b", "README.md d d/e d/e/b"},
		"all but a kind":              {"**\n!**/*.go", "a.go d d/a.go d/e d/e/a.go"},
		"the last counts":             {"*.md\n!README.md\nREAD*", "all -README.md"},
		"the last counts the other":   {"READ*\n!*.md", "all"},
		"taken back and again not":    {"d\n!d/e\nd/e/b", "all -d/a.go -d/a.log -d/e/b"},
		"an exception for nothing":    {"d\n!e", "all -d -d/a.go -d/a.log -d/e -d/e/a.go -d/e/b"},
		"spaces around":               {"  a.go  \r\n !  x", "all -a.go"},
		"a class":                     {"[a-c].go\n[^a-z]*", "all -a.go -README.md -[x] -.dockerignore"},
		"a backslash":                 {`\[x\]`, "all -[x]"},
		"regular expressions mean no": {"a+go\n(a|b).go\n.*", "all -.dockerignore"},
		"dots":                        {"./d/../a.go", "all -a.go"},
		"a mark at the beginning":     {"\ufeffa.go", "all -a.go"},
		"itself":                      {".dockerignore", "all -.dockerignore"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := makeDir(t, append(files[:len(files):len(files)], "f .dockerignore = "+c.ignore)...)
			want := map[string]bool{}
			all := append([]string{".dockerignore"}, everything...)
			for _, word := range strings.Fields(c.want) {
				switch {
				case word == "all":
					for _, n := range all {
						want[n] = true
					}
				case word[0] == '-':
					delete(want, word[1:])
				default:
					want[word] = true
				}
			}
			var list []string
			for _, n := range all {
				if want[n] {
					list = append(list, n)
				}
			}
			if diff := cmp.Diff(list, names(t, openContext(t, dir))); diff != "" {
				t.Errorf("%q (-want +got)\n%s", c.ignore, diff)
			}
		})
	}
}

func TestIgnoreFiles(t *testing.T) {
	dir := makeDir(t, "f .dockerignore = a", "f .containerignore = b", "f a = ", "f b = ", "f Dockerfile.dockerignore = *\n!a", "f Other = ")
	if got := names(t, openContext(t, dir)); strings.Join(got, " ") != ".containerignore .dockerignore Dockerfile.dockerignore Other a" {
		t.Errorf("got %q", got)
	}
	own := IgnoreFileOf(filepath.Join(dir, "Dockerfile"))
	if own != filepath.Join(dir, "Dockerfile.dockerignore") || IgnoreFileOf(filepath.Join(dir, "Other")) != "" {
		t.Errorf("got %q", own)
	}
	c, err := OpenContext(dir, own)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := names(t, c); strings.Join(got, " ") != "a" {
		t.Errorf("got %q", got)
	}
	_, err = c.Digest(t.Context())
	if err != nil {
		t.Error(err)
	}
	_, err = Copy{Sources: []string{"b"}, Dest: "/"}.Digest(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "b is excluded from the build context by Dockerfile.dockerignore") || !strings.Contains(fault.HintOf(err), "!b") {
		t.Errorf("got %v, %s", err, fault.HintOf(err))
	}
	for ignore, want := range map[string]string{"a\n[": `.dockerignore:2: pattern "[": its brackets`, "!": `.dockerignore:1: pattern "!"`} {
		if _, err := OpenContext(makeDir(t, "f .dockerignore = "+ignore), ""); err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: got %v", ignore, err)
		}
	}
}

// A path that no layer can hold is said to be one, before anything is made of it, and can be left out.
func TestContextTooDeep(t *testing.T) {
	deep := strings.Repeat("d/", layer.MaxDepth)
	for ignore, want := range map[string]string{"none": "more than 512 components", "d": ""} {
		dir := makeDir(t, "f a = A", "f "+deep+"f = F", "f .dockerignore = "+ignore)
		_, err := Copy{Sources: []string{"."}, Dest: "/"}.Digest(t.Context(), openContext(t, dir))
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), ".dockerignore")) {
			t.Errorf("ignoring %s: %v", ignore, err)
		}
	}
}

func TestContextStaysInside(t *testing.T) {
	outside := makeDir(t, "f secret = secret", "f d/secret = secret")
	dir := makeDir(t, "f a = A", "l abs -> "+outside, "l file -> "+filepath.Join(outside, "secret"), "l up -> ../../../../../../"+outside, "d d")
	r := newRig(t)
	for _, source := range []string{"abs/secret", "file", "up/secret", "abs", "d/../../secret", "u*/secret", "abs/*"} {
		got, err := r.try(t, Copy{Sources: []string{source}, Dest: "/n"}, openContext(t, dir), nil)
		if len(got) > 0 {
			t.Errorf("%s: got %q, %v", source, got, err)
		}
	}
	for source, link := range map[string]string{"abs/secret": "abs", "file": "file", "up/secret": "up", "d/../abs/x": "abs"} {
		_, err := r.try(t, Copy{Sources: []string{source}, Dest: "/n"}, openContext(t, dir), nil)
		if err == nil || !strings.Contains(err.Error(), link+" of the build context "+dir+" is a symlink to ") || !strings.Contains(err.Error(), "leads out") {
			t.Errorf("%s: %v", source, err)
		}
	}
	if _, err := r.try(t, Copy{Sources: []string{"d/none"}, Dest: "/n"}, openContext(t, dir), nil); err == nil || strings.Contains(err.Error(), "leads out") {
		t.Errorf("a name that is missing: %v", err)
	}
	// Between the look and the copy a directory becomes a link.
	c := openContext(t, dir)
	names(t, c)
	if err := os.Remove(filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "d"), filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	if got, err := r.try(t, Copy{Sources: []string{"d/secret"}, Dest: "/n"}, c, nil); err == nil {
		t.Errorf("got %q", got)
	}
	if got, err := r.try(t, Copy{Sources: []string{"d"}, Dest: "/n"}, openContext(t, dir), nil); err == nil {
		t.Errorf("got %q", got)
	}
}

func TestContextChanges(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(file string) error{
		"written": func(file string) error { return os.WriteFile(file, []byte("other"), 0o644) },
		"shorter": func(file string) error { return os.Truncate(file, 1) },
		"longer":  func(file string) error { return os.Truncate(file, 100) },
		"touched": func(file string) error { return os.Chtimes(file, time.Now(), time.Now()) },
		"another": func(file string) error { return os.Rename(filepath.Join(filepath.Dir(file), "other"), file) },
		"a link":  func(file string) error { os.Remove(file); return os.Symlink("other", file) },
		"gone":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := makeDir(t, "f f = first", "f other = other")
			c := openContext(t, dir)
			cp := Copy{Sources: []string{"f"}, Dest: "/n"}
			if _, err := cp.Digest(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // more than the step of the clock for file times
			if err := change(filepath.Join(dir, "f")); err != nil {
				t.Fatal(err)
			}
			got, err := r.try(t, cp, c, nil)
			if err == nil || !strings.Contains(err.Error(), "changed while") && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestFileThatGrowsWhileItIsRead(t *testing.T) {
	dir := makeDir(t, "f f = "+strings.Repeat("x", 1000))
	c := openContext(t, dir)
	top, err := c.top(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, err := top.find("f", true)
	if err != nil {
		t.Fatal(err)
	}
	f, err := n.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 500)
	if _, err := io.ReadFull(f, buf); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(strings.Repeat("y", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(f, buf); err == nil || !strings.Contains(err.Error(), "changed while") {
		t.Errorf("got %v", err)
	}
}

func TestSpecialFiles(t *testing.T) {
	r := newRig(t)
	dir := makeDir(t, "p 640 0:0 fifo", "f f = ")
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got, err := r.try(t, Copy{Sources: []string{"."}, Dest: "/n"}, openContext(t, dir), nil)
	if diff := cmp.Diff([]string{"d 755 0:0 n", "f 644 0:0 n/f = ", "p 640 0:0 n/fifo"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		tooltest.Missing(t, "make a device: %v", err)
	}
	c := openContext(t, dir)
	if _, err := r.try(t, Copy{Sources: []string{"."}, Dest: "/n"}, c, nil); err == nil || !strings.Contains(err.Error(), "is a device") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Digest(t.Context()); err == nil || !strings.Contains(err.Error(), "is a device") {
		t.Errorf("got %v", err)
	}
}

// TestUnreadable runs itself as somebody who may not read everything.
func TestUnreadable(t *testing.T) {
	const unreadable = "SCONCE_TEST_UNREADABLE"
	if dir := os.Getenv(unreadable); dir != "" {
		c := openContext(t, dir)
		if _, err := (Copy{Sources: []string{"ok"}, Dest: "/"}).Digest(t.Context(), c); err != nil {
			t.Error(err)
		}
		for _, source := range []string{"file", "dir", "."} {
			_, err := Copy{Sources: []string{source}, Dest: "/"}.Digest(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(fault.HintOf(err), ".dockerignore") {
				t.Errorf("%s: got %v, %q", source, err, fault.HintOf(err))
			}
		}
		if _, err := c.Layer(t.Context(), storetest.New(t), layer.Options{}); err == nil {
			t.Error("no error for the whole")
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir := makeDir(t, "f 600 0:0 file = F", "d 700 0:0 dir", "f ok = ok", "f .dockerignore = ignored", "d 700 0:0 ignored")
	// Others must reach the directory and this program.
	for d := dir; strings.Count(d, "/") > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self := filepath.Join(dir, "ignored-program")
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	self = filepath.Join(filepath.Dir(dir), filepath.Base(self))
	if err := tooltest.WriteProgram(self, data); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(self)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestUnreadable$")
	cmd.Dir = "/"
	cmd.Env = []string{unreadable + "=" + dir, "TMPDIR=/tmp", "HOME=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
