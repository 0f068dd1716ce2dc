package registrytest

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Door is a TCP port in front of a server. When it is shut, all connections break and the port refuses new ones, as when a server's
// process ends; nobody else gets the port meanwhile.
type Door struct {
	Host string // HOST:PORT

	t      testing.TB
	server string
	mu     sync.Mutex
	l      net.Listener // nil while it is shut
	open   map[net.Conn]bool
	left   int64 // bytes that pass, in either direction, until it shuts by itself; negative: it does not
	shuts  int
}

// NewDoor opens a door in front of the server at host.
func NewDoor(t testing.TB, host string) *Door {
	t.Helper()
	// A socket that is bound and never listens: it keeps the port, and listeners come and go beside it.
	keep, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(keep) })
	if err := unix.SetsockoptInt(keep, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(keep, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(keep)
	if err != nil {
		t.Fatal(err)
	}
	d := &Door{Host: fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port), t: t, server: host, open: map[net.Conn]bool{}, left: -1}
	d.Open()
	t.Cleanup(d.Shut)
	return d
}

// Open lets connections through again.
func (d *Door) Open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l != nil {
		return
	}
	l, err := net.Listen("tcp", d.Host)
	if err != nil {
		d.t.Errorf("listen again: %v", err)
		return
	}
	d.l = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is shut
			}
			go d.pass(c)
		}
	}()
}

// Shut breaks all connections, and refuses new ones.
func (d *Door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l == nil {
		return
	}
	d.l.Close()
	d.l = nil
	d.shuts++
	for c := range d.open {
		c.Close()
	}
	clear(d.open)
}

// ShutAfter shuts the door, once, when so many more bytes have passed.
func (d *Door) ShutAfter(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = n
}

// Shuts is how often it was shut.
func (d *Door) Shuts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shuts
}

// pass carries a connection on to the server.
func (d *Door) pass(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", d.server)
	if err != nil || !d.keep(c, s) {
		return
	}
	defer s.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		go func() {
			_, _ = io.Copy(way[1], io.TeeReader(way[0], d)) // until either side ends
			done <- struct{}{}
		}()
	}
	<-done
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, c)
	delete(d.open, s)
}

// keep remembers connections that end when the door is shut; it is false when that has happened.
func (d *Door) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.l == nil {
			c.Close()
			continue
		}
		d.open[c] = true
	}
	return d.l != nil
}

// Write counts what passes.
func (d *Door) Write(p []byte) (int, error) {
	d.mu.Lock()
	before := d.left
	d.left -= min(d.left, int64(len(p)))
	now := before > 0 && d.left == 0
	if now {
		d.left = -1
	}
	d.mu.Unlock()
	if now {
		d.Shut()
	}
	return len(p), nil
}
