package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/tooltest"
)

// slowly makes writing rich take about a second, so that there is something to disturb.
var slowly = []string{"--sqsh-compression", "zstd", "--sqsh-level", "19"}

var sharedHeavy once[string]

// heavy returns an OCI image whose layers take a while to be compressed.
func heavy(t *testing.T) string {
	t.Helper()
	return sharedHeavy.get(t, func(t *testing.T) string {
		bottom, middle, top := newTarLayer(t), newTarLayer(t), newTarLayer(t)
		for i, l := range []*tarLayer{bottom, middle, top} {
			for j := range 4 {
				l.file(fmt.Sprintf("large%d-%d", i, j), words(uint64(10*i+j), 500_000))
			}
			for j := range 400 {
				l.file(fmt.Sprintf("small%d-%d", i, j), words(uint64(1000*i+j), 10*j+1))
			}
		}
		bottom.programs()
		middle.file("large0-0", words(77, 100_000))
		return writeLayout(t, filepath.Join(workshop, "heavy"), richConfig, bottom.gzipped(), middle.gzipped(), top.plain())
	})
}

// wantWhole fails unless the file can be read to its last byte by other people's program.
func wantWhole(t *testing.T, file string) {
	t.Helper()
	do(t, "unsquashfs", "-s", file)
	do(t, "rdsquashfs", "--describe", file)
	out, err := exec.Command(tooltest.Path(t, "sqfs2tar"), file).Output()
	if err != nil || len(out) < 1000 {
		t.Errorf("sqfs2tar read %d bytes: %v", len(out), err)
	}
}

// A copy that is killed at any moment leaves nothing under the final name, or the whole file; the next one succeeds.
func TestCopyKilledAnywhere(t *testing.T) {
	begin(t)
	for _, tool := range []string{"unsquashfs", "rdsquashfs", "sqfs2tar"} {
		tooltest.Path(t, tool)
	}
	calm := newPlace(t, nil)
	args := append(append([]string{"copy"}, slowly...), heavy(t))
	calm.must(append(args, "x.sqsh")...)
	wantWhole(t, calm.path("x.sqsh"))
	want := calm.read("x.sqsh")

	doing := map[string]int{}
	killed := 0
	for round := 0; round < 3 && !t.Failed(); round++ { // at each of the first events by one of them
		user := ordinary(t)
		if round%2 == 1 {
			user = nil
		}
		p := newPlace(t, user)
		for step := 1 + round; step < 30; step += 3 { // there are more where it takes longer
			during, whole := p.disturb(unix.SIGKILL, step, append(args, "x.sqsh"), want)
			if during == "" {
				break
			}
			killed++
			doing[during]++
			if whole { // killed after the last moment: begin again
				_ = os.Remove(p.path("x.sqsh"))
			}
			if killed%4 == 0 {
				p.wantSound()
			}
		}
		p.must(append(args, "x.sqsh")...)
		if p.read("x.sqsh") != want {
			t.Errorf("round %d: after the kills the file is another one", round)
		}
		p.wantOnly("x.sqsh")
		p.wantSound()
	}
	t.Logf("%d kills, by what was going on: %v", killed, doing)
	if len(doing) < 3 { // the first three events, of the pull, its end and the copy
		t.Errorf("%d kills hit only %v", killed, doing)
	}
}

// Ctrl-C: exit code 130, nothing under the final name, nothing beside it.
func TestCopyInterrupted(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	args := append(append([]string{"copy"}, slowly...), heavy(t), "x.sif")
	interrupted := 0
	for step := 2; step < 40; step += 6 {
		during, _ := p.disturb(unix.SIGINT, step, args, "")
		if during == "" {
			break
		}
		interrupted++
		p.wantOnly("x.sif")
		p.wantTidy()
	}
	if interrupted == 0 { // later ones may lose against the end of the copy
		t.Error("no copy was interrupted")
	}
	p.must(args...)
	p.wantOnly("x.sif")
	p.wantSound()
}

// disturb starts sconce and sends it a signal between the step-th event and the next. It returns what was going on, or "" when
// sconce came to its end before. What is under the last argument's name then is want, unless that is empty, or is not there.
func (p *place) disturb(sig syscall.Signal, step int, args []string, want string) (during string, whole bool) {
	p.t.Helper()
	file := args[len(args)-1]
	cmd := p.command(append([]string{"--progress", "json"}, args...)...)
	lines := childtest.Start(p.t, cmd, &cmd.Stderr)
	var all []string
	left := step
	for lines.Scan() {
		all = append(all, lines.Text())
		var e struct{ Kind, Verb string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		if left--; left == 0 {
			time.Sleep(time.Duration(step%7) * 5 * time.Millisecond) // anywhere on the way to the next
			during = e.Kind + " of " + e.Verb
			_ = syscall.Kill(-cmd.Process.Pid, sig) // it may just have ended
		}
	}
	_ = cmd.Wait()
	during = p.ending(cmd.ProcessState, sig, during, all)
	data, err := os.ReadFile(p.path(file))
	switch {
	case errors.Is(err, os.ErrNotExist):
		if during == "" {
			p.t.Errorf("sconce ended well and has not written %s", file)
		}
	case err != nil:
		p.t.Error(err)
	case want != "" && string(data) != want:
		p.t.Errorf("step %d, %s: %s has %d bytes, not the %d that it should have", step, during, file, len(data), len(want))
	default:
		whole = true
	}
	return during, whole
}

// wantOnly fails when there is anything else beside the file, hidden or not, than what a place has.
func (p *place) wantOnly(file string) {
	p.t.Helper()
	entries, err := os.ReadDir(p.path(filepath.Dir(file)))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		switch e.Name() {
		case filepath.Base(file), "store", "home", "tmp":
		default:
			p.t.Errorf("beside %s lies %s", file, e.Name())
		}
	}
}

// smallDisk mounts a disk of that many bytes at a directory of the place.
func (p *place) smallDisk(name string, bytes int64) {
	p.t.Helper()
	at := p.path(name)
	if err := os.Mkdir(at, 0o755); err != nil {
		p.t.Fatal(err)
	}
	tooltest.SmallDiskAt(p.t, at, size(bytes))
}

// A disk that gets full while the file is written: a clear error, and what was there is untouched.
func TestCopyToFullDisk(t *testing.T) {
	needRoot(t)
	begin(t)
	p := newPlace(t, nil)
	p.smallDisk("disk", 7<<20)
	l := newTarLayer(t)
	l.programs()
	l.file("noise", noise(1, 8_000_000)) // larger than any estimate makes it
	big := writeLayout(t, p.path("big"), richConfig, l.plain())
	for _, file := range []string{"disk/x.sqsh", "disk/x.sif"} {
		p.must("copy", small(t), file)
		before := p.read(file)
		for _, flags := range [][]string{{"--force"}, {"--force", "--no-reuse"}} {
			r := p.fails(1, []string{"no space left", ") is full; make room"}, append(append([]string{"copy"}, flags...), big, file)...)
			if strings.Count(r.stderr, "error: ") != 1 {
				t.Errorf("more than one error: %v", r)
			}
			if p.read(file) != before {
				t.Errorf("%s has changed", file)
			}
			p.wantOnly(file)
			p.wantTidy()
		}
		if err := os.Remove(p.path(file)); err != nil {
			t.Fatal(err)
		}
	}
	// One that is known to be too small is not begun.
	tiny := newPlace(t, nil)
	tiny.smallDisk("disk", 1<<20)
	r := tiny.fails(1, []string{"it will take about 5 MB", "only 1", "free there", "hint: make room"}, "copy", big, "disk/x.sqsh")
	if strings.Contains(r.stderr, "squash") {
		t.Errorf("it was begun: %v", r)
	}
	tiny.wantOnly("disk/x.sqsh")
	// One that may just fit is tried.
	tight := newPlace(t, nil)
	tight.smallDisk("disk", 3<<20)
	l = newTarLayer(t)
	l.file("text", strings.Repeat("much of the same\n", 600_000))
	r = tight.must("copy", writeLayout(t, tight.path("text"), richConfig, l.plain()), "disk/x.sqsh")
	if !strings.Contains(r.stderr, "warning: ") || !strings.Contains(r.stderr, "will take about 5 MB, and only 3 MB are free there") {
		t.Errorf("it was not told: %v", r)
	}
}

// Several processes write one file at once, with stores that do not know of each other: one does it, all succeed.
func TestCopiesAtOnce(t *testing.T) {
	begin(t)
	image := heavy(t)
	for n, target := range map[int]string{2: "x.sif", 4: "x.sqsh"} {
		p := newPlace(t, ordinary(t))
		var wg sync.WaitGroup
		var mu sync.Mutex
		writers := 0
		for i := range n {
			wg.Go(func() {
				cmd := p.command(append(append([]string{"--store", p.path("tmp", fmt.Sprint("store", i)), "copy"}, slowly...), image, target)...)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				if err := cmd.Run(); err != nil {
					t.Errorf("copy %d of %d: %v\n%s", i, n, err, &stderr)
				}
				if strings.Contains(stderr.String(), "squash ") {
					mu.Lock()
					defer mu.Unlock()
					writers++
				}
			})
		}
		wg.Wait()
		if writers != 1 {
			t.Errorf("%d of %d have written %s", writers, n, target)
		}
		p.wantOnly(target)
		if r := p.must("run", target, "--", "sh", "-c", "cat /large2-3 | wc -c"); r.stdout != "500000\n" {
			t.Errorf("the file has %v", r)
		}
	}
}

// What is there and holds something else stays, unless the user insists; the umask decides who may read the file, and a SIF can be executed.
func TestCopyOverSomethingElse(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.umask = "077"
	for file, mode := range map[string]uint32{"x.sqsh": 0o600, "x.sif": 0o700} {
		p.write(file, "precious")
		p.fails(1, []string{"holds something else", "--force"}, "copy", small(t), file)
		if p.read(file) != "precious" {
			t.Errorf("%s has changed", file)
		}
		p.must("copy", "--force", small(t), file)
		p.wantMode(file, mode)
		before := p.stat(file)

		// The same once more: nothing is done.
		p.must("copy", small(t), file)
		if now := p.stat(file); now.Ino != before.Ino || now.Mtim != before.Mtim {
			t.Errorf("%s was written again", file)
		}
		// Another image, and the same compressed otherwise.
		for _, args := range [][]string{{heavy(t)}, {"--sqsh-compression", "gzip", small(t)}} {
			p.fails(1, []string{"holds something else", "--force"}, append(append([]string{"copy"}, args...), file)...)
			if now := p.stat(file); now.Ino != before.Ino || now.Size != before.Size {
				t.Errorf("%s has changed", file)
			}
		}
		// A job that runs from the old file keeps it.
		old, err := os.Open(p.path(file))
		if err != nil {
			t.Fatal(err)
		}
		was := p.read(file)
		p.must("copy", "--force", heavy(t), file)
		kept := make([]byte, len(was))
		if _, err := old.ReadAt(kept, 0); err != nil || string(kept) != was || p.read(file) == was {
			t.Errorf("the old file was written over, or not replaced: %v", err)
		}
		old.Close()
		p.wantMode(file, mode)
	}
	// From one cluster file to another the same holds.
	p.must("copy", small(t), "y.sqsh")
	p.fails(1, []string{"holds something else", "--force"}, "copy", "y.sqsh", "x.sif")
	p.must("copy", "--force", "y.sqsh", "x.sif")
	p.must("copy", "y.sqsh", "x.sif")
	p.must("copy", "y.sqsh", "y.sqsh")
	p.wantMode("x.sif", 0o700)
	// Directories and files that are no images.
	if err := os.Mkdir(p.path("d.sqsh"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.fails(1, []string{"directory"}, "copy", "--force", small(t), "d.sqsh")
	p.write("text.sqsh", "no image")
	p.fails(2, []string{"text.sqsh", "nor a squashfs"}, "copy", "text.sqsh", "z.sif")
	p.write("cut.sqsh", p.read("y.sqsh")[:100_000])
	p.fails(1, []string{"cut.sqsh"}, "copy", "cut.sqsh", "z.sif")
	p.fails(1, []string{"cut.sqsh"}, "run", "cut.sqsh", "--", "true")
	if _, err := os.Stat(p.path("z.sif")); err == nil {
		t.Error("a file was made of nothing")
	}
}

func (p *place) stat(file string) unix.Stat_t {
	p.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(p.path(file), &st); err != nil {
		p.t.Fatal(err)
	}
	return st
}

func (p *place) wantMode(file string, mode uint32) {
	p.t.Helper()
	if st := p.stat(file); st.Mode&0o7777 != mode {
		p.t.Errorf("%s has mode %o, want %o", file, st.Mode&0o7777, mode)
	}
}
