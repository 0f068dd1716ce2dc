package fileop

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/tooltest"
)

// theBase and theContext are what the cases below copy in.
var (
	theBase = []string{
		"d 755 0:0 etc", "f 644 0:0 etc/passwd = root:x:0:0::/root:/bin/sh\nu:x:1001:1002::/home/u:/bin/sh\n",
		"f 644 0:0 etc/group = root:x:0:\nu:x:1002:\ng:x:1003:\n",
		"d 755 0:0 home", "d 755 0:0 home/u", "d 755 0:0 opt", "d 2770 1001:1002 opt/existing", "f 600 7:8 opt/existing/a = old",
		"d 755 0:0 usr", "d 755 0:0 usr/lib", "f 4755 0:0 usr/lib/s = suid", "l lib -> usr/lib", "l abslink -> /opt/existing",
		"l dangling -> opt/none", "d 1777 0:0 tmp",
	}
	theContext = []string{
		"f a = A", "f 600 0:0 b = B", "d d", "f 4755 0:0 d/x = X", "d 700 0:0 d/sub", "f d/sub/y = Y", "l d/ln -> ../a", "h d/hard => a",
		"l lnfile -> a", "l lndir -> d", "d empty", "d 700 0:0 m1/existing", "f m1/existing/n = N", "f m2/lib/z = Z",
		"f m3/etc/passwd/w = W", "f m4/opt/existing = O", "f m5/abslink = K", "l m5/newlink -> /etc", "d 2775 0:0 m6/tmp", "f m6/tmp/t = T",
		"f p/q/r/f = F", "f p/q/g = G", "l p/esc -> ../../outside", "l p/abs -> /etc/hostname", "p 644 0:0 p/fifo",
		"d glob/one", "f glob/one/1 = 1", "d glob/two", "f glob/two/2 = 2", "f glob/[x] = 3", "f glob/z = 4",
		"f ig/keep.txt = 5", "f ig/drop.log = 6", "f ig/deep/er/drop.log = 7", "f ig/deep/keep.log = 8", "f ig/node/mod = 9", "f ig/node/in = 10",
	}
	theArchive = []string{
		"d 711 5:6 ./", "d 750 5:6 ./dir", "f 640 7:8 ./dir/in = in", "f 4711 0:0 ./dir/suid = s", "h 640 7:8 ./dir/hard => ./dir/in", "l ./dir/link -> in",
		"l ./lib2 -> dir", "f 644 5:6 ./lib2/through = t",
	}
)

// TestLikeBuildah compares copies with those that buildah makes. A case that says why is one where Docker's rules and those of
// buildah 1.28 are not the same.
func TestLikeBuildah(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	tooltest.Path(t, "buildah")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := newBuildah(t)
	for _, c := range []struct {
		line string
		copy Copy
		why  string
	}{
		{line: "COPY a /n1/n2/f", copy: Copy{Sources: []string{"a"}, Dest: "/n1/n2/f"}},
		{line: "COPY --chown=u:g a /n1/n2/", copy: Copy{Sources: []string{"a"}, Dest: "/n1/n2/", Chown: "u:g"}},
		{line: "COPY --chown=:g a /n1/", copy: Copy{Sources: []string{"a"}, Dest: "/n1/", Chown: ":g"}},
		{line: "COPY --chown=1001 d /n1/", copy: Copy{Sources: []string{"d"}, Dest: "/n1/", Chown: "1001"}},
		{line: "COPY d /opt/existing", copy: Copy{Sources: []string{"d"}, Dest: "/opt/existing"}},
		{line: "COPY --chown=u a b /opt/existing/", copy: Copy{Sources: []string{"a", "b"}, Dest: "/opt/existing/", Chown: "u"}},
		{line: "COPY a /opt/existing", copy: Copy{Sources: []string{"a"}, Dest: "/opt/existing"}},
		{line: "COPY a b /n1", copy: Copy{Sources: []string{"a", "b"}, Dest: "/n1"}},
		{line: "COPY d/* /n1/", copy: Copy{Sources: []string{"d/*"}, Dest: "/n1/"}},
		{line: "COPY glob/[ot]?[oe] /n1/", copy: Copy{Sources: []string{"glob/[ot]?[oe]"}, Dest: "/n1/"}},
		{line: "COPY a nothere* /n1/", copy: Copy{Sources: []string{"a", "nothere*"}, Dest: "/n1/"}},
		{line: "COPY nothere* /n1/", copy: Copy{Sources: []string{"nothere*"}, Dest: "/n1/"}, why: "BuildKit copies nothing, which is how files are made optional"},
		{line: "COPY nothere /n1/", copy: Copy{Sources: []string{"nothere"}, Dest: "/n1/"}},
		{line: "COPY lnfile lndir /n1/", copy: Copy{Sources: []string{"lnfile", "lndir"}, Dest: "/n1/"}},
		{line: "COPY d /lib/k", copy: Copy{Sources: []string{"d"}, Dest: "/lib/k"}},
		{line: "COPY a /abslink", copy: Copy{Sources: []string{"a"}, Dest: "/abslink"}},
		{line: "COPY a /abslink/a", copy: Copy{Sources: []string{"a"}, Dest: "/abslink/a"}},
		{line: "COPY a /dangling/", copy: Copy{Sources: []string{"a"}, Dest: "/dangling/"}},
		{line: "COPY a /dangling", copy: Copy{Sources: []string{"a"}, Dest: "/dangling"}, why: "BuildKit makes the file that the link names"},
		{line: "COPY d /etc/passwd", copy: Copy{Sources: []string{"d"}, Dest: "/etc/passwd"}},
		{line: "COPY a /etc/passwd/", copy: Copy{Sources: []string{"a"}, Dest: "/etc/passwd/"}},
		{line: "COPY a /etc/passwd/x", copy: Copy{Sources: []string{"a"}, Dest: "/etc/passwd/x"}},
		{line: "COPY a /etc/passwd", copy: Copy{Sources: []string{"a"}, Dest: "/etc/passwd"}},
		{line: "COPY --chmod=640 d /n1", copy: Copy{Sources: []string{"d"}, Dest: "/n1", Chmod: "640"}, why: "BuildKit gives new directories the permissions too"},
		{line: "COPY --chmod=4755 a b /n1/", copy: Copy{Sources: []string{"a", "b"}, Dest: "/n1/", Chmod: "4755"}},
		{line: "COPY . /", copy: Copy{Sources: []string{"."}, Dest: "/"}},
		{line: "COPY m1 /opt", copy: Copy{Sources: []string{"m1"}, Dest: "/opt"}},
		{line: "COPY --chown=u m1 /opt", copy: Copy{Sources: []string{"m1"}, Dest: "/opt", Chown: "u"}},
		{line: "COPY m2 /", copy: Copy{Sources: []string{"m2"}, Dest: "/"}, why: "BuildKit refuses to replace a symlink by a directory"},
		{line: "COPY m3 /", copy: Copy{Sources: []string{"m3"}, Dest: "/"}, why: "BuildKit refuses to replace a file by a directory"},
		{line: "COPY m4 /", copy: Copy{Sources: []string{"m4"}, Dest: "/"}, why: "BuildKit refuses to replace a directory by a file"},
		{line: "COPY m5 /", copy: Copy{Sources: []string{"m5"}, Dest: "/"}},
		{line: "COPY m6 /", copy: Copy{Sources: []string{"m6"}, Dest: "/"}},
		{line: "COPY p /n1/", copy: Copy{Sources: []string{"p"}, Dest: "/n1/"}},
		{line: "COPY p/esc /n1/", copy: Copy{Sources: []string{"p/esc"}, Dest: "/n1/"}},
		{line: "COPY p/abs /n1/", copy: Copy{Sources: []string{"p/abs"}, Dest: "/n1/"}},
		{line: "COPY ../a /n1/", copy: Copy{Sources: []string{"../a"}, Dest: "/n1/"}},
		{line: "COPY d/. /n1", copy: Copy{Sources: []string{"d/."}, Dest: "/n1"}},
		{line: "COPY a /opt/existing/.", copy: Copy{Sources: []string{"a"}, Dest: "/opt/existing/."}},
		{line: "COPY a /n1/.", copy: Copy{Sources: []string{"a"}, Dest: "/n1/."}, why: "BuildKit makes a directory"},
		{line: "COPY --chown=nobody a /n1/", copy: Copy{Sources: []string{"a"}, Dest: "/n1/", Chown: "nobody"}},
		{line: "COPY empty /n1/n2", copy: Copy{Sources: []string{"empty"}, Dest: "/n1/n2"}},
		{line: "ADD t.tar.gz /n1", copy: Copy{Sources: []string{"t.tar.gz"}, Dest: "/n1", Extract: true}, why: "BuildKit unpacks into the directory without changing it"},
		{line: "ADD t.tar.bz2 /n1/", copy: Copy{Sources: []string{"t.tar.bz2"}, Dest: "/n1/", Extract: true}, why: "BuildKit unpacks into the directory without changing it"},
		{line: "ADD t.tar.xz /", copy: Copy{Sources: []string{"t.tar.xz"}, Dest: "/", Extract: true}},
		{line: "ADD t.tar /opt/existing", copy: Copy{Sources: []string{"t.tar"}, Dest: "/opt/existing", Extract: true}, why: "BuildKit unpacks into the directory without changing it"},
		{line: "ADD --chmod=600 t.tar /n1/", copy: Copy{Sources: []string{"t.tar"}, Dest: "/n1/", Chmod: "600", Extract: true}, why: "BuildKit unpacks into the directory without changing it"},
		{line: "ADD --chown=u t.tar /n1/", copy: Copy{Sources: []string{"t.tar"}, Dest: "/n1/", Chown: "u", Extract: true}, why: "BuildKit gives away what is in the archive"},
		{line: "ADD a d /n1/", copy: Copy{Sources: []string{"a", "d"}, Dest: "/n1/", Extract: true}},
		{line: "COPY t.tar /n1/", copy: Copy{Sources: []string{"t.tar"}, Dest: "/n1/"}},
		{line: "COPY --from=base /opt /n1", copy: Copy{Sources: []string{"/opt"}, Dest: "/n1"}},
		{line: "COPY --from=base /lib /abslink/a /n1/", copy: Copy{Sources: []string{"/lib", "/abslink/a"}, Dest: "/n1/"}},
		{line: "COPY --from=base --chown=u / /n1/", copy: Copy{Sources: []string{"/"}, Dest: "/n1/", Chown: "u"}},
	} {
		t.Run(c.line, func(t *testing.T) {
			theirs := b.build(t, c.line)
			ours := b.copy(t, c.copy, strings.Contains(c.line, "--from"))
			if diff := cmp.Diff(theirs, ours); (diff != "") != (c.why != "") {
				t.Errorf("differs (%q): buildah and here:\n%s", c.why, diff)
			}
		})
	}
	for _, c := range []struct{ lines, dir, owner string }{
		{"WORKDIR /w/x", "/w/x", ""},
		{"USER u\nWORKDIR /w/x", "/w/x", "u"},
		{"WORKDIR /lib/x", "/lib/x", ""},
		{"WORKDIR /dangling", "/dangling", ""},
		{"USER u\nWORKDIR /opt/existing", "/opt/existing", "u"},
	} {
		t.Run(c.lines, func(t *testing.T) {
			theirs := b.build(t, c.lines)
			d, err := Dir{Path: c.dir, Owner: c.owner}.Layer(t.Context(), b.st, b.tree, layer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			layers := []layer.Descriptor{b.base}
			if d != (layer.Descriptor{}) {
				layers = append(layers, d)
			}
			if diff := cmp.Diff(theirs, b.changes(t, layers)); diff != "" {
				t.Errorf("buildah and here:\n%s", diff)
			}
		})
	}
}

// buildah is a store of buildah with the base, and the same base here.
type buildah struct {
	rig
	args []string
	dir  string
	seen []string // the base as buildah has it
}

func newBuildah(t *testing.T) *buildah {
	t.Helper()
	b := &buildah{rig: newRig(t), dir: t.TempDir()}
	b.args = []string{"--root", filepath.Join(b.dir, "root"), "--runroot", filepath.Join(b.dir, "run"), "--storage-driver", "vfs"}
	if err := os.WriteFile(filepath.Join(b.dir, "base.tar"), makeTar(t, theBase...), 0o644); err != nil {
		t.Fatal(err)
	}
	c := b.run(t, "from", "scratch")
	b.run(t, "add", "-q", c, filepath.Join(b.dir, "base.tar"), "/")
	b.run(t, "commit", "-q", "--rm", c, "base")
	b.seen = b.list(t, "base")
	return b
}

func (b *buildah) run(t *testing.T, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "buildah", append(b.args[:len(b.args):len(b.args)], args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return strings.TrimSpace(out.String())
}

// build returns what a line of a Containerfile changes, or "error".
func (b *buildah) build(t *testing.T, lines string) []string {
	t.Helper()
	file := filepath.Join(b.dir, "Containerfile")
	lines = "FROM localhost/base\n" + lines + "\n"
	if strings.Contains(lines, "--from=base") {
		lines = "FROM localhost/base AS base\n" + lines
	}
	if err := os.WriteFile(file, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "buildah", append(b.args[:len(b.args):len(b.args)],
		"bud", "-q", "--isolation", "chroot", "-f", file, "-o", "type=local,dest="+out, b.context.dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("%.300s", out)
		return []string{"error"}
	}
	return changes(b.seen, listDir(t, out))
}

func (b *buildah) list(t *testing.T, name string) []string {
	t.Helper()
	c := b.run(t, "from", "--pull-never", "localhost/"+name)
	defer b.run(t, "rm", c)
	return listDir(t, b.run(t, "mount", c))
}

// listDir is list for a directory.
func listDir(t *testing.T, dir string) []string {
	t.Helper()
	first := map[uint64]string{}
	var lines []string
	var walk func(p string)
	walk = func(p string) {
		entries, err := os.ReadDir(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			at := filepath.Join(p, e.Name())
			var s syscall.Stat_t
			if err := syscall.Lstat(filepath.Join(dir, at), &s); err != nil {
				t.Fatal(err)
			}
			typ := map[uint32]string{syscall.S_IFREG: "f", syscall.S_IFDIR: "d", syscall.S_IFLNK: "l", syscall.S_IFIFO: "p"}[s.Mode&syscall.S_IFMT]
			line := fmt.Sprintf("%s %o %d:%d %s", typ, s.Mode&0o7777, s.Uid, s.Gid, at)
			switch typ {
			case "l":
				to, err := os.Readlink(filepath.Join(dir, at))
				if err != nil {
					t.Fatal(err)
				}
				line += " -> " + to
			case "f":
				if of, ok := first[s.Ino]; ok {
					line += " => " + of
					break
				}
				first[s.Ino] = at
				data, err := os.ReadFile(filepath.Join(dir, at))
				if err != nil {
					t.Fatal(err)
				}
				line += " = " + string(data)
			}
			lines = append(lines, line)
			if typ == "d" {
				walk(at)
			}
		}
	}
	walk(".")
	return lines
}

func compressed(t testing.TB, tool string, data []byte) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tooltest.Path(t, tool), "-c")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
