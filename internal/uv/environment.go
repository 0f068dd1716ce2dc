package uv

import (
	"slices"
	"strings"

	"sconce.dev/sconce/internal/hostconfig"
)

// bundle is the variable by which uv, as OpenSSL, is told in which file the certificates are that it believes.
const bundle = "SSL_CERT_FILE"

// trust are the variables by which users tell uv whom to believe.
var trust = []string{bundle, "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"}

// Environment is what uv is run with where a user has env: it believes whom this machine believes, as sconce does. By itself uv has a list of
// its own, in which a site's certificate is not. Who has said whom to believe, by a variable, is followed, and a machine without any
// certificates leaves uv those that it has.
//
// The file is named, and uv is not told to look for the system's certificates: it ends with an error where it finds none.
func Environment(env []string) []string {
	said := func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return value != "" && slices.Contains(trust, name)
	}
	if slices.ContainsFunc(env, said) {
		return env
	}
	if file := hostconfig.Bundle(); file != "" {
		return append(env, bundle+"="+file)
	}
	return env
}
