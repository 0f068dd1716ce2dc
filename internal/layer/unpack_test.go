package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// snapshot describes every file below dir: type, permissions, owner, time, links, content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		var s unix.Stat_t
		if err := unix.Lstat(p, &s); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d %d", s.Mode, s.Uid, s.Gid, s.Mtim.Sec)
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" links %d %s", s.Nlink, store.DigestOf(data).Short())
		case unix.S_IFLNK:
			to, _ := os.Readlink(p)
			line += " -> " + to
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" %d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
		}
		if s.Mode&unix.S_IFMT != unix.S_IFLNK {
			m, err := readXattrs(p)
			if err != nil {
				return err
			}
			line += fmt.Sprint(" ", m)
		}
		files[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestUnpackAsTar compares what Unpack makes with what GNU tar extracts.
func TestUnpackAsTar(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files their owners")
	}
	st := storetest.Alone(t)
	seeds := uint64(10)
	if tooltest.Less(t) {
		seeds = 2
	}
	for seed := range seeds {
		d := write(t, st, randomTree(rand.New(rand.NewPCG(seed, 9))), Options{Compression: None})
		ours, theirs := t.TempDir(), t.TempDir()
		if err := Unpack(t.Context(), st, d, ours, UnpackOptions{Owners: true}); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tooltest.Path(t, "tar"), "--extract", "--same-owner", "--same-permissions", "--xattrs", "--xattrs-include=*",
			"--delay-directory-restore", "--directory", theirs)
		cmd.Stdin = bytes.NewReader(rawTar(t, st, d))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
		if diff := cmp.Diff(snapshot(t, theirs), snapshot(t, ours)); diff != "" {
			t.Fatalf("seed %d: tar (-) and Unpack (+) differ:\n%s", seed, diff)
		}
	}
}

// GNU tar makes a file that it is told twice a link to itself, and extracts the file. So does a layer that is a tar as it came, and one that is
// made of it.
func TestLinkToItself(t *testing.T) {
	src := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := exec.Command(tooltest.Path(t, "tar"), "--create", "--directory", src, "--owner=0", "--group=0", "a", "b", "a", "./a").Output()
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.Alone(t)
	blob, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	came := Descriptor{Digest: blob}
	ix, err := OpenIndex(t.Context(), st, came)
	if err != nil {
		t.Fatal(err)
	}
	if own := slices.IndexFunc(ix.Entries, func(e IndexEntry) bool { return e.Type == HardLink && e.Path == e.Link }); own < 0 {
		t.Fatalf("this tar links nothing to itself: %+v", ix.Entries)
	}
	made, err := FromTar(t.Context(), st, bytes.NewReader(data), Options{Compression: None})
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]Descriptor{"as it came": came, "made of it": made} {
		to := t.TempDir()
		if err := Unpack(t.Context(), st, d, to, UnpackOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, want := snapshot(t, to), snapshot(t, src)
		for _, file := range []string{"a", "b"} {
			_, have, _ := strings.Cut(got[file], "links")
			if _, wanted, _ := strings.Cut(want[file], "links"); have != wanted {
				t.Errorf("%s: %s has links %s, want links %s", name, file, have, wanted)
			}
		}
	}
}

// TestUnpackUnprivileged runs itself as a user without rights.
func TestUnpackUnprivileged(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	st := storetest.Alone(t)
	private := file("secret/file", "data")
	private.Mode = 0
	suid := file("secret/suid", "data")
	suid.Mode = 0o6755
	closed := dir("secret")
	closed.Mode = 0
	device := object{Entry: Entry{Path: "secret/null", Type: Char, Major: 1, Minor: 3}}
	attr := file("zz", "x")
	attr.Xattrs = map[string]string{capability: "\x01\x00\x00\x02", "user.overlay.redirect": "/etc", "trusted.overlay.opaque": "y", "user.ok": "1"}
	d := write(t, st, []object{closed, file("secret/.wh.gone", ""), private, device, suid, attr}, Options{})
	to := t.TempDir()
	if err := Unpack(t.Context(), st, d, to, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]uint32{"secret": 0o40700, "secret/file": 0o100400, "secret/suid": 0o106755, "secret/gone": unix.S_IFCHR, "zz": 0o100644} {
		var s unix.Stat_t
		if err := unix.Lstat(filepath.Join(to, p), &s); err != nil {
			t.Errorf("%s: %v", p, err)
		} else if s.Mode != want && s.Mode&unix.S_IFMT != unix.S_IFCHR {
			t.Errorf("%s: mode %o, want %o", p, s.Mode, want)
		} else if s.Mode&unix.S_IFMT == unix.S_IFCHR && s.Rdev != 0 {
			t.Errorf("%s: device %x", p, s.Rdev)
		}
	}
	if _, err := os.Lstat(filepath.Join(to, "secret/null")); err == nil {
		t.Error("a device was made")
	}
	attrs, err := readXattrs(filepath.Join(to, "zz"))
	if err != nil {
		t.Fatal(err)
	}
	if attrs[capability] != "" {
		t.Errorf("attributes %v", attrs)
	}
	if n, err := unix.Lgetxattr(filepath.Join(to, "zz"), "user.overlay.redirect", nil); err == nil {
		t.Errorf("overlay's own attribute was set by the layer (%d bytes)", n)
	}
}

// asNobody runs the calling test again as a user without rights.
func asNobody(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "unprivileged-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	tmp := filepath.Join(dir, "tmp")
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, nobody, nobody)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// TestUnpackWhiteouts checks the overlay form of whiteouts, wherever in the layer they stand.
func TestUnpackWhiteouts(t *testing.T) {
	st := storetest.Alone(t)
	objects := []object{
		file(".wh.gone", ""), file(".wh..wh.plnk", ""), file(".wh.again", ""), file(".wh.file", ""),
		dir("again"), file("again/x", "x"), file("file", "stays"),
		dir("opaque"), file("opaque/.wh..wh..opq", ""), file("opaque/x", "x"),
		file("opaque/.wh.y", ""), file("implied/.wh..wh..opq", ""),
	}
	slicesSort(objects)
	d := write(t, st, objects, Options{})
	to := t.TempDir()
	if err := Unpack(t.Context(), st, d, to, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Lstat(filepath.Join(to, "gone"), &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFCHR || s.Rdev != 0 {
		t.Errorf("gone: mode %o, device %x, %v", s.Mode, s.Rdev, err)
	}
	value := make([]byte, 10)
	for _, p := range []string{"again", "opaque", "implied"} {
		if n, err := unix.Lgetxattr(filepath.Join(to, p), "user.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
			t.Errorf("%s is not opaque: %v", p, err)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(to, "file")); string(data) != "stays" {
		t.Error("a whiteout took a file of its own layer")
	}
	if _, err := os.Lstat(filepath.Join(to, "opaque/y")); err == nil {
		t.Error("a whiteout in an opaque directory shows as a name there")
	}
	if left, _ := filepath.Glob(filepath.Join(to, ".wh*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func slicesSort(objects []object) {
	for i := range objects {
		for j := i; j > 0 && Less(objects[j].Path, objects[j-1].Path); j-- {
			objects[j], objects[j-1] = objects[j-1], objects[j]
		}
	}
}

// TestUnpackHostile unpacks tars that try to write or reach outside.
func TestUnpackHostile(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(kind byte, name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Linkname: to}
	}
	tars := map[string][]byte{
		"file through symlink":      makeTar(t, link(tar.TypeSymlink, "d", outside), tar.Header{Name: "d/victim", Uname: "x"}),
		"two symlinks":              makeTar(t, link(tar.TypeSymlink, "a", "."), link(tar.TypeSymlink, "a/b", outside), tar.Header{Name: "a/b/victim", Uname: "x"}),
		"onto a symlink":            makeTar(t, link(tar.TypeSymlink, "d", victim), tar.Header{Name: "d", Uname: "x"}),
		"hard link to a symlink":    makeTar(t, link(tar.TypeSymlink, "d", victim), link(tar.TypeLink, "e", "d"), tar.Header{Name: "e", Uname: "x"}),
		"hard link through symlink": makeTar(t, link(tar.TypeSymlink, "d", outside), link(tar.TypeLink, "e", "d/victim")),
		"directory onto a symlink":  makeTar(t, link(tar.TypeSymlink, "d", outside), tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o777}),
		"whiteout through symlink":  makeTar(t, link(tar.TypeSymlink, "d", outside), tar.Header{Name: "d/.wh.victim"}),
		"opaque through symlink":    makeTar(t, link(tar.TypeSymlink, "d", outside), tar.Header{Name: "d/.wh..wh..opq"}),
		"whiteout of dots":          makeTar(t, tar.Header{Name: ".wh..."}, tar.Header{Name: ".wh.."}, tar.Header{Name: ".wh."}),
		"directory replaced late": makeTar(t, tar.Header{Name: "d/x/y", Uname: "x"}, link(tar.TypeSymlink, "d", outside),
			tar.Header{Name: "d/victim", Uname: "x"}, link(tar.TypeSymlink, "d", outside)),
	}
	for name, data := range hostileTars(t) {
		tars[name] = data
	}
	before := snapshot(t, outside)
	for name, data := range tars {
		t.Run(name, func(t *testing.T) {
			st := storetest.Alone(t)
			blob, err := st.PutBlob(data)
			if err != nil {
				t.Fatal(err)
			}
			parent := t.TempDir()
			to := filepath.Join(parent, "to")
			if err := os.Mkdir(to, 0o755); err != nil {
				t.Fatal(err)
			}
			err = Unpack(t.Context(), st, Descriptor{Digest: blob}, to, UnpackOptions{Owners: os.Getuid() == 0})
			t.Logf("error: %v", err)
			if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
				t.Errorf("something outside changed:\n%s", diff)
			}
			if files, _ := os.ReadDir(parent); len(files) != 1 {
				t.Errorf("something appeared beside the directory: %v", files)
			}
		})
	}
}

// BenchmarkUnpack unpacks 20,000 small files.
func BenchmarkUnpack(b *testing.B) {
	st := storetest.Alone(b)
	var objects []object
	for i := range 100 {
		objects = append(objects, dir(fmt.Sprintf("d%03d", i)))
		for j := range 200 {
			objects = append(objects, file(fmt.Sprintf("d%03d/f%03d", i, j), strings.Repeat("x", j*20)))
		}
	}
	d := write(b, st, objects, Options{})
	for b.Loop() {
		if err := Unpack(b.Context(), st, d, b.TempDir(), UnpackOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(objects))*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}
