package usernet

import (
	"context"
	"io"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// maxConnections bounds those that a name space has at once, and with them the files that this process has open.
	maxConnections = 1024
	// dialTimeout is as long as Linux waits for an answer by itself, with six repetitions (tcp(7), tcp_syn_retries).
	dialTimeout = 127 * time.Second
	// idleUDP is how long a pair of addresses is remembered between which nothing was sent.
	idleUDP = time.Minute
	// copySize is how much is copied at once: a few packets of the largest size.
	copySize = 256 << 10
	maxUDP   = 64 << 10
)

// forward has every connection that begins in the name space come to us.
func (n *Net) forward() {
	connections := tcp.NewForwarder(n.stack, 0, maxConnections, func(r *tcp.ForwarderRequest) { n.connect(r) })
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, connections.HandlePacket)
	messages := udp.NewForwarder(n.stack, func(r *udp.ForwarderRequest) bool {
		n.answer(r)
		return true
	})
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, messages.HandlePacket)
}

// destination returns where something leads that was sent to an address of the name space's world. ok is false where nothing of it
// may lead: to what this machine offers to itself alone, and to groups.
func (n *Net) destination(id stack.TransportEndpointID) (to netip.AddrPort, ok bool) {
	address, ok := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	if !ok {
		return to, false
	}
	address = address.Unmap()
	for i, name := range n.names {
		if address == NameServer(i) {
			return name, id.LocalPort == name.Port()
		}
	}
	if address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || address == broadcast || Address4.Contains(address) || Address6.Contains(address) {
		return to, false
	}
	return netip.AddrPortFrom(address, id.LocalPort), true
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// take takes room for a connection; without any left it is false.
func (n *Net) take() bool {
	select {
	case n.room <- struct{}{}:
		return true
	default:
		return false
	}
}

// dial connects from this machine.
func (n *Net) dial(network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	go func() {
		select {
		case <-n.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	var d net.Dialer
	return d.DialContext(ctx, network, to.String())
}

// connect answers who wants a connection, once it has one of ours.
func (n *Net) connect(r *tcp.ForwarderRequest) {
	to, ok := n.destination(r.ID())
	if !ok || !n.take() {
		r.Complete(true)
		return
	}
	defer func() { <-n.room }()
	outer, err := n.dial("tcp", to)
	if err != nil {
		r.Complete(true)
		return
	}
	defer outer.Close()
	var queue waiter.Queue
	end, refused := r.CreateEndpoint(&queue)
	r.Complete(refused != nil)
	if refused != nil {
		return
	}
	end.SocketOptions().SetDelayOption(false)
	inner := gonet.NewTCPConn(&queue, end)
	defer inner.Close()
	n.relay(inner, outer.(*net.TCPConn))
}

// half is a connection of which one direction can be ended.
type half interface {
	net.Conn
	CloseWrite() error
}

// relay copies in both directions, each to its own end, until both have ended, one has failed or the network is closed.
func (n *Net) relay(a, b half) {
	ends := make(chan error, 2)
	pass := func(to, from half) {
		err := pump(to, from)
		if err == nil {
			err = to.CloseWrite()
		}
		ends <- err
	}
	go pass(a, b)
	go pass(b, a)
	for range 2 {
		select {
		case err := <-ends:
			if err == nil {
				continue
			}
		case <-n.done:
		}
		return // the caller closes both, which ends the other direction
	}
}

// pump copies until there is no more.
func pump(to io.Writer, from io.Reader) error {
	buffer := make([]byte, copySize)
	for {
		count, err := from.Read(buffer)
		if count > 0 {
			if _, err := to.Write(buffer[:count]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// answer makes an end for messages between two addresses, of which this is the first. It is there when the next one comes: resolvers
// send two questions at once.
func (n *Net) answer(r *udp.ForwarderRequest) {
	to, ok := n.destination(r.ID())
	if !ok || !n.take() {
		return
	}
	inner, err := n.endpoint(r)
	if err != nil {
		<-n.room
		return
	}
	go n.message(inner, to)
}

// message passes messages between two addresses on, until there are none for a while.
func (n *Net) message(inner net.Conn, to netip.AddrPort) {
	defer func() { <-n.room }()
	defer inner.Close()
	outer, err := n.dial("udp", to)
	if err != nil {
		return
	}
	defer outer.Close()
	ends := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		defer func() { ends <- struct{}{} }()
		buffer := make([]byte, maxUDP)
		for {
			// A message in either direction keeps both alive.
			count, err := from.Read(buffer)
			if err != nil {
				return
			}
			until := time.Now().Add(idleUDP)
			_, _ = from.SetReadDeadline(until), to.SetReadDeadline(until)
			_, _ = to.Write(buffer[:count]) // which may be lost, as messages may
		}
	}
	_ = outer.SetReadDeadline(time.Now().Add(idleUDP))
	go pass(inner, outer)
	go pass(outer, inner)
	select {
	case <-ends:
	case <-n.done:
	}
}

func (n *Net) endpoint(r *udp.ForwarderRequest) (*gonet.UDPConn, tcpip.Error) {
	var queue waiter.Queue
	end, err := r.CreateEndpoint(&queue)
	if err != nil {
		return nil, err
	}
	return gonet.NewUDPConn(&queue, end), nil
}
