package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// stepImage is an image that steps run on.
type stepImage struct {
	st     *store.Store
	layers []layer.Descriptor
}

// stepBase makes the image that the steps of these tests run on: busybox, and below /d something of every kind.
func stepBase(t testing.TB) stepImage {
	t.Helper()
	st := storetest.New(t)
	programs, err := layer.FromDir(t.Context(), st, busyboxLayer(t), layer.Options{Compression: layer.None})
	if err != nil {
		t.Fatal(err)
	}
	w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: layer.None})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, e := range stepFiles() {
		content := []byte(e.Path)
		if e.Type == layer.Regular {
			e.Size = int64(len(content))
		}
		if err := w.Add(e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }); err != nil {
			t.Fatal(err)
		}
	}
	data, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return stepImage{st, []layer.Descriptor{programs, data}}
}

// netRaw is the capability of ping: CAP_NET_RAW, permitted and effective (capabilities(7), revision 2).
const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// stepFiles are the files of the base; the content of each is its path.
func stepFiles() []layer.Entry {
	old := time.Unix(1_500_000_000, 0)
	files := []layer.Entry{
		{Path: "d", Type: layer.Dir, Mode: 0o755},
		{Path: "d/cap", Mode: 0o755, Xattrs: map[string]string{"security.capability": netRaw}},
		{Path: "d/closed", Mode: 0},
		{Path: "d/empty", Type: layer.Dir, Mode: 0o700},
		{Path: "d/fifo", Type: layer.Fifo, Mode: 0o600},
		{Path: "d/file", Mode: 0o644},
		{Path: "d/link", Type: layer.Symlink, Link: "file"},
		{Path: "d/names", Type: layer.Dir, Mode: 0o755},
		{Path: "d/names/one", Mode: 0o644},
		{Path: "d/names/two", Type: layer.HardLink, Link: "d/names/one"},
		{Path: "d/open", Type: layer.Dir, Mode: 0o1777},
		{Path: "d/owned", Mode: 0o640, UID: 33, GID: 44},
		{Path: "d/setuid", Mode: 0o4755},
		{Path: "d/sub", Type: layer.Dir, Mode: 0o750, UID: 33, GID: 33, Xattrs: map[string]string{"user.dir": "d"}},
		{Path: "d/sub/deep", Type: layer.Dir, Mode: 0o755},
		{Path: "d/sub/deep/x", Mode: 0o644},
		{Path: "d/sub/deep/y", Mode: 0o644},
		{Path: "d/sub/file", Mode: 0o600, UID: 33},
		{Path: "d/way", Type: layer.Symlink, Link: "/d/sub"},
		{Path: "d/xattr", Mode: 0o644, Xattrs: map[string]string{"user.k": "v"}},
		{Path: strings.Repeat("n", 255), Mode: 0o644},
	}
	for i := range files {
		files[i].ModTime = old
	}
	return files
}

// options are those of a step.
func (im stepImage) options(t testing.TB, args ...string) Options {
	t.Helper()
	dirs, err := Layers(t.Context(), im.st, im.layers)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Cleanup(func() { store.RemoveAll(dir) })
	return Options{Layers: dirs, Args: args, Env: []string{"PATH=/bin"}, UpperDir: dir}
}

// layer makes a layer of what a command changed.
func (im stepImage) layer(t testing.TB, o Options, started time.Time) layer.Descriptor {
	t.Helper()
	d, err := layer.FromUpper(t.Context(), im.st, filepath.Join(o.UpperDir, Upper), im.upperOptions(t, started))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (im stepImage) upperOptions(t testing.TB, started time.Time) layer.UpperOptions {
	t.Helper()
	return layer.UpperOptions{
		Options: layer.Options{Compression: layer.None},
		Base:    im.tree(t).Base(), Unpacked: Unpacked(), Started: started,
	}
}

func (im stepImage) tree(t testing.TB, more ...layer.Descriptor) *image.Tree {
	t.Helper()
	tree, err := image.NewTree(t.Context(), im.st, append(slices.Clone(im.layers), more...))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// entries lists the entries of a layer, one line each.
func (im stepImage) entries(t testing.TB, d layer.Descriptor) []string {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), im.st, d)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, e := range ix.Entries {
		line := e.Path
		switch e.Type {
		case layer.Dir:
			line += "/"
		case layer.Symlink:
			line += " -> " + e.Link
		case layer.HardLink:
			line += " = " + e.Link
		}
		if layer.WhitesOut(e.Path) == "" && path.Base(e.Path) != layer.WhiteoutOpaque && e.Type != layer.Symlink && e.Type != layer.HardLink {
			line += fmt.Sprintf(" %o", e.Mode)
		}
		if e.UID != 0 || e.GID != 0 {
			line += fmt.Sprintf(" %d:%d", e.UID, e.GID)
		}
		for _, k := range slices.Sorted(maps.Keys(e.Xattrs)) {
			line += " " + k
		}
		lines = append(lines, line)
	}
	return lines
}

// stepTests are scripts, and the layers that they make.
var stepTests = []struct {
	name, script string
	want         []string
}{
	{"nothing", "cat /d/file; ls -R /d", nil},
	{"create", "mkdir -p /new/dir; echo x >/new/dir/f; echo y >/d/sub/f", []string{
		"d/ 755", "d/sub/ 750 33:33 user.dir", "d/sub/f 644", "new/ 755", "new/dir/ 755", "new/dir/f 644",
	}},
	{"modify", "echo more >>/d/file", []string{"d/ 755", "d/file 644"}},
	{"modify what belongs to others", "echo more >>/d/owned; echo more >>/d/setuid; echo more >>/d/sub/file; echo more >>/d/cap; echo more >>/d/closed", []string{
		"d/ 755", "d/cap 755", "d/closed 0", "d/owned 640 33:44", "d/setuid 4755", "d/sub/ 750 33:33 user.dir", "d/sub/file 600 33:0",
	}},
	{"replace what belongs to others", "rm /d/owned /d/setuid; echo x >/d/owned; cp /d/file /d/setuid; chmod 755 /d/setuid", []string{
		"d/ 755", "d/owned 644", "d/setuid 755",
	}},
	{"delete", "rm /d/file /d/link /d/fifo; rm -r /d/sub /d/empty /n*", []string{
		".wh." + strings.Repeat("n", 255), "d/ 755", "d/.wh.empty", "d/.wh.fifo", "d/.wh.file", "d/.wh.link", "d/.wh.sub",
	}},
	{"delete what was made", "mkdir /new; echo x >/new/x; rm -r /new", nil},
	{"touch", "touch /d/file /d/sub /d/names/one /d/link /d/closed /d/owned /d/setuid /d/cap /d; touch -d 2001-01-01 /d/xattr", []string{
		"d/ 755", "d/cap 755 security.capability", "d/closed 0", "d/file 644", "d/names/ 755", "d/names/one 644", "d/owned 640 33:44", "d/setuid 4755",
		"d/sub/ 750 33:33 user.dir", "d/xattr 644 user.k",
	}},
	{"touch and put back", "touch /d/file; touch -d @1500000000 /d/file; cp -p /d/xattr /d/open/x; mv /d/open/x /d/open/y; rm /d/open/y", nil},
	{"there and back", "chmod 600 /d/file; chmod 644 /d/file; chmod 700 /d; chmod 755 /d; mv /d/xattr /d/x; mv /d/x /d/xattr; chmod 777 /; chmod 755 /", []string{"d/ 755"}},
	{"write again", "cp -p /d/file /tmp/f; rm /d/file; cp /tmp/f /d/file; rm /tmp/f /d/link; ln -s file /d/link", []string{
		"d/ 755", "d/file 644", "d/link -> file", "tmp/ 755",
	}},
	{"file to directory", "rm /d/file; mkdir /d/file; echo x >/d/file/x", []string{"d/ 755", "d/file/ 755", "d/file/x 644"}},
	{"file to directory and back", "rm /d/file; mkdir /d/file; echo x >/d/file/x; rm -r /d/file; printf d/file >/d/file", []string{"d/ 755", "d/file 644"}},
	{"directory to file", "rm -r /d/sub; echo x >/d/sub", []string{"d/ 755", "d/sub 644"}},
	{"directory to link and back", "mv /d/sub /tmp/s; ln -s names /d/sub; rm /d/sub; mv /tmp/s /d/sub", []string{
		// The root of a user namespace cannot give the directory back to its owner; a directory that is new hides the old one.
		"d/ 755", "d/sub/ 750 OWNER", "d/sub/.wh..wh..opq", "d/sub/deep/ 755", "d/sub/deep/x 644", "d/sub/deep/y 644", "d/sub/file 600 FILE",
		"tmp/ 755",
	}},
	{"link to directory", "rm /d/way; mkdir /d/way; echo x >/d/way/file", []string{"d/ 755", "d/way/ 755", "d/way/file 644"}},
	{"opaque", "rm -r /d/sub; mkdir /d/sub; echo x >'/d/sub/!first'; echo x >/d/sub/deep", []string{
		"d/ 755", "d/sub/ 755", "d/sub/!first 644", "d/sub/.wh..wh..opq", "d/sub/deep 644",
	}},
	{"rename a new directory", "mkdir -p /new/a; echo x >/new/a/f; mv /new/a /d/empty/b; mv /new /d/new", []string{
		"d/ 755", "d/empty/ 700", "d/empty/b/ 755", "d/empty/b/f 644", "d/new/ 755",
	}},
	{"rename a file", "mv /d/file /d/other", []string{"d/ 755", "d/.wh.file", "d/other 644"}},
	{"hard links", "ln /d/file /d/a; echo x >/new; ln /new /d/z; ln -s q /d/s; echo y >/d/sub/l; ln /d/sub/l /d/sub/deep/l", []string{
		"d/ 755", "d/a 644", "d/file = d/a", "d/s -> q", "d/sub/ 750 33:33 user.dir", "d/sub/deep/ 755", "d/sub/deep/l 644", "d/sub/l = d/sub/deep/l",
		"d/z 644", "new = d/z",
	}},
	{"hard link to what belongs to another", "ln /d/owned /d/a", []string{"d/ 755", "d/a 640 33:44", "d/owned = d/a 33:44"}},
	{"hard links made again", "rm /d/names/two; ln /d/names/one /d/names/two", []string{"d/ 755", "d/names/ 755"}},
	{"modify one of two names", "echo x >>/d/names/one", []string{"d/ 755", "d/names/ 755", "d/names/one 644"}},
	{"chmod", "chmod 600 /d/file; chmod 1770 /d/empty; chmod u+s,g+s /d/names/one; chmod 700 /d/setuid", []string{
		"d/ 755", "d/empty/ 1770", "d/file 600", "d/names/ 755", "d/names/one 6644", "d/setuid 700",
	}},
	{"move what belongs to others", "mv /d/owned /d/setuid /d/cap /d/closed /d/sub/file /d/empty; rm /d/file; echo x >/d/file; mv /d/empty/setuid /d/open", []string{
		"d/ 755", "d/.wh.cap", "d/.wh.closed", "d/.wh.owned", "d/.wh.setuid", "d/empty/ 700", "d/empty/cap 755 security.capability",
		"d/empty/closed 0", "d/empty/file 600 33:0", "d/empty/owned 640 33:44", "d/file 644", "d/open/ 1777", "d/open/setuid 4755",
		"d/sub/ 750 33:33 user.dir", "d/sub/.wh.file",
	}},
	{"clear what belongs to others", "for f in owned cap closed setuid sub/file; do : >/d/$f; done", []string{
		"d/ 755", "d/cap 755", "d/closed 0", "d/owned 640 33:44", "d/setuid 4755", "d/sub/ 750 33:33 user.dir", "d/sub/file 600 33:0",
	}},
	{"no setuid", "chmod a-s /d/setuid; find /d -perm /6000", []string{"d/ 755", "d/setuid 755"}},
	{"chmod of the root", "chmod 1755 /", []string{"./ 1755"}},
	{"closed directories", "mkdir -p /a/b; echo x >/a/b/c; chmod 0 /a/b/c /a/b /a /d/file /d/sub", []string{
		"a/ 0", "a/b/ 0", "a/b/c 0", "d/ 755", "d/file 0", "d/sub/ 0 33:33 user.dir",
	}},
	{"sparse", "dd if=/dev/zero of=/hole bs=1 count=1 seek=5000000 2>/dev/null", []string{"hole 644"}},
	{"special files", "busybox mkfifo /pipe; rm /d/file; busybox timeout 1 busybox nc -l -p 9 local:/d/file 2>/dev/null || true", nil},
	{"names", "touch 'a b' \"$(printf 'new\\nline')\" \"$(printf '\\377\\376')\" '.whx' 'ünï' -- -x 'back\\slash'; mkdir '...' '.w'", []string{
		"-x 644", ".../ 755", ".w/ 755", ".whx 644", "a b 644", "back\\slash 644", "new\nline 644", "ünï 644", "\xff\xfe 644",
	}},
	{"mount points", "umount /data 2>/dev/null || true; ls /etc/resolv.conf /data /one /made/on/the/way /proc/1 /sys /dev >/dev/null", nil},
	{"change in a directory that was made", "pwd; echo x >here", []string{"made/ 755", "made/on/ 755", "made/on/the/ 755", "made/on/the/way/ 755", "made/on/the/way/here 644"}},
}

func TestSteps(t *testing.T) {
	base := stepBase(t)
	owner, file := "33:33", "33:0"
	if !ownsFiles() {
		owner, file = "", ""
	}
	for _, test := range stepTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := base.options(t, "sh", "-ec", test.script)
			o.Binds = []Bind{{Source: t.TempDir(), Target: "/data"}, {Source: "/etc/passwd", Target: "/one"}}
			o.Tmpfs = []string{"/memory/here"}
			if test.name == "mount points" || strings.HasPrefix(test.name, "change in") {
				o.WorkDir = "/made/on/the/way"
			}
			started := time.Now()
			if code, _ := run(t, o); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			wantNames(t, o.UpperDir, Upper)
			d := base.layer(t, o, started)
			if test.name == "special files" {
				return // what socket there is depends on busybox
			}
			want := []string{}
			for _, line := range test.want {
				line = strings.ReplaceAll(strings.ReplaceAll(line, "OWNER", owner), "FILE", file)
				want = append(want, strings.TrimSpace(strings.ReplaceAll(line, "  ", " ")))
			}
			if diff := cmp.Diff(want, base.entries(t, d)); diff != "" {
				t.Errorf("layer (-want +got):\n%s", diff)
			}
			if again := base.layer(t, o, started); again != d {
				t.Errorf("the second time another layer: %v, %v", d, again)
			}
		})
	}
}

func wantNames(t testing.TB, dir string, want ...string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%s holds %v (%v), want %v", dir, names, err, want)
	}
}

// A step that changes the same files gives the same layer whoever runs it, and whatever the umask and the time are.
func TestStepIsDeterministic(t *testing.T) {
	base := stepBase(t)
	const script = `mkdir -p /opt/x/y; echo 1 >/opt/x/y/1; ln /opt/x/y/1 /opt/x/2; ln -s /opt /o; rm /d/file; rm -r /d/sub; mkdir /d/sub; chmod 700 /d/sub
		chmod 2755 /opt/x; chmod 4711 /opt/x/2; echo more >>/d/names/one; echo x >>/d/owned; touch -d '2001-02-03 04:05:06' /opt/x/y /d/owned`
	const want = "sha256:4f67825f590582c7dffc31d4cb0f24697395a57ae2df806651692de32bd0b6c7"
	for _, umask := range []int{0, 0o777} {
		old := unix.Umask(umask)
		o := base.options(t, "sh", "-ec", script)
		unix.Umask(old)
		if err := os.Chmod(o.UpperDir, 0o755); err != nil {
			t.Fatal(err)
		}
		unix.Umask(umask &^ 0o700)
		started := time.Now()
		code, _ := run(t, o)
		unix.Umask(old)
		if code != 0 {
			t.Fatalf("exit code %d", code)
		}
		if d := base.layer(t, o, started); string(d.DiffID) != want {
			t.Errorf("umask %#o: layer %s, want %s:\n%s", umask, d.DiffID, want, strings.Join(base.entries(t, d), "\n"))
		}
	}
}

// What a step gives to other users is theirs in the layer, whether root runs it or somebody else.
func TestStepGivesFilesAway(t *testing.T) {
	base := stepBase(t)
	var owners rootemu.Owners
	o := base.options(t, "sh", "-ec", `umask 022; mkdir -p /srv/mail; echo x >/srv/mail/box; busybox chown -R 7:8 /srv; chmod 2750 /srv/mail; ln /srv/mail/box /srv/box
		busybox chown -h 5:6 /d/link; busybox mknod /null c 1 3; chmod 666 /null; busybox chown 0:33 /d/file; chmod 4755 /d/file; mv /d/file /d/moved
		busybox chown 9 /d/owned; busybox chown 33:44 /d/owned; echo y >>/d/sub/deep/x; busybox chown 1:1 /d/sub/file /d/setuid`)
	o.Owners = &owners
	started := time.Now()
	if code, _ := run(t, o); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	up := base.upperOptions(t, started)
	up.Owner = Owner(&owners)
	d, err := layer.FromUpper(t.Context(), base.st, filepath.Join(o.UpperDir, Upper), up)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"d/ 755", "d/.wh.file", "d/link -> file 5:6", "d/moved 4755 0:33", "d/setuid 755 1:1", "d/sub/ 750 33:33 user.dir", "d/sub/deep/ 755",
		"d/sub/deep/x 644", "d/sub/file 600 1:1", "null 666", "srv/ 755 7:8", "srv/box 644 7:8", "srv/mail/ 2750 7:8", "srv/mail/box = srv/box 7:8",
	}
	if diff := cmp.Diff(want, base.entries(t, d)); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	if n, err := base.tree(t, d).Lstat("null"); err != nil || n.Type != layer.Char || n.Major != 1 || n.Minor != 3 {
		t.Errorf("the device is %+v, %v", n, err)
	}
	const same = "sha256:11efb9f2fabf8ebe2ac2e50ead161a3ebca43f777a25731c262d031888d1292e"
	if string(d.DiffID) != same {
		t.Errorf("layer %s, want %s, whoever runs the step", d.DiffID, same)
	}
}

// seen is a file as a process in the sandbox sees it, or as a tree has it.
type seen struct {
	Path   string
	Mode   uint32 // as st_mode
	Size   int64
	Sum    string
	Link   string
	First  string // the first name of a file that has several
	Xattrs map[string]string
}

// comparable takes from modes what an ordinary user's sandbox does not show of the files of an image, and what means
// nothing; the directories that programs are looked up in are left out, as other programs may be mounted there.
func comparable(list []seen) []seen {
	for i := range list {
		mode := &list[i].Mode
		switch *mode & unix.S_IFMT {
		case unix.S_IFLNK:
			*mode |= 0o777
		case unix.S_IFDIR:
			if !ownsFiles() {
				*mode = *mode&^0o6000 | 0o700
			}
		default:
			if !ownsFiles() {
				*mode = *mode&^0o6000 | 0o400
			}
		}
	}
	return slices.DeleteFunc(list, func(s seen) bool { return s.Path == "usr" || s.Path == "usr/bin" })
}

// seenOf lists a tree.
func seenOf(t *testing.T, tree *image.Tree) []seen {
	t.Helper()
	kinds := map[layer.Type]uint32{
		layer.Regular: unix.S_IFREG, layer.Dir: unix.S_IFDIR, layer.Symlink: unix.S_IFLNK, layer.Fifo: unix.S_IFIFO,
		layer.Char: unix.S_IFCHR, layer.Block: unix.S_IFBLK,
	}
	var all []seen
	first := map[int]string{}
	err := tree.Walk(func(n *image.Node) error {
		s := seen{Path: n.Path, Mode: kinds[n.Type] | n.Mode, Link: n.Link, Xattrs: map[string]string{}}
		for k, v := range n.Xattrs {
			if strings.HasPrefix(k, "user.") {
				s.Xattrs[k] = v
			}
		}
		if n.Type == layer.Regular {
			r, err := tree.Open(n)
			if err != nil {
				return err
			}
			defer r.Close()
			if s.Sum, s.Size, err = sumOf(r); err != nil {
				return err
			}
			if _, ok := first[n.Inode]; !ok {
				first[n.Inode] = n.Path
			}
			s.First = first[n.Inode]
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sumOf(r io.Reader) (string, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), n, err
}

// helperWalk lists the file system that this process sees, without what is mounted in it, after the changes that
// changesEnv asks for.
func helperWalk() int {
	if seed := os.Getenv(changesEnv); seed != "" {
		var n uint64
		fmt.Sscan(seed, &n)
		change(rand.New(rand.NewPCG(n, 11)))
	}
	list, err := lookAround("/")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := gob.NewEncoder(os.Stdout).Encode(list); err != nil { // names need not be UTF-8, as JSON wants them
		return 1
	}
	return 0
}

func lookAround(root string) ([]seen, error) {
	var top unix.Stat_t
	if err := unix.Stat(root, &top); err != nil {
		return nil, err
	}
	var all []seen
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		if st.Dev != top.Dev { // a mount
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		s, err := look(p, &st)
		if err != nil {
			return err
		}
		s.Path = strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			if _, ok := first[st.Ino]; !ok {
				first[st.Ino] = s.Path
			}
			s.First = first[st.Ino]
		}
		all = append(all, s)
		return nil
	})
	slices.SortFunc(all, func(a, b seen) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	return all, err
}

func look(p string, st *unix.Stat_t) (seen, error) {
	s := seen{Mode: st.Mode, Xattrs: map[string]string{}}
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return s, err
	}
	for _, k := range strings.FieldsFunc(string(list[:max(n, 0)]), func(r rune) bool { return r == 0 }) {
		value := make([]byte, 1024)
		if n, err := unix.Lgetxattr(p, k, value); err == nil && strings.HasPrefix(k, "user.") && !strings.HasPrefix(k, "user.overlay.") &&
			!strings.HasPrefix(k, "user.sconce.") { // which only tells what a file was
			s.Xattrs[k] = string(value[:n])
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		s.Link, err = os.Readlink(p)
		return s, err
	case unix.S_IFREG:
		f, err := os.Open(p)
		if err != nil {
			return s, err
		}
		defer f.Close()
		s.Sum, s.Size, err = sumOf(f)
		return s, err
	}
	return s, nil
}

// change changes files at random, over few names so that changes meet.
func change(r *rand.Rand) {
	names := []string{"sub", "deep", "file", "names", "one", "x", "ü"}
	at := func() string {
		p := "/d"
		for range 1 + r.IntN(3) {
			p = path.Join(p, names[r.IntN(len(names))])
		}
		return p
	}
	write := func(p string, content []byte) error {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK, 0o644) // nobody reads from fifos
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write(content)
		return err
	}
	ops := []func(p string) error{
		func(p string) error { return write(p, fmt.Append(nil, r.IntN(3))) },
		func(p string) error { return write(p, []byte(p[1:])) },
		os.Remove,
		func(p string) error {
			if above, err := os.Stat(path.Dir(p)); err != nil || !above.IsDir() { // os.RemoveAll would open a fifo, and wait
				return err
			}
			return os.RemoveAll(p)
		},
		func(p string) error { return os.MkdirAll(p, 0o755) },
		func(p string) error { return os.Rename(p, at()) },
		func(p string) error { return os.Rename(p, at()) },
		func(p string) error { return os.Link(p, at()) },
		func(p string) error { return os.Symlink(path.Base(at()), p) },
		func(p string) error { return os.Chmod(p, fs.FileMode([]int{0o644, 0o755, 0, 0o600}[r.IntN(4)])) },
		func(p string) error { return os.Truncate(p, int64(r.IntN(3))*70_000) },
		func(p string) error { return unix.Setxattr(p, "user.k", []byte{'a' + byte(r.IntN(3))}, 0) },
		func(p string) error { return unix.Removexattr(p, "user.k") },
		func(p string) error { return os.Chtimes(p, time.Now(), time.Unix(int64(r.IntN(1e9)), 0)) },
		func(p string) error { return unix.Mkfifo(p, 0o600) },
		func(p string) error {
			os.Remove(p)
			return unix.Mknod(p, unix.S_IFSOCK|0o600, 0)
		},
	}
	for range 60 {
		_ = ops[r.IntN(len(ops))](at()) // many are refused, which is as good
	}
	// Sockets are not kept.
	filepath.WalkDir("/d", func(p string, d fs.DirEntry, _ error) error {
		if d != nil && d.Type() == fs.ModeSocket {
			os.Remove(p)
		}
		return nil
	})
}

const changesEnv = "SCONCE_TEST_CHANGES"

// walker adds to options what it takes to run this program in the image.
func walker(t testing.TB, o *Options) {
	t.Helper()
	self := testBinary(t)
	o.Binds = append(o.Binds, Bind{Source: self, Target: "/walker", ReadOnly: true})
	o.Env = append(o.Env, helperEnv+"=walk")
	f, err := elf.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".interp") == nil {
		return
	}
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib"} {
		if _, err := os.Stat(dir); err == nil {
			o.Binds = append(o.Binds, Bind{Source: dir, Target: dir, ReadOnly: true})
		}
	}
}

func runWalker(t testing.TB, o Options) []seen {
	t.Helper()
	code, out := run(t, o)
	var list []seen
	if err := gob.NewDecoder(strings.NewReader(out)).Decode(&list); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %q", code, err, out)
	}
	for i := range list {
		if list[i].Xattrs == nil {
			list[i].Xattrs = map[string]string{} // gob leaves out what is empty
		}
	}
	return comparable(list)
}

// What the step saw at its end is what the image with the new layer has, in the merged tree and in the next sandbox.
func TestLayerIsWhatTheStepSaw(t *testing.T) {
	base := stepBase(t)
	check := func(t *testing.T, o Options) {
		walker(t, &o)
		started := time.Now()
		inside := runWalker(t, o)
		if len(inside) < 10 {
			t.Fatalf("only %d files are seen", len(inside))
		}
		d := base.layer(t, o, started)
		tree := comparable(seenOf(t, base.tree(t, d)))
		// In a user namespace the kernel does not always know names for one file's that it copied up (Linux
		// Documentation/filesystems/overlayfs.rst, "Inode properties").
		links := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".First" }, cmp.Ignore())
		if ownsFiles() {
			links = nil
		}
		if diff := cmp.Diff(inside, tree, links); diff != "" {
			t.Errorf("step (-) and tree (+) differ:\n%s\nlayer:\n%s", diff, strings.Join(base.entries(t, d), "\n"))
		}
		if nextSaw := nextStep(t, base, d); !cmp.Equal(tree, nextSaw) {
			t.Errorf("tree (-) and next step (+) differ:\n%s\nlayer:\n%s", cmp.Diff(tree, nextSaw), strings.Join(base.entries(t, d), "\n"))
		}
		wantUmoci(t, base, d, tree)
	}
	tests, seeds := stepTests, 10
	if tooltest.Less(t) {
		tests, seeds = nil, 3
	}
	for _, test := range tests {
		if strings.Contains(test.name, "mount") || test.name == "special files" || strings.HasPrefix(test.name, "change in") {
			continue
		}
		t.Run(test.name, func(t *testing.T) { check(t, base.options(t, "sh", "-ec", "{ "+test.script+"\n} >&2; exec /walker")) })
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			o := base.options(t, "/walker")
			o.Env = append(o.Env, fmt.Sprint(changesEnv, "=", seed+1))
			check(t, o)
		})
	}
}

// nextStep lists what a step on top of the layer sees.
func nextStep(t *testing.T, base stepImage, d layer.Descriptor) []seen {
	t.Helper()
	o := stepImage{base.st, append(slices.Clone(base.layers), d)}.options(t, "/walker")
	walker(t, &o)
	return runWalker(t, o)
}

// wantUmoci unpacks an image with umoci, which only root can do as it should be, and compares.
func wantUmoci(t *testing.T, base stepImage, d layer.Descriptor, want []seen) {
	t.Helper()
	if !ownsFiles() || tooltest.Less(t) {
		return
	}
	umoci := tooltest.Path(t, "umoci")
	dir := t.TempDir()
	var layers []v1.Layer
	for _, l := range append(slices.Clone(base.layers), d) {
		blob, err := base.st.ReadBlob(l.Digest, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, static.NewLayer(blob, types.MediaType(l.MediaType)))
	}
	im, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		t.Fatal(err)
	}
	at, err := layout.Write(filepath.Join(dir, "oci"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := at.AppendImage(im, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "x"})); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	if out, err := exec.Command(umoci, "raw", "unpack", "--image", filepath.Join(dir, "oci")+":x", to).CombinedOutput(); err != nil {
		t.Fatalf("umoci: %v\n%s", err, out)
	}
	got, err := lookAround(to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, comparable(got)); diff != "" {
		t.Errorf("tree (-) and umoci (+) differ:\n%s", diff)
	}
}

// A step that was interrupted, or never started, leaves nothing.
func TestInterruptedStepLeavesNothing(t *testing.T) {
	base := stepBase(t)
	o := base.options(t, "no-such-command")
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no error")
	}
	wantNames(t, o.UpperDir)

	ctx, cancel := context.WithCancel(t.Context())
	o = base.options(t, "sh", "-c", "mkdir -p /a/b; touch /a/b/c; chmod 0 /a/b /a /d; echo ready; sleep 1000")
	out := &notifyingWriter{told: make(chan struct{})}
	o.Stdout = out
	go func() {
		<-out.told
		cancel()
	}()
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	wantNames(t, o.UpperDir)
}

// A caller that is killed can remove nothing; whoever comes next can.
func TestKilledStepCanBeRemoved(t *testing.T) {
	base := stepBase(t)
	o := base.options(t, "sh", "-c", "mkdir -p /a/b; touch /a/b/c; chmod 0 /a/b /a /d; echo ready; sleep 1000")
	cmd := helperCommand(t, "run", o)
	startHelper(t, cmd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	childtest.Eventually(t, "removal", func() bool {
		_, err := os.Stat(o.UpperDir)
		return errors.Is(err, fs.ErrNotExist) || store.RemoveAll(o.UpperDir) == nil
	})
}

// A command goes on where another one ended.
func TestStepGoesOn(t *testing.T) {
	base := stepBase(t)
	o := base.options(t, "sh", "-c", "echo x >/x; rm /d/file; exit 3")
	if code, _ := run(t, o); code != 3 {
		t.Errorf("exit code %d", code)
	}
	o.Args = []string{"sh", "-ec", "cat /x; test ! -e /d/file; rm /x"}
	wantOutput(t, o, "x\n")
	wantNames(t, o.UpperDir, Upper)
	if diff := cmp.Diff([]string{"d/ 755", "d/.wh.file"}, base.entries(t, base.layer(t, o, time.Now()))); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestStepMistakes(t *testing.T) {
	base := stepBase(t)
	o := base.options(t, "true")
	o.ScratchDir = t.TempDir()
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("changes go to two places")
	}
	o = base.options(t, "true")
	o.UpperDir = "/proc"
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("changes go to /proc")
	}
	o = base.options(t, "touch", "/d/.wh.file")
	if code, _ := run(t, o); code != 0 {
		t.Fatal(code)
	}
	_, err := layer.FromUpper(t.Context(), base.st, filepath.Join(o.UpperDir, Upper), base.upperOptions(t, time.Now()))
	if err == nil || !strings.Contains(err.Error(), "d/.wh.file") {
		t.Errorf("a file called .wh.file: %v", err)
	}
}

// An overlay cannot hold the upper layer of another one. Root's commands cannot start the inner sandbox: TestAsOrdinaryUser runs this.
func TestNoUpper(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root's commands make no user name spaces")
	}
	base := stepBase(t)
	o := base.options(t, "/walker")
	o.UpperDir = "" // the inner one's lies in memory, or on the overlay
	walker(t, &o)
	o.Env = []string{helperEnv + "=upperhere"}
	code, out := run(t, o)
	if code != 0 || !strings.Contains(out, "no upper layer here") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// helperUpperHere runs a step whose upper layer would be on this process's root.
func helperUpperHere() int {
	if err := os.MkdirAll("/here", 0o755); err != nil {
		panic(err)
	}
	_, err := Run(context.Background(), Options{Layers: []string{"/d"}, Args: []string{"/x"}, UpperDir: "/here"})
	if !errors.Is(err, ErrNoUpper) {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("no upper layer here:", err)
	if left, _ := os.ReadDir("/here"); len(left) > 0 {
		fmt.Println("left:", left)
		return 1
	}
	return 0
}
