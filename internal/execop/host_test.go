package execop

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/layer"
)

// A command sees the host's configuration, and its layer is the one of a command that does not.
func TestHostConfiguration(t *testing.T) {
	b := newBench(t)
	b.Layer.Compression = layer.None
	c := sh(`if [ -n "$PIP_CONFIG_FILE" ]; then cat "$PIP_CONFIG_FILE"; fi; echo "$OWN"; echo made >/made`)
	c.Env = []string{"OWN=step"}
	without, _ := b.run(c)
	b.Host = &hostconfig.Config{
		Files:   []hostconfig.File{{Target: hostconfig.Dir + "/pip.conf", Content: []byte("index http://u:hunter2-and-more@x/\n")}},
		Env:     []string{"PIP_CONFIG_FILE=" + hostconfig.Dir + "/pip.conf", "OWN=host"},
		Secrets: [][]byte{[]byte("hunter2-and-more")},
	}
	with, out := b.run(c)
	if out != "index http://u:***@x/\nstep\n" {
		t.Errorf("output %q", out)
	}
	if with.Digest != without.Digest {
		t.Errorf("the layer is %s with the configuration and %s without: %v", with.Digest, without.Digest, b.entries(with))
	}
	wantNowhere(t, "hunter2-and-more", b.everything())
	c = sh(`cat /run/sconce-host/pip.conf; ! echo x >/run/sconce-host/pip.conf`)
	c.User = "1000"
	d, _ := b.run(c)
	b.wantEntries(d)
}

// A certificate that is not trusted has a hint, unless it would say what was done.
func TestUntrustedCertificate(t *testing.T) {
	for _, line := range []string{
		"ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain (_ssl.c:1006)",
		"curl: (60) SSL certificate problem: unable to get local issuer certificate",
		"fatal: unable to access 'https://x/': server certificate verification failed. CAfile: none CRLfile: none",
		"  Certificate verification failed: The certificate is NOT trusted. The certificate issuer is unknown.",
		"npm error code SELF_SIGNED_CERT_IN_CHAIN",
		"  Caused by: invalid peer certificate: UnknownIssuer",
		"tls: failed to verify certificate: x509: certificate signed by unknown authority",
		"ERROR: cannot verify x's certificate, issued by 'CN=y':",
	} {
		f := &Failure{Code: 1, Tail: []string{"before", line, "after"}}
		if !strings.Contains(f.Hint(), "--host-config ca") {
			t.Errorf("%s: %s", line, f.Hint())
		}
		f.hostCA = true
		if strings.Contains(f.Hint(), "--host-config") {
			t.Errorf("with the host's: %s", f.Hint())
		}
	}
	if f := (&Failure{Code: 1, Tail: []string{"wrote the certificate"}}); strings.Contains(f.Hint(), "--host-config") {
		t.Error(f.Hint())
	}
}
