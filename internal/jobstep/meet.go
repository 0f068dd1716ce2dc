package jobstep

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
)

// The tasks of a machine meet at a Unix socket with an abstract name, which the kernel forgets with the process that has it: there is
// nothing to clean up, and no moment at which a killed task is in the way of others. Whoever gets the name starts the keeper, a process
// that holds the root file system, and hands it the socket. Everybody else connects to it. Each connection is a seat; the keeper ends when
// the last is given up, which a task that is killed does as well as one that ends.

// Seat is a task's place at the keeper.
type Seat struct {
	conn *net.UnixConn
	gone chan struct{}
}

// Leave gives the seat up.
func (s *Seat) Leave() { s.conn.Close() }

// Gone is closed when the keeper has ended.
func (s *Seat) Gone() <-chan struct{} { return s.gone }

// Welcome is what the keeper tells a task.
type Welcome struct {
	Payload json.RawMessage `json:"payload,omitempty"`
	Failure *KeeperError    `json:"failure,omitempty"`

	Files []*os.File `json:"-"`
}

// KeeperError is an error of the keeper, with what goes with it.
type KeeperError struct {
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
	Exit   int    `json:"exit"`
}

func (f *KeeperError) Error() string { return f.Text }

// Hint is read by [fault.HintOf].
func (f *KeeperError) Hint() string { return f.Advice }

// ExitCode is read by [fault.CodeOf].
func (f *KeeperError) ExitCode() int { return f.Exit }

// again is how long a task waits before it asks once more, while one keeper goes and another comes.
const again = 5 * time.Millisecond

// tries is how often a task asks for a keeper that ends without a word.
const tries = 5

// Meet returns a seat at the keeper of the name, which becomes an abstract socket's with this user's id, and what the keeper said. If there
// is none, start is to start one: a process that calls [Keep] with both files, which stay the caller's to close.
func Meet(ctx context.Context, name string, start func(listener, seat *os.File) error) (*Seat, *Welcome, error) {
	for try := 0; ; try++ {
		conn, err := sitDown(ctx, name, start)
		if err != nil {
			return nil, nil, err
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		w, err := hear(conn)
		stop()
		switch {
		case err == nil && w.Failure != nil:
			conn.Close()
			return nil, nil, w.Failure
		case err == nil:
			s := &Seat{conn, make(chan struct{})}
			go func() {
				defer close(s.gone)
				_, _ = conn.Read(make([]byte, 1))
			}()
			return s, w, nil
		}
		conn.Close()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if errors.Is(err, errStranger) {
			return nil, nil, err
		}
		if try == tries {
			return nil, nil, fault.Hint(fmt.Errorf("the process that holds the image for this job step ended without a word: %w", err),
				"was it killed, for want of memory perhaps? With --in-job=no each task has a root file system of its own")
		}
	}
}

// maxNames is how many names a task tries.
const maxNames = 16

// address is the abstract socket of a name. The number tells it from one that another user has taken, or what
// runs in a sandbox, in whatever intent.
func address(name string, number int) *net.UnixAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", os.Getuid(), name))
	return &net.UnixAddr{Name: fmt.Sprintf("@sconce-%x-%d", sum[:16], number), Net: "unix"}
}

// sitDown connects to the keeper, or has one started.
func sitDown(ctx context.Context, name string, start func(listener, seat *os.File) error) (*net.UnixConn, error) {
	number := 0
	for {
		at := address(name, number)
		conn, err := net.DialUnix("unix", nil, at)
		if err == nil {
			if who, err := peer(conn); err == nil && known(who) {
				return conn, nil
			}
			conn.Close()
			if number++; number == maxNames { // which no accident makes
				return nil, fault.Hint(errors.New("meet the other tasks of this job step: strangers have taken the names of its sockets"),
					"with --in-job=no each task has a root file system of its own")
			}
			continue
		}
		listener, err := net.ListenUnix("unix", at)
		if err == nil {
			conn, err := begin(listener, start)
			listener.Close()
			return conn, err
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("meet the other tasks of this job step: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(again):
		}
	}
}

// begin has a keeper started, with a seat for this task.
func begin(listener *net.UnixListener, start func(listener, seat *os.File) error) (*net.UnixConn, error) {
	file, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "seat"), os.NewFile(uintptr(pair[1]), "seat")
	defer ours.Close()
	defer theirs.Close()
	if err := start(file, theirs); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// peer returns the process at the other end of a connection: that which called listen(2) or connect(2).
func peer(conn *net.UnixConn) (who *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var credErr error
	err = raw.Control(func(fd uintptr) {
		who, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return who, errors.Join(err, credErr)
}

// known reports whether a process is this user's and outside of any sandbox: what runs in one has the user's id too, and can use every
// abstract name. It has other mounts, and cannot come back to these.
func known(who *unix.Ucred) bool {
	if int(who.Uid) != os.Getuid() {
		return false
	}
	for _, space := range []string{"user", "mnt"} {
		ours, err := os.Readlink("/proc/self/ns/" + space)
		if err != nil {
			return false
		}
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", who.Pid, space)); err != nil || theirs != ours {
			return false
		}
	}
	return true
}

// askWho has the kernel say who sends what comes. [peer] may name one that has ended, and whose number another process has since.
func askWho(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	return errors.Join(err, optErr)
}

// errStranger is what [hear] returns when not a keeper has spoken.
var errStranger = errors.New("meet the other tasks of this job step: a stranger speaks for the process that holds the image")

// maxFiles bounds how many files come with a welcome.
const maxFiles = 8

// hear waits for what the keeper says. Files, and who it is, come with its first byte.
func hear(conn *net.UnixConn) (*Welcome, error) {
	if err := askWho(conn); err != nil {
		return nil, err
	}
	first, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxFiles)+unix.CmsgSpace(unix.SizeofUcred))
	n, m, _, _, err := conn.ReadMsgUnix(first, control)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("the connection was closed")
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil {
		return nil, err
	}
	var w Welcome
	from := false
	for i := range messages {
		if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			from = known(who)
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			w.Files = append(w.Files, os.NewFile(uintptr(fd), "name space"))
		}
	}
	if !from {
		for _, f := range w.Files {
			f.Close()
		}
		return nil, errStranger
	}
	return &w, json.NewDecoder(conn).Decode(&w)
}
