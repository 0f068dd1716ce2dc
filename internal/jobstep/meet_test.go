package jobstep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
)

// keeper is a keeper in this process: start is what Meet calls, and it runs serve in a goroutine.
type keeper struct {
	t       *testing.T
	started atomic.Int32
	gone    sync.WaitGroup
	serve   func(k *Keeper, number int)
}

func (r *keeper) start(listener, seat *os.File) error {
	number := int(r.started.Add(1))
	files := make([]*os.File, 2) // as in a process of its own
	for i, f := range []*os.File{listener, seat} {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		files[i] = os.NewFile(uintptr(fd), "file")
	}
	r.gone.Go(func() {
		k, ctx, err := Keep(context.Background(), files[0], files[1])
		if err != nil {
			r.t.Error(err)
			return
		}
		r.serve(k, number)
		<-ctx.Done()
	})
	return nil
}

// Many tasks at once get one keeper, and hear the same; when all have left, the keeper's context ends, and the next task gets another.
func TestMeet(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("what is handed on"); err != nil {
		t.Fatal(err)
	}
	r := &keeper{t: t, serve: func(k *Keeper, number int) {
		if err := k.Welcome(map[string]int{"number": number}, []*os.File{file}); err != nil {
			t.Error(err)
		}
	}}
	name := fmt.Sprint(t.Name(), os.Getpid())
	for round := 1; round <= 3; round++ {
		var all, here sync.WaitGroup
		here.Add(8)
		for range 8 {
			all.Go(func() {
				seat, w, err := Meet(context.Background(), name, r.start)
				here.Done()
				if err != nil {
					t.Error(err)
					return
				}
				here.Wait()
				defer seat.Leave()
				var said struct{ Number int }
				if err := json.Unmarshal(w.Payload, &said); err != nil || said.Number != round || len(w.Files) != 1 {
					t.Errorf("heard %s with %d files, %v, in round %d", w.Payload, len(w.Files), err, round)
					return
				}
				defer w.Files[0].Close()
				if text, err := io.ReadAll(io.NewSectionReader(w.Files[0], 0, 100)); err != nil || string(text) != "what is handed on" {
					t.Errorf("the file says %q, %v", text, err)
				}
			})
		}
		all.Wait()
		r.gone.Wait() // its context has ended
	}
	if n := r.started.Load(); n != 3 {
		t.Errorf("%d keepers were started in three rounds", n)
	}
}

// Tasks that come and go at any moment are never without a keeper.
func TestMeetComingAndGoing(t *testing.T) {
	r := &keeper{t: t, serve: func(k *Keeper, number int) { _ = k.Welcome(number, nil) }}
	name := fmt.Sprint(t.Name(), os.Getpid())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				seat, _, err := Meet(context.Background(), name, r.start)
				if err != nil {
					t.Error(err)
					return
				}
				seat.Leave()
			}
		})
	}
	all.Wait()
	r.gone.Wait()
}

// What the keeper cannot do, every task hears, with its hint and its exit code.
func TestMeetFailure(t *testing.T) {
	r := &keeper{t: t, serve: func(k *Keeper, _ int) { k.Fail(fault.Usage(fault.Hint(errors.New("no such image"), "look again"))) }}
	_, _, err := Meet(context.Background(), fmt.Sprint(t.Name(), os.Getpid()), r.start)
	if err == nil || err.Error() != "no such image" || fault.HintOf(err) != "look again" || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("%v, hint %q, exit code %d", err, fault.HintOf(err), fault.CodeOf(err))
	}
	r.gone.Wait()
}

// A task does not wait for ever: not for a keeper that ends again and again, nor when it is interrupted.
func TestMeetInVain(t *testing.T) {
	starts := 0
	_, _, err := Meet(context.Background(), fmt.Sprint(t.Name(), os.Getpid()), func(_, _ *os.File) error { starts++; return nil })
	if err == nil || starts != tries+1 {
		t.Errorf("after %d keepers: %v", starts, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &keeper{t: t, serve: func(*Keeper, int) { cancel() }}
	if _, _, err := Meet(ctx, fmt.Sprint(t.Name(), "-", os.Getpid()), r.start); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted task says %v", err)
	}
	r.gone.Wait()
}

// strangerVariable tells this test's program that it is to listen at the abstract socket of a name and to say a welcome there.
const strangerVariable = "SCONCE_TEST_STRANGER"

func TestMain(m *testing.M) {
	name := os.Getenv(strangerVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	l, err := net.ListenUnix("unix", address(name, 0))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			panic(err)
		}
		k := &Keeper{said: []byte("{\"payload\": 7}\n")}
		k.tell(conn)
	}
}

// stranger starts a process with this user's id, in name spaces of its own as those of a sandbox are, that has the name of a step.
func stranger(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), strangerVariable+"="+name)
	one := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: one(os.Getuid()), GidMappings: one(os.Getgid()),
	}
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no name spaces: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
}

// What has been left of a sandbox cannot speak to a task, though it has the same user's id and the name at which tasks meet.
func TestMeetNoStranger(t *testing.T) {
	name := fmt.Sprint(t.Name(), os.Getpid())
	stranger(t, name)
	r := &keeper{t: t, serve: func(k *Keeper, number int) { _ = k.Welcome(number, nil) }}
	for range 2 {
		seat, w, err := Meet(t.Context(), name, r.start)
		if err != nil || string(w.Payload) != "1" {
			t.Fatalf("heard %v, %v", w, err)
		}
		defer seat.Leave()
	}
}

// Nor does it help that the process which took the name has ended, and another has its number.
func TestHearNoStranger(t *testing.T) {
	name := fmt.Sprint(t.Name(), os.Getpid())
	stranger(t, name)
	conn, err := net.DialUnix("unix", nil, address(name, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if w, err := hear(conn); !errors.Is(err, errStranger) {
		t.Errorf("heard %v, %v", w, err)
	}
}
