package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/usernet"
)

// A sandbox with a network of its own has a name space for it, and in that a device whose packets the caller's process carries on
// (package usernet). Only a process in the sandbox's name spaces may make the device, so init does, and sends it over a socket, as it does
// with FUSE's.

// deviceKind says what init sends: the byte that comes with the file descriptor.
type deviceKind byte

const (
	tunDevice    deviceKind = 't' // /dev/net/tun
	packetSocket deviceKind = 'p' // on one of a pair of virtual devices
)

// outside is the caller's side of a sandbox's network.
type outside struct {
	socket int // over which the device comes
	names  []netip.AddrPort
	done   chan struct{} // closed when nothing serves the network any more
	ended  chan struct{} // closed when the sandbox is gone
}

// newOutside makes the caller's side, and the socket for init. resolv is this machine's resolv.conf; what the sandbox's is returned.
func newOutside(resolv []byte) (_ *outside, theirs *os.File, inside []byte, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	o := &outside{socket: pair[0], done: make(chan struct{}), ended: make(chan struct{})}
	o.names, inside = usernet.Resolv(resolv)
	return o, os.NewFile(uintptr(pair[1]), "socket"), inside, nil
}

// start serves the network from when init has made the device until stop.
func (o *outside) start(ctx context.Context) {
	go func() {
		defer close(o.done)
		fd, kind, err := receiveFD(o.socket) // or init has failed, and says so itself
		if err != nil || fd < 0 {
			return
		}
		file := os.NewFile(uintptr(fd), "device")
		n, err := usernet.New(usernet.Device{File: file, Ethernet: deviceKind(kind[0]) == packetSocket}, o.names)
		if err != nil {
			progress.Warn(ctx, "the command has no network: "+err.Error(), "--network host gives it this machine's")
			return
		}
		<-o.ended
		n.Close()
	}()
}

// stop ends the network once the sandbox is gone.
func (o *outside) stop() {
	close(o.ended)
	_ = unix.Shutdown(o.socket, unix.SHUT_RDWR) // init may never have been
	<-o.done
	unix.Close(o.socket)
}

// networkTried says whether sandboxes can have networks of their own here; it is found out once.
var networkTried = sync.OnceValue(func() error {
	sp := &spec{Probe: true, Loopback: true, Outside: true}
	return try(newSession(sp))
})

// CheckNetwork tries whether sandboxes of this user can have a network of their own here, with a way out ([Options].OwnNetwork).
func CheckNetwork() error { return networkTried() }

// connectNetwork makes the device, and sends it to the caller.
func (b *builder) connectNetwork() error {
	if !b.spec.Outside || !b.spec.Loopback { // never in the host's
		return nil
	}
	kind, fd, err := makeDevice(b.spec.IPv6)
	if err != nil {
		e := failed("make a network of its own", err)
		e.Fix = "it takes /dev/net/tun, or the kernel's module veth; --network host gives the command this machine's"
		return e
	}
	socket := b.spec.networkFD()
	defer unix.Close(socket)
	defer unix.Close(fd)
	if err := unix.Sendmsg(socket, []byte{byte(kind)}, unix.UnixRights(fd), nil, 0); err != nil {
		return failed("hand the network over", err)
	}
	// Without it a server of a user who is not root could not have the ports that servers have. It is this name space's alone.
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	return nil
}

// makeDevice makes a device that has the addresses and routes of usernet. A TUN device costs less; not every machine lets everybody
// open one.
func makeDevice(ipv6 bool) (deviceKind, int, error) {
	nl, err := openNetlink()
	if err != nil {
		return 0, -1, err
	}
	defer nl.close()
	fd, err := openTUN()
	kind := tunDevice
	if err != nil {
		var pairErr error
		if fd, pairErr = nl.openPair(); pairErr != nil {
			return 0, -1, errors.Join(err, pairErr)
		}
		kind = packetSocket
	}
	if err := nl.configure(ipv6); err != nil {
		unix.Close(fd)
		return 0, -1, err
	}
	return kind, fd, nil
}

// The names of the device, and of what stands for it on our side of a pair.
const (
	deviceName = "eth0"
	peerName   = "outside"
)

// openTUN makes a TUN device (Linux Documentation/networking/tuntap.rst).
func openTUN() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	req, err := unix.NewIfreq(deviceName)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("make a TUN device", err)
	}
	return fd, nil
}

// openPair makes a pair of virtual devices (veth(4)), and opens the other end as a packet socket (packet(7)).
func (nl *netlink) openPair() (int, error) {
	if err := nl.makePair(deviceName, peerName); err != nil {
		return -1, err
	}
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+peerName+"/disable_ipv6", []byte("1"), 0) // nobody is to speak there but the caller
	index, err := nl.up(peerName)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("make a packet socket", err)
	}
	const room = 4 << 20 // a window of packets, which the kernel may cut
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_ALL), Ifindex: index}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind a packet socket", err)
	}
	return fd, nil
}

func bigEndian16(v uint16) uint16 { return v<<8 | v>>8 }
