package uv

import (
	"slices"
	"strings"

	"sconce.dev/sconce/internal/hostconfig"
)

// trust are the variables by which users tell uv which certificates to believe.
var trust = []string{"UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// Environment is what uv is run with where a user has env: it believes whom this machine believes, as sconce does. By itself uv has a list of
// its own, in which a site's certificate is not. Who has said what to believe, by a variable, is followed, and a machine without any
// certificates leaves uv those that it has.
func Environment(env []string) []string {
	said := func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return value != "" && slices.Contains(trust, name)
	}
	if slices.ContainsFunc(env, said) || !hostconfig.HasBundle() {
		return env
	}
	return append(env, "UV_SYSTEM_CERTS=1", "UV_NATIVE_TLS=1") // the second is for releases that do not know the first
}
