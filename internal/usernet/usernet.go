// Package usernet connects a network name space with the world outside, without any right on the machine: it reads the packets that
// leave by a device of the name space, and carries on what they say over ordinary sockets of this process.
//
// The protocols are gVisor's (gvisor.dev/gvisor/pkg/tcpip). A connection that begins in the name space is made from here first; it is
// answered when that one stands, and refused when that one is, so who asks sees what it would see without us. What this machine
// offers to itself alone, on its loopback, is reached by nobody.
//
//	usernet.go   the network and its addresses     relay.go   connections, one by one
//	device.go    packets in and out                resolv.go  names: /etc/resolv.conf
package usernet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// MTU is that of the device: as large as packets can be, for what costs time is their number.
const MTU = 65520

// The addresses of the network. Those of IPv4 are of the block for measuring (RFC 2544), which no site routes; those of IPv6 are
// local ones (RFC 4193).
var (
	Address4 = netip.MustParsePrefix("198.18.0.2/24")
	Gateway4 = netip.MustParseAddr("198.18.0.1")
	Address6 = netip.MustParsePrefix("fd73:636f:6e63::2/64")
	Gateway6 = netip.MustParseAddr("fd73:636f:6e63::1")
)

// gatewayLink is the gateway's address on a device that has Ethernet's headers; the first byte says that it is no vendor's.
const gatewayLink = tcpip.LinkAddress("\x02sconc")

const nic tcpip.NICID = 1

// bufferSize bounds what a connection has on its way in each direction, inside of this process, in bytes.
const bufferSize = 4 << 20

// Net is the network of one name space.
type Net struct {
	stack *stack.Stack
	names []netip.AddrPort // of this machine, by the number of our own
	room  chan struct{}    // holds one for each connection
	done  chan struct{}    // closed when the network is
	end   func()           // ends the service of the device
	close sync.Once
}

// New begins to serve a device, until Close. names are the servers that stand behind [NameServer], which may be on this machine's
// loopback.
func New(d Device, names []netip.AddrPort) (*Net, error) {
	n := &Net{names: names, room: make(chan struct{}, maxConnections), done: make(chan struct{})}
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	n.forward()
	p := newPort(d)
	if err := n.configure(p.link); err != nil {
		n.stack.Destroy()
		d.File.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(ctx)
	}()
	n.end = func() {
		cancel()
		<-served
	}
	return n, nil
}

// configure makes a stack that takes packets for any address, and answers from it.
func (n *Net) configure(link stack.LinkEndpoint) error {
	if err := n.stack.CreateNIC(nic, link); err != nil {
		return failed("attach the device", err)
	}
	for _, a := range []struct {
		protocol tcpip.NetworkProtocolNumber
		address  netip.Addr
		bits     int
	}{{ipv4.ProtocolNumber, Gateway4, Address4.Bits()}, {ipv6.ProtocolNumber, Gateway6, Address6.Bits()}} {
		address := tcpip.ProtocolAddress{
			Protocol:          a.protocol,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(a.address.AsSlice()), PrefixLen: a.bits},
		}
		if err := n.stack.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return failed("set an address", err)
		}
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	sack := tcpip.TCPSACKEnabled(true)
	received := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: bufferSize, Max: bufferSize}
	sent := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: bufferSize, Max: bufferSize}
	for _, err := range []tcpip.Error{
		n.stack.SetPromiscuousMode(nic, true),
		n.stack.SetSpoofing(nic, true),
		n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &received),
		n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sent),
	} {
		if err != nil {
			return failed("set an option", err)
		}
	}
	return nil
}

func failed(what string, err tcpip.Error) error {
	return fmt.Errorf("user-mode network: %s: %w", what, errors.New(err.String()))
}

// Close ends all connections, and closes the device.
func (n *Net) Close() {
	n.close.Do(func() {
		close(n.done)
		n.end()
		n.stack.Destroy()
	})
}

// HasIPv6 reports whether this machine knows a way to hosts of IPv6. It sends nothing.
func HasIPv6() bool {
	c, err := net.Dial("udp6", "[2001:db8::1]:9") // an address that nobody has (RFC 3849); any has the same way
	if err != nil {
		return false
	}
	c.Close()
	return true
}
