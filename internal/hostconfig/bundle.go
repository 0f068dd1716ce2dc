package hostconfig

import (
	"crypto/x509"
	"encoding/pem"
	"os"
)

// Bundle is the file with the certificates that this machine trusts, the first of those that distributions have; "" where there is none. A
// file without any certificate, as in a system that has never been set up, is none.
func Bundle() string { return firstBundle(bundles) }

func firstBundle(files []string) string {
	for _, name := range files {
		if data, err := os.ReadFile(name); err == nil && hasCertificate(data) {
			return name
		}
	}
	return ""
}

// hasCertificate reports whether there is a certificate in data, which is in the form of RFC 7468.
func hasCertificate(data []byte) bool {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return false
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			return true
		}
		data = rest
	}
}
