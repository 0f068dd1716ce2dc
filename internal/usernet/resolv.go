package usernet

import (
	"bytes"
	"net/netip"
	"strings"
)

// maxNames is how many name servers programs look at (resolv.conf(5), MAXNS).
const maxNames = 3

const dnsPort = 53

// NameServer is the address of name server i in the name space.
func NameServer(i int) netip.Addr {
	a := Gateway4.As4()
	a[3] = byte(dnsPort + i)
	return netip.AddrFrom4(a)
}

// Resolv reads a resolv.conf of this machine (resolv.conf(5)). It returns the servers in it, for [New], and what the file has to be in the
// name space, where these have other addresses. All else in it stays, such as the domains that are searched.
func Resolv(file []byte) (names []netip.AddrPort, inside []byte) {
	var kept bytes.Buffer
	for line := range strings.Lines(string(file)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "nameserver" {
			kept.WriteString(line)
			continue
		}
		if len(fields) < 2 || len(names) == maxNames {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil {
			names = append(names, netip.AddrPortFrom(address, dnsPort))
		}
	}
	if len(names) == 0 { // as the C library does
		names = append(names, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort))
	}
	if kept.Len() > 0 && !bytes.HasSuffix(kept.Bytes(), []byte("\n")) {
		kept.WriteByte('\n')
	}
	for i := range names {
		kept.WriteString("nameserver " + NameServer(i).String() + "\n")
	}
	return names, kept.Bytes()
}
