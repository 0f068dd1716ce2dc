package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// bindfs shows a place's store through FUSE without extended attributes, as homes on network file systems are.
func bindfs(t *testing.T, p *place, options ...string) {
	t.Helper()
	needRoot(t)
	real, shown := p.path("real"), p.path("shown")
	for _, dir := range []string{real, shown} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.own()
	if out, err := exec.Command(tooltest.Path(t, "bindfs"), append(options, "--xattr-none", real, shown)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shown, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p.store = filepath.Join(shown, "store")
}

// A store where no overlay can have its upper layer is good for a build with steps and for a run: what is unpacked lies on this machine meanwhile,
// and nothing of it is left there or in the store.
func TestStoreWithoutAttributes(t *testing.T) {
	begin(t)
	b := base(t)
	for name, user := range map[string]*account{"root": nil, "user": ordinary(t)} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, user)
			bindfs(t, p)
			p.writeStepped(b.ref)
			r := p.must("build", "app")
			if !strings.Contains(r.stderr, "layers are unpacked, and steps write, below "+p.tmp()) {
				t.Errorf("nothing is said: %v", r)
			}
			if r := p.must("run", "stepped:1", "--", "hello"); !strings.Contains(r.stdout, "HELLO world") {
				t.Errorf("%v", r)
			}
			if r := p.must("info"); !strings.Contains(r.stdout, "Scratch:  "+p.tmp()) {
				t.Errorf("%v", r)
			}
			trees, err := os.ReadDir(filepath.Join(p.store, "trees-v1"))
			if err != nil || len(trees) > 0 {
				t.Errorf("unpacked in the store: %v, %v", trees, err)
			}
			files := 0
			err = filepath.WalkDir(p.store, func(string, os.DirEntry, error) error { files++; return nil })
			if err != nil || files > 600 { // of a root file system with thousands
				t.Errorf("the store has %d files and directories, %v", files, err)
			}
			p.wantSound()
			p.wantTidy()
		})
	}
}

// What is unpacked on this machine goes to the place with room, and not to a small TMPDIR; and runs from one where no program may be started from, as
// administrators mount the places that all may write to.
func TestScratchWithRoom(t *testing.T) {
	begin(t)
	b := base(t)
	for name, user := range map[string]*account{"root": nil, "user": ordinary(t)} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, user)
			bindfs(t, p)
			p.writeStepped(b.ref)
			p.mounted("tmp", func(dir string) error { return runMount("-t", "tmpfs", "-o", "mode=755,size=4m", "tmpfs", dir) })
			r := p.must("build", "app")
			said := regexp.MustCompile(`steps write, below (/\S+) \(`).FindStringSubmatch(r.stderr)
			if said == nil || said[1] == p.tmp() || !slices.Contains([]string{"/tmp", "/var/tmp", "/dev/shm"}, said[1]) {
				t.Errorf("it unpacks in %q: %v", said, r)
			}
			if r := p.must("info"); !strings.Contains(r.stdout, "Scratch:  "+said[1]) {
				t.Errorf("info says another place than %s: %v", said[1], r)
			}
			p.wantSound()
			p.wantTidy()
		})
		t.Run(name+" without programs", func(t *testing.T) {
			p := newPlace(t, user)
			bindfs(t, p)
			p.writeStepped(b.ref)
			closed := p.mounted("closed", func(dir string) error {
				return runMount("-t", "tmpfs", "-o", "mode=755,size=2g,noexec,nosuid,nodev", "tmpfs", dir)
			})
			p.env = append(p.env, "SCONCE_SCRATCH="+closed)
			p.must("build", "app")
			if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
				t.Errorf("%v", r)
			}
			p.wantSound()
			p.wantTidy()
		})
	}
}
