package test

import (
	"bufio"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// A store on a network file system waits for a server with each call about a name. So calls are counted here as such a server sees them: on
// bindfs, which tells each request of the kernel's, and answers it a millisecond late.

// calls are the requests that a file system has answered, by their names in linux/fuse.h without the prefix.
type calls map[string]int

// metadata is how many of them are about names and attributes, and not about contents.
func (c calls) metadata() (n int) {
	for name, k := range c {
		switch name {
		case "READ", "WRITE", "RELEASE", "RELEASEDIR", "FLUSH", "FORGET", "BATCH_FORGET", "INIT", "INTERRUPT", "POLL":
		default:
			n += k
		}
	}
	return n
}

// counted is a file system whose requests are counted.
type counted struct {
	mu   sync.Mutex
	seen calls
}

// take returns what was answered since it was called last.
func (c *counted) take() calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.seen
	c.seen = calls{}
	return taken
}

// slowCalls shows a place's store through a file system that is slow at each call about a name, and counts them.
func slowCalls(t *testing.T, p *place) *counted {
	t.Helper()
	needRoot(t)
	for _, dir := range []string{"real", "shown"} {
		if err := os.Mkdir(p.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const slow = "%file,fsync,fdatasync"
	cmd := exec.Command(tooltest.Path(t, "strace"), "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace="+slow, "-e", "inject="+slow+":delay_enter=1000", // μs
		tooltest.Path(t, "bindfs"), "-f", "-d", "-o", "big_writes,attr_timeout=600,entry_timeout=600", "--xattr-none", p.path("real"), p.path("shown"))
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c, mounted, ended := &counted{seen: calls{}}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c.follow(bufio.NewScanner(said), mounted)
	}()
	t.Cleanup(func() {
		if err := unix.Unmount(p.path("shown"), unix.MNT_DETACH); err != nil {
			t.Error(err)
			_ = cmd.Process.Kill()
		}
		<-ended
		_ = cmd.Wait() // strace ends as bindfs does
	})
	select {
	case <-mounted:
	case <-ended:
		t.Fatal("bindfs has ended")
	}
	p.store = filepath.Join(p.path("shown"), "store")
	return c
}

var opcode = regexp.MustCompile(`opcode: ([A-Z_]+)`)

// follow counts what bindfs tells, and closes mounted when the kernel has asked for the first time.
func (c *counted) follow(lines *bufio.Scanner, mounted chan<- struct{}) {
	first := sync.OnceFunc(func() { close(mounted) })
	for lines.Scan() {
		if m := opcode.FindStringSubmatch(lines.Text()); m != nil {
			c.mu.Lock()
			c.seen[m[1]]++
			c.mu.Unlock()
			first()
		}
	}
}

// objects counts the blobs and records of a store, and all of its files and directories.
func objects(t *testing.T, store string) (published, inodes int) {
	t.Helper()
	err := filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		inodes++
		if err == nil && !d.IsDir() && (strings.Contains(path, "/blobs-v1/") || strings.Contains(path, "/records-v1/")) {
			published++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return published, inodes
}

// What a build asks of a store's file system depends on the blobs and records that it makes, not on the thousands of files in them; one that finds
// all made asks for little, and writes nothing.
func TestMetadataCalls(t *testing.T) {
	begin(t)
	for name, write := range map[string]func(p *place){
		"a step": func(p *place) { p.writeStepped(base(t).ref) },
		"wheels": func(p *place) {
			p.take(lockedRecipe(t, newIndex(t), recipe(base(t).ref, append([]string{"numpy"}, few...))), "app")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, nil)
			write(p)
			if name == "a step" {
				p.must("lock", "app") // with its own store
				if err := os.RemoveAll(p.store); err != nil {
					t.Fatal(err)
				}
			}
			asking := slowCalls(t, p)
			p.must("version")
			asking.take()
			p.build("--locked", "app")
			asked := asking.take()
			published, inodes := objects(t, p.store)
			asking.take()
			t.Logf("%d metadata calls for %d blobs and records, %d inodes: %v", asked.metadata(), published, inodes, asked)
			for _, c := range []struct {
				what        string
				got, atMost int
			}{
				{"metadata calls", asked.metadata(), 60 * published},
				{"fsyncs", asked["FSYNC"], published + 5},
				{"files made", asked["CREATE"], 2*published + 10},
				{"inodes", inodes, 5 * published},
				{"blobs and records", published, 100},
			} {
				if c.got > c.atMost {
					t.Errorf("%s: %d, at most %d were expected", c.what, c.got, c.atMost)
				}
			}
			p.build("--locked", "app")
			again := asking.take()
			t.Logf("when all is made: %d metadata calls: %v", again.metadata(), again)
			if again.metadata() > 200 || again["CREATE"]+again["FSYNC"]+again["RENAME"] > 0 {
				t.Errorf("a build that finds all made asks %d times: %v", again.metadata(), again)
			}
			p.wantSound()
			p.wantTidy()
		})
	}
}
