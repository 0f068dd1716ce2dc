package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// mounted is a directory of the place with a file system of its own, which its user may write to.
func (p *place) mounted(name string, mount func(dir string) error) string {
	p.t.Helper()
	needRoot(p.t)
	dir := p.path(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := mount(dir); err != nil {
		p.t.Skipf("nothing can be mounted here: %v", err)
	}
	p.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			p.t.Error(err)
		}
	})
	p.own()
	return dir
}

// disk mounts an image of bytes that a program has made a file system in.
func (p *place) disk(name string, bytes int64, program string, args ...string) string {
	p.t.Helper()
	needRoot(p.t)
	mkfs, image := tooltest.Path(p.t, program), p.path(name+".img")
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(bytes)
		f.Close()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, append(args, image)...).CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return p.mounted(name, func(dir string) error { return runMount("-o", "loop", image, dir) })
}

func runMount(args ...string) error {
	out, err := exec.Command("mount", args...).CombinedOutput()
	if err != nil {
		return &mountError{string(out)}
	}
	return nil
}

type mountError struct{ said string }

func (e *mountError) Error() string { return strings.TrimSpace(e.said) }

// storages are the file systems that a store can be on, each as a directory of the place.
var storages = map[string]func(p *place) string{
	"ext4":  func(p *place) string { return p.disk("disk", 2<<30, "mkfs.ext4", "-q") },
	"xfs":   func(p *place) string { return p.disk("disk", 2<<30, "mkfs.xfs", "-q") },
	"btrfs": func(p *place) string { return p.disk("disk", 2<<30, "mkfs.btrfs", "-q") },
	"tmpfs": func(p *place) string {
		return p.mounted("disk", func(dir string) error { return runMount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dir) })
	},
	"an overlay": func(p *place) string { // whose upper layer has a file system that allows one
		top := p.mounted("top", func(dir string) error { return runMount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dir) })
		for _, name := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(top, name), 0o755); err != nil {
				p.t.Fatal(err)
			}
		}
		return p.mounted("disk", func(dir string) error {
			return runMount("-t", "overlay", "-o", "lowerdir="+top+"/lower,upperdir="+top+"/upper,workdir="+top+"/work", "overlay", dir)
		})
	},
	"slow FUSE": func(p *place) string {
		bindfs(p.t.(*testing.T), p, "--read-rate=20M", "--write-rate=20M")
		return p.path("shown")
	},
}

// The same image comes of the same recipe wherever the store is, however often it is made; nothing in the store is damaged, and
// nothing that was unpacked stays elsewhere.
func TestStorages(t *testing.T) {
	begin(t)
	b := base(t)
	usual := newPlace(t, nil)
	usual.writeStepped(b.ref)
	want := usual.build("app")
	for name, mount := range storages {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // one of them is slow, and nothing is computed meanwhile
			p := newPlace(t, ordinary(t))
			p.store = filepath.Join(mount(p), "store")
			p.writeStepped(b.ref)
			for _, flags := range [][]string{nil, {"--no-cache"}} {
				if got := p.build(append(flags, "app")...); got != want {
					t.Errorf("with %q: %s, elsewhere %s", flags, got, want)
				}
			}
			if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
				t.Errorf("%v", r)
			}
			p.wantSound()
			p.wantTidy()
		})
	}
}

// Where a lock holds on one node only, as with NFS mounted with localflock, two nodes that build the same at once each come to the image, and
// the store that they share is whole.
func TestLocksOfOneNode(t *testing.T) {
	begin(t)
	b := base(t)
	p := newPlace(t, nil) // bindfs gives others what they make a moment after it is there
	bindfs(t, p)
	other := p.mounted("other", func(dir string) error {
		out, err := exec.Command(tooltest.Path(t, "bindfs"), "--xattr-none", p.path("real"), dir).CombinedOutput()
		if err != nil {
			return &mountError{string(out)}
		}
		return nil
	})
	there := *p
	there.store = filepath.Join(other, "store")
	if locksHold(t, filepath.Join(p.path("shown"), "lock"), filepath.Join(other, "lock")) {
		t.Skip("locks of one mount hold in the other")
	}
	p.writeStepped(b.ref)
	for range 3 {
		digests := make([]string, 2)
		var both sync.WaitGroup
		for i, at := range []*place{p, &there} {
			both.Go(func() {
				r := at.sconce("build", "--no-cache", "app")
				if digests[i] = digestLine.FindString(r.stdout); r.code != 0 {
					t.Error(r)
				}
			})
		}
		both.Wait()
		if digests[0] != digests[1] {
			t.Errorf("built %q", digests)
		}
	}
	p.wantSound()
	there.wantSound()
	if r := there.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
		t.Errorf("%v", r)
	}
	p.wantTidy()
}

// locksHold reports whether a lock on a file keeps others from it under another name of the file.
func locksHold(t *testing.T, name, other string) bool {
	t.Helper()
	one, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	two, err := os.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	if err := unix.Flock(int(one.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return unix.Flock(int(two.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// A home that cannot be written to is no trouble where the store is elsewhere.
func TestReadOnlyHome(t *testing.T) {
	begin(t)
	b := base(t)
	p := newPlace(t, ordinary(t))
	p.writeStepped(b.ref)
	home := p.mounted("home", func(dir string) error { return runMount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dir) })
	if err := runMount("-o", "remount,ro", home); err != nil {
		t.Fatal(err)
	}
	p.build("app")
	if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
		t.Errorf("%v", r)
	}
	p.wantSound()
	p.wantTidy()
}

// A quota that is used up is called one, and the store is as good as before once there is room.
func TestFullQuota(t *testing.T) {
	begin(t)
	b := base(t)
	p := newPlace(t, ordinary(t))
	btrfs := tooltest.Path(t, "btrfs")
	disk := p.disk("disk", 2<<30, "mkfs.btrfs", "-q")
	home := filepath.Join(disk, "home")
	limit := func(most string) {
		t.Helper()
		for _, args := range [][]string{{"qgroup", "limit", most, home}, {"filesystem", "sync", disk}} {
			if out, err := exec.Command(btrfs, args...).CombinedOutput(); err != nil {
				t.Fatalf("btrfs %q: %v\n%s", args, err, out)
			}
		}
	}
	for _, args := range [][]string{{"subvolume", "create", home}, {"quota", "enable", disk}} {
		if out, err := exec.Command(btrfs, args...).CombinedOutput(); err != nil {
			t.Skipf("there are no quotas of btrfs here: btrfs %q: %v\n%s", args, err, out)
		}
	}
	p.own()
	p.store = filepath.Join(home, "store")
	p.writeStepped(b.ref)
	limit("8M")
	p.fails(1, []string{"quota", "is used up"}, "build", "app")
	limit("none")
	p.build("app")
	p.wantSound()
	p.wantTidy()
}

// readOnlyHome has the place's home be a disk that can only be read, and what its user sets left out: the store is where it is by default. A
// store that was made there before is kept.
func (p *place) readOnlyHome(before func()) {
	p.t.Helper()
	home := p.mounted("home", func(dir string) error { return runMount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dir) })
	p.env = append(p.env, "SCONCE_STORE=")
	p.store = filepath.Join(home, ".cache/sconce")
	before()
	if err := runMount("-o", "remount,ro", home); err != nil {
		p.t.Fatal(err)
	}
}

// In a home that cannot be written to there is no store by default: that is said, with what to do. Where a shared store has the image, that is
// run and looked at; only what would have to be kept is refused.
func TestDefaultStoreInReadOnlyHome(t *testing.T) {
	begin(t)
	needRoot(t)
	b := base(t)
	site := newPlace(t, nil)
	site.writeStepped(b.ref)
	digest := site.build("app")
	for name, user := range map[string]*account{"root": nil, "user": ordinary(t)} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, user)
			p.take(site.path("app"), "app")
			p.take(site.path("app"), "more")
			p.write("more/sconce.toml", steppedRecipe(b.ref, "[[step]]\nrun = \"date > /etc/built\"\n"))
			p.readOnlyHome(func() {})
			const hint = "hint: set SCONCE_STORE to a directory you can write"
			for _, args := range [][]string{{"build", "app"}, {"run", "stepped:1", "--", "hello"}, {"images"}, {"cache", "prune"}} {
				p.fails(1, []string{"open store " + p.store, "read-only file system", hint}, args...)
			}
			if r := p.must("info"); !strings.Contains(r.stdout, "it cannot be written: "+p.home()+": read-only file system; SCONCE_STORE names another directory") {
				t.Errorf("info does not say it: %v", r)
			}

			p.env = append(p.env, "SCONCE_SHARED_STORES="+site.store)
			if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
				t.Errorf("%v", r)
			}
			if got := p.build("--locked", "app"); got != digest {
				t.Errorf("what is there was not found: %s, want %s", got, digest)
			}
			p.must("cache", "info")
			if r := p.fails(1, []string{p.store, "the store is read-only for this user", hint}, "build", "more"); strings.Contains(r.stderr, "to keep using this one") {
				t.Errorf("there is nothing to keep: %v", r)
			}
			p.wantTidy()
		})
	}
}

// A store of a home that has become read-only is read, and what it has is unpacked elsewhere to run it.
func TestStoreInReadOnlyHome(t *testing.T) {
	begin(t)
	needRoot(t)
	b := base(t)
	for name, user := range map[string]*account{"root": nil, "user": ordinary(t)} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, user)
			p.writeStepped(b.ref)
			p.readOnlyHome(func() { p.build("app"); p.must("cache", "prune", "--all") })
			if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
				t.Errorf("%v", r)
			}
			p.fails(1, []string{"the store is read-only for this user", "and add " + p.store + " to SCONCE_SHARED_STORES to keep using this one"}, "build", "--no-cache", "app")
			p.wantTidy()
		})
	}
}
