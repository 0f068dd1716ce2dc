package sandbox

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
)

// collectEnv has init collect garbage all the time: a moment at which it stops all its threads is then any moment.
const collectEnv = "SCONCE_TEST_COLLECT"

func init() {
	if os.Getenv(collectEnv) == "" {
		return
	}
	go func() {
		for {
			runtime.GC()
		}
	}()
}

// setInitEnv adds a variable to the environment of init until the test ends.
func setInitEnv(t *testing.T, kv string) {
	t.Helper()
	old := initEnv
	initEnv = append([]string{kv}, old...)
	t.Cleanup(func() { initEnv = old })
}

// Who answers the calls of a command cannot be who starts it: starting it stops the threads of a process, and so does the
// collection of garbage, and the command's first calls are made in between.
func TestStartsWhileTheSupervisorCollectsGarbage(t *testing.T) {
	setInitEnv(t, collectEnv+"=1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for range 5 {
		o, _ := emulated(t, "id -u")
		o.UID, o.GID, o.Groups = 70, 71, []int{71, 80}
		if code, err := Run(ctx, o); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v", code, err)
		}
	}
}

// impatient shortens the periods in which a sandbox looks for who waits.
func impatient(t *testing.T) {
	t.Helper()
	old := waitingPeriod
	waitingPeriod = 20 * time.Millisecond
	t.Cleanup(func() { waitingPeriod = old })
}

// absent is a tree that does not answer when it is asked for one name.
type absent struct {
	fuse.Node
	name string
	done <-chan struct{}
}

func (a absent) Lookup(name string) (fuse.Node, error) {
	if name == a.name {
		<-a.done
	}
	return a.Node.Lookup(name)
}

// warnings collects what is warned of.
type warnings chan string

func (w warnings) Emit(e progress.Event) {
	if e.Kind == progress.Warning {
		select {
		case w <- e.Text:
		default:
		}
	}
}

// A call that gets no answer is told, and ends the command in the end: who waits, and for what, is in the error.
func TestCallWithoutAnAnswer(t *testing.T) {
	if ownsFiles() {
		t.Skip("root needs no emulation")
	}
	o := served(t, "stat /away", nil)
	impatient(t)
	o.Tree = absent{o.Tree, "away", t.Context().Done()}
	o.Owners = &rootemu.Owners{}
	told := make(warnings, 100)
	_, err := Run(progress.With(t.Context(), told), o)
	if err == nil {
		t.Fatal("the command ended well")
	}
	for _, want := range []string{"stat", `of "/away" of process `, "(stat)", "has had no answer for "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q lacks %q", err, want)
		}
	}
	if fault.HintOf(err) == "" {
		t.Error("the error has no hint")
	}
	warned := false
	for range len(told) {
		warned = warned || strings.Contains(<-told, `of "/away"`)
	}
	if !warned {
		t.Error("there was no warning before")
	}
}

// An init that does not run any more is noticed too.
func TestInitThatIsStopped(t *testing.T) {
	impatient(t)
	o := shell(t, "echo ready; exec sleep 1000")
	p, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stdout.Close()
	if err := p.session.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err = p.Wait()
	if err == nil || !strings.Contains(err.Error(), "the first process of the sandbox") {
		t.Errorf("error %v", err)
	}
}
