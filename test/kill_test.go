package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/tooltest"
)

// kills is how often the build is killed, at least.
const kills = 24

// A build is killed again and again, each time a little later, until it gets to its end: the store is sound after every
// kill, no process outlives it, no mount is left, and what comes out in the end is what an undisturbed build makes.
func TestKilledAnywhere(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	app := lockedRecipe(t, ix, recipe(base(t).ref, few))
	calm := newPlace(t, nil)
	calm.take(app, "app")
	want := calm.build("--locked", "app")

	ix.slow(2 * time.Millisecond) // so that downloads are hit, too
	killed, doing := 0, make(map[string]int)
	for round := 0; killed < kills && !t.Failed(); round++ {
		user := ordinary(t)
		if round%2 == 1 {
			user = nil
		}
		p := newPlace(t, user)
		p.take(app, "app")
		for step := 1 + round%2; ; step += 2 {
			during := p.stop(unix.SIGKILL, step)
			if during == "" {
				break
			}
			killed++
			doing[during]++
			p.wantSound()
		}
		if got := p.build("--locked", "app"); got != want {
			t.Errorf("round %d: after all the kills the image is %s, want %s", round, got, want)
		}
		p.must("cache", "prune", "--all")
		p.wantSound()
		p.wantTidy()
	}
	t.Logf("%d kills, by what was going on: %v", killed, doing)
	if len(doing) < 2 { // the first event, and the third
		t.Errorf("the kills hit only %v", doing)
	}
}

// stop is stopCommand of a build.
func (p *place) stop(sig syscall.Signal, step int) (during string) {
	p.t.Helper()
	return p.stopCommand(sig, step, "build", "--locked", "app", "-o", "oci:"+p.path("out"))
}

// stopCommand starts sconce, sends a signal to its group between the step-th event and the next, and waits for the end of all its
// processes. It returns what was going on, or "" when the command came to its end with fewer events.
func (p *place) stopCommand(sig syscall.Signal, step int, args ...string) (during string) {
	p.t.Helper()
	cmd := p.command(append([]string{"--progress", "json"}, args...)...)
	lines := childtest.Start(p.t, cmd, &cmd.Stderr)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
		var e struct{ Kind, Verb string }
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Kind == "progress" {
			continue
		}
		if step--; step == 0 {
			time.Sleep(rand.N(20 * time.Millisecond)) // anywhere on the way to the next
			during = e.Kind + " of " + e.Verb
			break
		}
	}
	family := descendants(cmd.Process.Pid)
	if during != "" {
		_ = syscall.Kill(-cmd.Process.Pid, sig) // it may just have ended
	}
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	_ = cmd.Wait()
	p.wantNobody(cmd.Process.Pid, family)
	return p.ending(cmd.ProcessState, sig, during, all)
}

// ending checks how a command ended that was sent a signal: by it, as it should, or well, because it was faster.
func (p *place) ending(state *os.ProcessState, sig syscall.Signal, during string, output []string) string {
	p.t.Helper()
	status, _ := state.Sys().(syscall.WaitStatus)
	interrupted := state.ExitCode() == 130 && strings.Contains(strings.Join(output, "\n"), "interrupted")
	switch {
	case state.ExitCode() == 0:
		return ""
	case during != "" && sig == unix.SIGKILL && status.Signaled():
	case during != "" && sig == unix.SIGINT && interrupted:
	default:
		p.t.Fatalf("it ended with code %d, sent %v at %q:\n%s", state.ExitCode(), sig, during, strings.Join(output, "\n"))
	}
	return during
}

// wantNobody fails unless soon all of the family are gone, and no other process belongs to the session or has anything to
// do with the place.
func (p *place) wantNobody(session int, family []process) {
	p.t.Helper()
	var left []string
	for range 60_000 {
		left = nil
		for _, f := range family {
			if f.alive() {
				left = append(left, f.String())
			}
		}
		left = append(left, p.inhabitants(session)...)
		if len(left) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(left) > 0 {
		p.t.Errorf("processes were left: %s", left)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), p.dir+"/") {
		p.t.Errorf("mounts were left (%v):\n%s", err, mounts)
	}
}

// process is a process, told from a later one of the same number by its time of birth.
type process struct {
	pid, parent, session int
	born                 string
	name                 string
}

func (p process) String() string { return fmt.Sprintf("%d (%s)", p.pid, p.name) }

func (p process) alive() bool {
	now, err := readProcess(p.pid)
	return err == nil && now.born == p.born
}

// readProcess reads /proc/PID/stat (proc(5)). A zombie is none.
func readProcess(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	text := string(data)
	open, shut := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[shut+1:])
	if fields[0] == "Z" || fields[0] == "X" {
		return process{}, os.ErrProcessDone
	}
	parent, parentErr := strconv.Atoi(fields[1])
	session, sessionErr := strconv.Atoi(fields[3])
	return process{pid, parent, session, fields[19], text[open+1 : shut]}, errors.Join(parentErr, sessionErr)
}

func processes() []process {
	var out []process
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a good one
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// descendants are all processes that pid has started, and those that they have.
func descendants(pid int) []process {
	family, in := []process(nil), map[int]bool{pid: true}
	for grown := true; grown; {
		grown = false
		for _, p := range processes() {
			if in[p.parent] && !in[p.pid] {
				in[p.pid], grown = true, true
				family = append(family, p)
			}
		}
	}
	return family
}

// inhabitants are the processes of a session, and those that name the place in their environment or arguments.
func (p *place) inhabitants(session int) []string {
	var out []string
	for _, pr := range processes() {
		if pr.session == session {
			out = append(out, pr.String())
			continue
		}
		for _, file := range []string{"environ", "cmdline"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pr.pid, file))
			if err == nil && bytes.Contains(data, []byte(p.dir+"/")) {
				out = append(out, pr.String()+" by its "+file)
			}
		}
	}
	return out
}

// Ctrl-C at several points: exit code 130, nothing left, and the next build goes on.
func TestInterrupted(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	app := lockedRecipe(t, ix, recipe(base(t).ref, few))
	p := newPlace(t, ordinary(t))
	p.take(app, "app")
	ix.slow(2 * time.Millisecond)
	doing := make(map[string]int)
	for step := 1; ; step += 3 {
		during := p.stop(unix.SIGINT, step)
		p.wantTidy()
		p.wantSound()
		if during == "" {
			break
		}
		doing[during]++
	}
	t.Logf("interrupted at %v", doing)
	if len(doing) == 0 { // later interruptions may lose against the end of the build
		t.Error("no build was interrupted")
	}
	other := newPlace(t, nil)
	other.take(app, "app")
	if got, want := p.build("--locked", "app"), other.build("--locked", "app"); got != want {
		t.Errorf("the image is %s after interruptions, %s without", got, want)
	}
}

// What runs in an image goes when its sconce is killed. That it is seen while it runs shows that [place.wantNobody] sees
// what builds leave.
func TestKilledRunTakesItsCommandAlong(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	cmd := p.command("run", base(t).ref, "--", "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sleeping := func() bool {
		return slices.ContainsFunc(p.inhabitants(cmd.Process.Pid), func(s string) bool { return strings.HasSuffix(s, "(sleep)") })
	}
	for range 60_000 {
		if sleeping() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !sleeping() {
		t.Errorf("the command is not seen: %s", p.inhabitants(cmd.Process.Pid))
	}
	family := descendants(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(family) == 0 {
		t.Error("sconce run has no descendants")
	}
	p.wantNobody(cmd.Process.Pid, family)
	p.wantSound()
}

// Several builds of one recipe at once, in one store: all succeed with the same image, and every wheel is downloaded once.
func TestBuildsAtOnce(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	app := lockedRecipe(t, ix, recipe(base(t).ref, few))
	for _, n := range []int{2, 4} {
		p := newPlace(t, ordinary(t))
		p.take(app, "app")
		ix.reset()
		ix.slow(5 * time.Millisecond)
		digests := p.together(n, "--locked")
		for _, d := range digests {
			if d != digests[0] {
				t.Errorf("%d builds at once made %v", n, digests)
			}
		}
		for file, count := range ix.downloads() {
			if count != 1 {
				t.Errorf("%d builds at once downloaded %s %d times", n, file, count)
			}
		}
		if len(ix.downloads()) < len(few) {
			t.Errorf("only %v were downloaded", ix.downloads())
		}
		p.wantSound()
		p.wantTidy()
	}
}

// Two builds at once may also find that there is no lock: both lock, and agree.
func TestLocksAtOnce(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	p := newPlace(t, nil)
	newIndex(t).use(p)
	p.write("app/sconce.toml", recipe("tar:"+smallRoot(t), few, "bytecode = false"))
	if digests := p.together(2); digests[0] != digests[1] {
		t.Errorf("two builds without a lock made %v", digests)
	}
	p.must("lock", "--check", "app")
	p.wantSound()
	p.wantTidy()
	if files, err := filepath.Glob(p.path("app/*")); err != nil || len(files) != 3 {
		t.Errorf("beside the recipe lie %v (%v)", files, err)
	}
}

// together builds app n times at once and returns the digests.
func (p *place) together(n int, flags ...string) []string {
	p.t.Helper()
	var wg sync.WaitGroup
	out := make([]string, n)
	for i := range n {
		wg.Go(func() {
			cmd := p.command(append([]string{"build", "app", "-o", "oci:" + p.path(fmt.Sprint("out", i))}, flags...)...)
			text, err := cmd.Output()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				p.t.Errorf("build %d of %d: %v\n%s", i, n, err, exit.Stderr)
			}
			out[i] = digestLine.FindString(string(text))
		})
	}
	wg.Wait()
	if out[0] == "" {
		p.t.Fatal("a build at the same time as another printed no digest")
	}
	return out
}
