package uv

import (
	"slices"
	"testing"

	"sconce.dev/sconce/internal/hostconfig"
)

// uv believes whom the machine does, unless its user has said otherwise.
func TestEnvironment(t *testing.T) {
	if !hostconfig.HasBundle() {
		t.Fatal("this machine has no certificates")
	}
	for _, said := range []string{"UV_SYSTEM_CERTS=false", "UV_NATIVE_TLS=0", "SSL_CERT_FILE=/site.pem", "SSL_CERT_DIR=/site"} {
		env := []string{"HOME=/home/a", said}
		if got := Environment(env); !slices.Equal(got, env) {
			t.Errorf("%s: %q", said, got)
		}
	}
	if got := Environment([]string{"HOME=/home/a", "SSL_CERT_FILE="}); !slices.Contains(got, "UV_SYSTEM_CERTS=1") {
		t.Errorf("nothing is said: %q", got)
	}
}
