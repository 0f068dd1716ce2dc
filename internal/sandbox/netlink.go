package sandbox

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/usernet"
)

// netlink changes devices, addresses and routes of the network name space that it was opened in (netlink(7), rtnetlink(7)).
type netlink struct{ fd int }

func openNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("make a netlink socket", err)
	}
	return &netlink{fd}, nil
}

func (nl *netlink) close() { unix.Close(nl.fd) }

// configure brings the device up and gives it usernet's addresses, those of IPv6 where they lead anywhere and this
// kernel has it.
func (nl *netlink) configure(ipv6 bool) error {
	index, err := nl.up(deviceName)
	if err != nil {
		return err
	}
	if err := errors.Join(nl.address(index, usernet.Address4), nl.route(index, usernet.Gateway4)); err != nil {
		return err
	}
	if ipv6 && nl.address(index, usernet.Address6) == nil {
		_ = nl.route(index, usernet.Gateway6)
	}
	return nil
}

// up sets a device's MTU, brings it up and returns its number.
func (nl *netlink) up(name string) (int, error) {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(nl.fd, unix.SIOCGIFINDEX, req)
	}
	if err != nil {
		return 0, os.NewSyscallError("find the device "+name, err)
	}
	index := req.Uint32()
	info := unix.IfInfomsg{Index: int32(index), Flags: unix.IFF_UP, Change: unix.IFF_UP}
	return int(index), nl.ask("bring up the device "+name, unix.RTM_NEWLINK, 0, asBytes(&info), attribute(unix.IFLA_MTU, number(usernet.MTU)))
}

// makePair makes a pair of virtual devices.
func (nl *netlink) makePair(name, peer string) error {
	const peerInfo = 1 // VETH_INFO_PEER, linux/veth.h
	other := append(asBytes(&unix.IfInfomsg{}), attribute(unix.IFLA_IFNAME, text(peer))...)
	info := append(attribute(unix.IFLA_INFO_KIND, text("veth")), attribute(unix.IFLA_INFO_DATA, attribute(peerInfo, other))...)
	return nl.ask("make a pair of network devices (veth)", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		asBytes(&unix.IfInfomsg{}), attribute(unix.IFLA_IFNAME, text(name)), attribute(unix.IFLA_LINKINFO, info))
}

func (nl *netlink) address(index int, a netip.Prefix) error {
	info := unix.IfAddrmsg{Family: family(a.Addr()), Prefixlen: uint8(a.Bits()), Flags: unix.IFA_F_NODAD, Index: uint32(index)}
	value := a.Addr().AsSlice()
	return nl.ask("set an address", unix.RTM_NEWADDR, unix.NLM_F_CREATE, asBytes(&info), attribute(unix.IFA_LOCAL, value), attribute(unix.IFA_ADDRESS, value))
}

// route sends all that has no better way over a gateway.
func (nl *netlink) route(index int, gateway netip.Addr) error {
	info := unix.RtMsg{Family: family(gateway), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST}
	return nl.ask("set a route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE, asBytes(&info),
		attribute(unix.RTA_GATEWAY, gateway.AsSlice()), attribute(unix.RTA_OIF, number(uint32(index))))
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ask sends a request and waits for its answer.
func (nl *netlink) ask(what string, kind, flags uint16, parts ...[]byte) error {
	header := unix.NlMsghdr{Len: unix.NLMSG_HDRLEN, Type: kind, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | flags}
	for _, p := range parts {
		header.Len += uint32(len(p))
	}
	request := asBytes(&header)
	for _, p := range parts {
		request = append(request, p...)
	}
	if err := unix.Sendto(nl.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError(what, err)
	}
	answer := make([]byte, 8<<10)
	n, _, err := unix.Recvfrom(nl.fd, answer, 0)
	if err == nil && n < unix.NLMSG_HDRLEN+4 {
		err = unix.EBADMSG
	}
	if err != nil {
		return os.NewSyscallError(what, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return os.NewSyscallError(what, unix.Errno(-code))
	}
	return nil
}

// attribute makes a struct rtattr with its value, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	b := asBytes(&unix.RtAttr{Len: uint16(unix.SizeofRtAttr + len(value)), Type: kind})
	b = append(b, value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func text(s string) []byte { return append([]byte(s), 0) }

// asBytes copies a structure of the kernel's interface, which has no pointers and a size that is a multiple of four.
func asBytes[T any](v *T) []byte {
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}
