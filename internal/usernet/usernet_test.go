package usernet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"sconce.dev/sconce/internal/tooltest"
)

// inside plays the name space: a second stack at the other end of the device, here a pair of sockets.
func inside(t *testing.T, names ...netip.AddrPort) *stack.Stack {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Device{File: os.NewFile(uintptr(pair[0]), "device")}, names)
	if err != nil {
		t.Fatal(err)
	}
	p := newPort(Device{File: os.NewFile(uintptr(pair[1]), "device")})
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol}, TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := s.CreateNIC(nic, p.link); err != nil {
		t.Fatal(err)
	}
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(Address4.Addr()), PrefixLen: 24}}
	if err := s.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(ctx)
	}()
	t.Cleanup(func() {
		n.Close()
		n.Close() // which is no mistake
		cancel()
		<-served
		s.Destroy()
	})
	return s
}

func toAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// Each direction of a connection ends by itself, and nothing is lost before its end.
func TestConnection(t *testing.T) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(tooltest.OutsideAddress(t), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const size = 10 << 20
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		got, _ := io.Copy(io.Discard, c) // to the end of the question
		fmt.Fprintf(c, "%d", got)
	}()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	c, err := gonet.DialTCP(inside(t), tcpip.FullAddress{NIC: nic, Addr: toAddress(to.Addr().Unmap()), Port: to.Port()}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); string(got) != fmt.Sprint(size) || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// A port where nobody listens refuses a connection, rather than taking and closing it.
func TestRefusal(t *testing.T) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(tooltest.OutsideAddress(t), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	to := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	c, err := gonet.DialTCP(inside(t), tcpip.FullAddress{NIC: nic, Addr: toAddress(to.Addr().Unmap()), Port: to.Port()}, ipv4.ProtocolNumber)
	if err == nil {
		c.Close()
		t.Error("connected")
	}
}

// The name servers of this machine are reached under other addresses, also those on its loopback.
func TestNameServer(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte("re: "), buffer[:n]...), from)
		}
	}()
	at := server.LocalAddr().(*net.UDPAddr).AddrPort()
	s := inside(t, netip.MustParseAddrPort("127.0.0.1:1"), at)
	c, err := gonet.DialUDP(s, nil, &tcpip.FullAddress{NIC: nic, Addr: toAddress(NameServer(1)), Port: at.Port()}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := map[string]bool{}
	for i := range 8 { // at once, as resolvers ask
		question := fmt.Sprintf("name%d?", i)
		want["re: "+question] = true
		if _, err := c.Write([]byte(question)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 512)
	for len(want) > 0 {
		n, err := c.Read(buffer)
		if err != nil {
			t.Fatalf("no answers %v: %v", want, err)
		}
		delete(want, string(buffer[:n]))
	}
}

// What a packet names may be made by hand. None leads to what this machine offers to itself alone.
func TestDestinations(t *testing.T) {
	n := &Net{names: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53")}}
	for address, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7:80", "[2001:db8::7]:443": "[2001:db8::7]:443",
		"198.18.0.53:53": "127.0.0.53:53", "198.18.0.53:80": "", "198.18.0.54:53": "", "198.18.0.1:80": "", "[fd73:636f:6e63::1]:80": "",
		"127.0.0.1:80": "", "127.8.8.8:80": "", "[::1]:80": "", "0.0.0.0:80": "", "[::]:80": "", "[::ffff:127.0.0.1]:80": "", "[::ffff:0.0.0.0]:80": "",
		"224.0.0.251:5353": "", "[ff02::1]:80": "", "255.255.255.255:67": "",
	} {
		a := netip.MustParseAddrPort(address)
		to, ok := n.destination(stack.TransportEndpointID{LocalAddress: toAddress(a.Addr()), LocalPort: a.Port()})
		if !ok {
			to = netip.AddrPort{}
		}
		if want == "" && ok || want != "" && to.String() != want {
			t.Errorf("%s leads to %v (%t), want %q", address, to, ok, want)
		}
	}
}

func TestResolv(t *testing.T) {
	for _, c := range []struct {
		file, inside string
		names        []string
	}{
		{"", "nameserver 198.18.0.53\n", []string{"127.0.0.1:53"}},
		{"search a.example b.example\nnameserver 127.0.0.53\noptions edns0", "search a.example b.example\noptions edns0\nnameserver 198.18.0.53\n", []string{"127.0.0.53:53"}},
		{
			"# nameserver 9.9.9.9\nnameserver\t10.0.0.1 # first\nnameserver x\nnameserver\nnameserver fe80::1%eth0\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n",
			"# nameserver 9.9.9.9\nnameserver 198.18.0.53\nnameserver 198.18.0.54\nnameserver 198.18.0.55\n",
			[]string{"10.0.0.1:53", "[fe80::1%eth0]:53", "10.0.0.3:53"},
		},
	} {
		names, inside := Resolv([]byte(c.file))
		var got []string
		for _, n := range names {
			got = append(got, n.String())
		}
		if !slices.Equal(got, c.names) || string(inside) != c.inside {
			t.Errorf("%q: %q with\n%s, want %q with\n%s", c.file, got, inside, c.names, c.inside)
		}
	}
}
