package usernet

import (
	"context"
	"os"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Device is where the packets of a name space go in and out.
type Device struct {
	// File is a TUN device without packet information, or a packet socket. It must have been opened non-blocking; who uses the device
	// closes it.
	File *os.File
	// Ethernet says that packets have Ethernet's header: those of a packet socket on a pair of virtual devices.
	Ethernet bool
}

// port joins a stack to a device. gVisor has one for file descriptors, which calls Go's runtime by names that are not public; this
// one reads and writes as Go programs do.
type port struct {
	device Device
	link   stack.LinkEndpoint // for the stack
	queue  *channel.Endpoint
}

// queueLength is how many packets of the stack wait for the device, at most.
const queueLength = 256

func newPort(d Device) *port {
	p := &port{device: d, queue: channel.New(queueLength, MTU, gatewayLink)}
	// The kernel leaves checksums out where a packet leaves no machine.
	p.queue.LinkEPCapabilities |= stack.CapabilityRXChecksumOffload
	p.link = p.queue
	if d.Ethernet {
		p.link = ethernet.New(p.queue)
	}
	return p
}

// serve passes packets in both directions until ctx is done, which closes the device.
func (p *port) serve(ctx context.Context) {
	received := make(chan struct{})
	go func() {
		defer close(received)
		p.receive()
	}()
	p.send(ctx)
	p.device.File.Close()
	<-received
}

func (p *port) receive() {
	packet := make([]byte, header.EthernetMinimumSize+64<<10)
	for {
		n, err := p.device.File.Read(packet)
		if err != nil {
			return // closed, or gone with its name space
		}
		protocol, ok := p.protocol(packet[:n])
		if !ok {
			continue
		}
		b := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet[:n])})
		p.queue.InjectInbound(protocol, b)
		b.DecRef()
	}
}

// protocol says what a packet is where no header says it before.
func (p *port) protocol(packet []byte) (tcpip.NetworkProtocolNumber, bool) {
	switch {
	case p.device.Ethernet:
		return 0, len(packet) >= header.EthernetMinimumSize
	case header.IPVersion(packet) == header.IPv4Version:
		return ipv4.ProtocolNumber, true
	case header.IPVersion(packet) == header.IPv6Version:
		return ipv6.ProtocolNumber, true
	}
	return 0, false
}

func (p *port) send(ctx context.Context) {
	for {
		b := p.queue.ReadContext(ctx)
		if b == nil {
			return
		}
		v := b.ToView()
		_, _ = p.device.File.Write(v.AsSlice()) // what cannot be sent is lost, as packets may be
		v.Release()
		b.DecRef()
	}
}
