package jobstep

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
)

// Keeper knows who has a seat.
type Keeper struct {
	listener *net.UnixListener
	cancel   context.CancelFunc

	mu     sync.Mutex
	seats  map[*net.UnixConn]bool
	said   []byte // what everybody is told, nil for not yet
	files  []int
	closed bool // nobody sits, and nobody can sit down any more
}

// errLeft is why the context of a keeper ends.
var errLeft = errors.New("no task of the job step is left")

// Keep takes over the files that the function start of [Meet] got, and lets tasks sit down. The context ends when the last task has left.
func Keep(ctx context.Context, listener, seat *os.File) (*Keeper, context.Context, error) {
	defer listener.Close()
	defer seat.Close()
	if err := unix.Listen(int(listener.Fd()), unix.SOMAXCONN); err != nil { // once more: the peer of who connects is this process then
		return nil, ctx, err
	}
	l, err := net.FileListener(listener)
	if err != nil {
		return nil, ctx, err
	}
	first, err := net.FileConn(seat)
	if err != nil {
		return nil, ctx, err
	}
	k := &Keeper{listener: l.(*net.UnixListener), seats: map[*net.UnixConn]bool{}}
	ctx, cancel := context.WithCancelCause(ctx)
	k.cancel = func() { cancel(errLeft) }
	k.seat(first.(*net.UnixConn))
	go k.accept()
	return k, ctx, nil
}

func (k *Keeper) accept() {
	for {
		conn, err := k.listener.AcceptUnix()
		if err != nil {
			return
		}
		if who, err := peer(conn); err != nil || !known(who) {
			conn.Close()
			continue
		}
		k.seat(conn)
	}
}

// seat gives a task a seat until its connection ends.
func (k *Keeper) seat(conn *net.UnixConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		conn.Close() // the task asks again, and becomes the next keeper
		return
	}
	k.seats[conn] = true
	if k.said != nil {
		k.tell(conn)
	}
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // tasks say nothing
		k.leave(conn)
	}()
}

func (k *Keeper) leave(conn *net.UnixConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	conn.Close()
	delete(k.seats, conn)
	if len(k.seats) == 0 && !k.closed {
		k.closed = true
		k.listener.Close()
		k.cancel()
	}
}

// Welcome tells those who have a seat, and all who come, what they need, and hands them files.
func (k *Keeper) Welcome(payload any, files []*os.File) error {
	p, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	return k.say(Welcome{Payload: p}, files)
}

// Fail tells them why there is nothing.
func (k *Keeper) Fail(err error) {
	_ = k.say(Welcome{Failure: &KeeperError{Text: err.Error(), Advice: fault.HintOf(err), Exit: fault.CodeOf(err)}}, nil) // it is plain data
}

func (k *Keeper) say(w Welcome, files []*os.File) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	text = append(text, '\n')
	k.said = text
	for _, f := range files {
		k.files = append(k.files, int(f.Fd()))
	}
	for conn := range k.seats {
		k.tell(conn)
	}
	return nil
}

// tell says to one task what there is to say; one that does not listen has gone. A welcome fits into a socket's buffer.
func (k *Keeper) tell(conn *net.UnixConn) {
	control := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
	if len(k.files) > 0 {
		control = append(control, unix.UnixRights(k.files...)...)
	}
	if _, _, err := conn.WriteMsgUnix([]byte(" "), control, nil); err == nil { // white space that JSON can follow
		_, _ = conn.Write(k.said)
	}
}
