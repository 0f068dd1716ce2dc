package execop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Who a file in a mount belongs to is the same for root, who can give it away, and for everybody else; and so are the layers of
// what is copied from there.
func TestOwnersInMounts(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} {
		must(os.Chmod(name, 0o777))
	}
	base, _ := b.run(sh("mkdir -p /seed/d; echo x >/seed/f; chown 5:6 /seed/f; chown -h 7:8 /seed/d"))
	cache := Mount{Kind: Cache, ID: "owned", Target: "/c", UID: 1000, GID: 100, Mode: 0o755}
	seeded := Mount{Kind: Cache, ID: "seeded", Target: "/s", Layers: []layer.Descriptor{base}, Source: "seed", From: "x"}
	tmpfs := Mount{Kind: Tmpfs, Target: "/t", UID: 33, GID: 44, Mode: 0o750}
	bind := Mount{Kind: Bind, Target: "/b", Dir: dir}
	image := Mount{Kind: Bind, Target: "/i", Layers: []layer.Descriptor{base}}
	all := []Mount{cache, seeded, tmpfs, bind, image}

	_, out := b.run(with(sh(`stat -c '%n %u:%g %a' /c /s/f /s/d /t /i/seed/f
for d in /c /t /b /dev/shm /i; do
	cd $d; touch f; chown 11:12 f; mkdir d; chown 13 d; chgrp 14 d; ln -s f l; chown -h 15:16 l; mv f g; ln g h; touch again; chown 9:9 again; rm again; touch again
	chmod 4755 g; stat -c '%n %u:%g %a' g h d l again
done`), all...))
	want := "/c 1000:100 755\n/s/f 5:6 644\n/s/d 7:8 755\n/t 33:44 750\n/i/seed/f 5:6 644\n"
	for range 5 {
		want += "g 11:12 4755\nh 11:12 4755\nd 13:14 755\nl 15:16 777\nagain 0:0 644\n"
	}
	if out != want {
		t.Errorf("in the first step:\n%s\nwant:\n%s", out, want)
	}

	// The next step finds them in the cache, and what it copies from there belongs to the same.
	d, out := b.run(with(sh(`stat -c '%n %u:%g %a' /c /c/g /c/d /c/l /c/again; chown 21:22 /c/d; cp -a /c/g /c/d /c/l /root/; cp -a /s/f /root/seed`), all...))
	if out != "/c 1000:100 755\n/c/g 11:12 4755\n/c/d 13:14 755\n/c/l 15:16 777\n/c/again 0:0 644\n" {
		t.Errorf("in the second step:\n%s", out)
	}
	b.wantOwners(d, map[string]string{"root/g": "11:12", "root/d": "21:22", "root/l": "15:16", "root/seed": "5:6"})

	// Who has become somebody else makes files that are that one's, where that is allowed.
	c := with(sh(`touch /c/mine /dev/shm/mine; stat -c %u:%g /c/mine /dev/shm/mine; touch /t/x 2>/dev/null || echo refused`), all...)
	c.User = "1000:100"
	if _, out := b.run(c); out != "1000:100\n1000:100\nrefused\n" {
		t.Errorf("as another user:\n%s", out)
	}
	if _, out := b.run(with(sh("stat -c %u:%g /c/mine /c/d"), cache)); out != "1000:100\n21:22\n" {
		t.Errorf("in the last step:\n%s", out)
	}
}

// The options of mounts say who the files in them belong to.
func TestOwnersOfMounts(t *testing.T) {
	b := newBench(t)
	b.Secrets = map[string]func() ([]byte, error){"token": func() ([]byte, error) { return []byte("x"), nil }}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b.SSH = map[string]string{"default": socket}
	_, out := b.run(with(sh("stat -c '%u:%g %a' /run/secrets/token $SSH_AUTH_SOCK /t"),
		Mount{Kind: Secret, ID: "token", UID: 1, GID: 2, Mode: 0o440}, Mount{Kind: SSH, UID: 3, GID: 4}, Mount{Kind: Tmpfs, Target: "/t", UID: 5, GID: 6}))
	if out != "1:2 440\n3:4 600\n5:6 1777\n" {
		t.Errorf("output %q", out)
	}
}

// What is made in a mount is copied from there as it is, devices and pipes included: into the same layer, byte for byte, for root and
// for everybody else.
func TestDevicesInMounts(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} {
		must(os.Chmod(name, 0o777))
	}
	d, _ := b.run(with(sh(`for d in /c /t /b /dev/shm; do
	mkdir $d/x; cd $d/x; echo x > f; chown 11:12 f; chmod 4750 f; mknod null c 1 3; chown 3:4 null; mknod disk b 259 7; chmod 640 disk; mkfifo p; chown 5:6 p
	ln -s f l; chown -h 15:16 l; chown 13:14 .; cp -a . /root/${d##*/}
done; [ "$(stat -c '%F %t:%T %u:%g' /t/x/null)" = 'character special file 1:3 3:4' ]`),
		Mount{Kind: Cache, ID: "devices", Target: "/c"}, Mount{Kind: Tmpfs, Target: "/t"}, Mount{Kind: Bind, Target: "/b", Dir: dir}))
	ix, err := layer.OpenIndex(b.t.Context(), b.Store, d)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, e := range ix.Entries {
		if e.Path != "root" {
			got = append(got, fmt.Sprintf("%s %v %o %d:%d %d:%d", e.Path, e.Type, e.Mode, e.UID, e.GID, e.Major, e.Minor))
		}
	}
	for _, at := range []string{"root/b", "root/c", "root/shm", "root/t"} {
		want = append(want,
			fmt.Sprintf("%s %v 755 13:14 0:0", at, layer.Dir), fmt.Sprintf("%s/disk %v 640 0:0 259:7", at, layer.Block),
			fmt.Sprintf("%s/f %v 4750 11:12 0:0", at, layer.Regular), fmt.Sprintf("%s/l %v 777 15:16 0:0", at, layer.Symlink),
			fmt.Sprintf("%s/null %v 644 3:4 1:3", at, layer.Char), fmt.Sprintf("%s/p %v 644 5:6 0:0", at, layer.Fifo))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	// This test runs as root, and again as an ordinary user: see TestAsOrdinaryUser.
	if want := store.Digest("sha256:fc31cfab9e98b3dad1c18d2f91fbf0092ce16532dcb11101cc7e67b62a5fd64e"); d.DiffID != want {
		t.Errorf("the layer is %s, want %s for everybody", d.DiffID, want)
	}
}

// wantOwners compares the owners of all files of a layer, but for directories above them.
func (b *bench) wantOwners(d layer.Descriptor, want map[string]string) {
	b.t.Helper()
	ix, err := layer.OpenIndex(b.t.Context(), b.Store, d)
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range ix.Entries {
		if e.Path != "root" {
			got[e.Path] = fmt.Sprintf("%d:%d", e.UID, e.GID)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("owners in the layer (-want +got):\n%s", diff)
	}
}
