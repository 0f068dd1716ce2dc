package uv

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/hostconfig"
)

// bundle is the variable by which uv, as OpenSSL, is told in which file the certificates are that it believes.
const bundle = "SSL_CERT_FILE"

// trust are the variables by which users tell uv whom to believe.
var trust = []string{bundle, "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"}

// passed are the variables of a user that uv, and the git and ssh that it starts, get: where things are, and how servers are reached. Some
// are the beginning of names.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "XDG_*", "TMPDIR", "NETRC",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
	"GIT_ASKPASS", "GIT_SSH*", "GIT_SSL_*", "GIT_PROXY_*", "GIT_HTTP_*", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_TERMINAL_PROMPT", "GIT_ALLOW_PROTOCOL", "GIT_EXEC_PATH",
	"SSH_AUTH_SOCK", "SSH_ASKPASS*", "KRB5*", "DBUS_SESSION_BUS_ADDRESS", "PYTHON_KEYRING_BACKEND", "UV_*",
}

// withheld are those among them that would have uv read other files than it is told to, or take another Python.
var withheld = []string{
	"UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY", "UV_NO_CONFIG", "UV_ENV_FILE", "UV_NO_PROJECT",
	"UV_PYTHON", "UV_PYTHON_PREFERENCE", "UV_SYSTEM_PYTHON", "UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON", "UV_PYTHON_SEARCH_PATH",
}

// proxies are the variables of proxies, in capitals.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}

// lists are variables of files, which a user names as seen from the directory of the call; paths are those of one each.
var (
	lists = []string{"UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_BUILD_CONSTRAINT"}
	paths = []string{"UV_CONFIG_FILE", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"}
)

// Environment is what uv is run with where a user has env: variables by a list, as uv puts the value of any into an address that says
// ${NAME}, even where a package says it. Proxies, whose addresses may hold a login, have small names, of which uv does not do that.
//
// uv believes whom this machine believes, as sconce does. By itself uv has a list of its own, in which a site's certificate is not. Who has
// said whom to believe, by a variable, is followed, and a machine without any certificates leaves uv those that it has. The file is
// named, and uv is not told to look for the system's certificates: it ends with an error where it finds none.
func Environment(env []string) []string {
	value := map[string]string{}
	for _, kv := range env {
		name, v, _ := strings.Cut(kv, "=")
		value[name] = v
	}
	out := []string{"UV_NO_ENV_FILE=1"}
	for _, kv := range env {
		name, v, _ := strings.Cut(kv, "=")
		if !isPassed(name) || v != value[name] { // of two values the later one counts
			continue
		}
		switch {
		case v == "":
		case slices.Contains(lists, name):
			kv = name + "=" + absolute(" ", strings.Fields(v)...)
		case name == "UV_FIND_LINKS":
			kv = name + "=" + absolute(",", strings.Split(v, ",")...)
		case slices.Contains(paths, name):
			kv = name + "=" + absolute("", v)
		}
		out = append(out, kv)
	}
	for _, name := range proxies {
		small := strings.ToLower(name)
		if v := cmp.Or(value[small], value[name]); v != "" {
			out = append(out, small+"="+v)
		}
	}
	if slices.ContainsFunc(trust, func(name string) bool { return value[name] != "" }) {
		return out
	}
	if file := hostconfig.Bundle(); file != "" {
		return append(out, bundle+"="+file)
	}
	return out
}

func isPassed(name string) bool {
	return !slices.Contains(withheld, name) && slices.ContainsFunc(passed, func(p string) bool {
		stem, several := strings.CutSuffix(p, "*")
		return name == p || several && strings.HasPrefix(name, stem)
	})
}

// absolute makes paths absolute, and a list of them with what is to stand between them.
func absolute(between string, words ...string) string {
	for i, word := range words {
		if full, err := filepath.Abs(strings.TrimSpace(word)); err == nil && !strings.Contains(word, "://") {
			words[i] = full
		}
	}
	return strings.Join(words, between)
}

// WithoutSecrets takes the secrets out of an environment for uv: those of indexes, and what is for other commands of uv. What logins uv needs is
// told in another way.
func WithoutSecrets(env []string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "UV_") && slices.ContainsFunc([]string{"USERNAME", "PASSWORD", "TOKEN", "PUBLISH"}, func(word string) bool {
			return strings.Contains(name, word)
		})
	})
	for i, kv := range out {
		if name, list, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "UV_") && strings.Contains(list, "@") {
			out[i] = name + "=" + fetch.WithoutLogins(list)
		}
	}
	return out
}
