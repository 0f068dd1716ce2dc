package uv

import (
	"path/filepath"
	"slices"
	"strings"
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
		got := Environment([]string{"HOME=/home/a", said})
		if !slices.Contains(got, said) || said != "SSL_CERT_FILE=/site.pem" && slices.Contains(got, "SSL_CERT_FILE="+file) {
			t.Errorf("%s: %q", said, got)
		}
	}
	if got := Environment([]string{"HOME=/home/a", "SSL_CERT_FILE="}); !slices.Contains(got, "SSL_CERT_FILE="+file) {
		t.Errorf("nothing is said: %q", got)
	}
}

// uv writes the value of any variable in capitals into an address that names it.
func TestEnvironmentByAList(t *testing.T) {
	here, err := filepath.Abs("c.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := WithoutSecrets(Environment([]string{
		"PATH=/bin", "CI_TOKEN=secret", "HTTPS_PROXY=http://u:secret@p/", "AWS_SECRET_ACCESS_KEY=secret", "UV_INDEX_CORP_PASSWORD=secret",
		"UV_DEFAULT_INDEX=https://u:secret@h/simple", "UV_INDEX=a=https://u:secret@h/a https://secret@h/b", "UV_PUBLISH_TOKEN=secret",
		"UV_PYTHON=./python", "UV_ENV_FILE=.env", "UV_CONSTRAINT=c.txt", "SSL_CERT_FILE=/a",
	}))
	for _, want := range []string{
		"PATH=/bin", "https_proxy=http://u:secret@p/", "UV_DEFAULT_INDEX=https://h/simple", "UV_INDEX=a=https://h/a https://h/b", "UV_CONSTRAINT=" + here,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing in %q", want, got)
		}
	}
	for _, kv := range got {
		name, value, _ := strings.Cut(kv, "=")
		if name == strings.ToUpper(name) && strings.Contains(value, "secret") || name == "UV_PYTHON" || name == "UV_ENV_FILE" {
			t.Errorf("uv gets %s", kv)
		}
	}
}
