package fetch

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// answers is a server of names that says the same to every question, until the test ends.
func answers(t *testing.T, say dnsmessage.RCode) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.RCode, m.Additionals = true, say, nil
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// A name that does not exist is a mistake, of which the user hears at once. Servers of names that are in trouble or away may be back: it
// is tried again, and the exit code says so.
func TestNames(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, c := range map[string]struct {
		server   string
		tryAgain bool
	}{
		"no such name":            {answers(t, dnsmessage.RCodeNameError), false},
		"the server has trouble":  {answers(t, dnsmessage.RCodeServerFailure), true},
		"the server refuses":      {answers(t, dnsmessage.RCodeRefused), true},
		"the server says nothing": {silent.LocalAddr().String(), true},
		"no server is there":      {gone.LocalAddr().String(), true},
	} {
		t.Run(name, func(t *testing.T) {
			transport := DefaultTransport()
			transport.DialContext = (&net.Dialer{Timeout: time.Second, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, c.server)
			}}}).DialContext
			err := New(storetest.New(t), Options{Transport: transport, Attempts: 2, Backoff: time.Millisecond}).
				Blob(t.Context(), Request{URL: "http://name.example.org/file", Digest: store.DigestOf(nil)})
			var unknown *net.DNSError
			if !errors.As(err, &unknown) {
				t.Fatalf("error %v, want one of the name", err)
			}
			if got := fault.CodeOf(err) == fault.CodeTryAgain; got != c.tryAgain {
				t.Errorf("%v: exit code %d", err, fault.CodeOf(err))
			}
			if tried := strings.Contains(err.Error(), "after 2 attempts"); tried != c.tryAgain {
				t.Errorf("tried again %v, want %v: %v", tried, c.tryAgain, err)
			}
		})
	}
}

// A server whose packets get lost is away as one that says so: the dialer gives up before the watchdog does.
func TestPacketsGetLost(t *testing.T) {
	transport := DefaultTransport()
	transport.DialContext = (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext
	err := New(storetest.New(t), Options{Transport: transport, Attempts: 2, Backoff: time.Millisecond}).
		Blob(t.Context(), Request{URL: "http://" + fullQueue(t) + "/file", Digest: store.DigestOf(nil)})
	if err == nil || fault.CodeOf(err) != fault.CodeTryAgain || !strings.Contains(err.Error(), "after 2 attempts") {
		t.Errorf("%v: exit code %d", err, fault.CodeOf(err))
	}
}

// fullQueue is the address of a server that accepts nobody, and where so many wait that the kernel drops who comes.
func fullQueue(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	at, nameErr := syscall.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*syscall.SockaddrInet4).Port))
	for range 100 {
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("everybody is let in")
	return ""
}
