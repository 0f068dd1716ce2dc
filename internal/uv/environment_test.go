package uv

import (
	"slices"
	"testing"

	"sconce.dev/sconce/internal/hostconfig"
)

// uv believes whom the machine does, unless its user has said otherwise.
func TestEnvironment(t *testing.T) {
	file := hostconfig.Bundle()
	if file == "" {
		t.Fatal("this machine has no certificates")
	}
	for _, said := range []string{"UV_SYSTEM_CERTS=false", "UV_NATIVE_TLS=0", "SSL_CERT_FILE=/site.pem", "SSL_CERT_DIR=/site"} {
		env := []string{"HOME=/home/a", said}
		if got := Environment(env); !slices.Equal(got, env) {
			t.Errorf("%s: %q", said, got)
		}
	}
	if got := Environment([]string{"HOME=/home/a", "SSL_CERT_FILE="}); !slices.Contains(got, "SSL_CERT_FILE="+file) {
		t.Errorf("nothing is said: %q", got)
	}
}
