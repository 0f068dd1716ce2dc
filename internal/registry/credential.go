package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Credential is a user's login at a registry. The zero value is nobody.
type Credential struct {
	User, Password string
	IdentityToken  string // to be exchanged for a token (OAuth2)
	RegistryToken  string // sent as it is
}

func (c Credential) empty() bool { return c == Credential{} }

// FindCredential looks for the login at a registry's repository, of the given user unless user is "". The places, in
// order: $REGISTRY_AUTH_FILE, Docker's config.json with its helpers, podman's auth.json, enroot's .credentials, netrc.
func FindCredential(ctx context.Context, host, repository, user string) (Credential, error) {
	host = CanonicalHost(host)
	for _, p := range authFiles() {
		c, err := findInFile(ctx, p, host, repository)
		if err != nil {
			return Credential{}, err
		}
		if !c.empty() && (user == "" || c.User == user) {
			return c, nil
		}
	}
	return findInNetrc(host, user)
}

// authFiles are the files in the format of Docker's config.json.
func authFiles() []string {
	var out []string
	add := func(dir string, elem ...string) {
		if dir != "" {
			out = append(out, filepath.Join(append([]string{dir}, elem...)...))
		}
	}
	home, _ := os.UserHomeDir() // without one there is nothing in it
	add(os.Getenv("REGISTRY_AUTH_FILE"))
	if d := os.Getenv("DOCKER_CONFIG"); d != "" {
		add(d, "config.json")
	} else {
		add(home, ".docker", "config.json")
	}
	add(os.Getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	add(configHome(), "containers", "auth.json")
	return out
}

func configHome() string {
	if d := os.Getenv("XDG_CONFIG_HOME"); d != "" {
		return d
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config")
}

// authFile is Docker's config.json, of which podman's auth.json is a part.
type authFile struct {
	Auths       map[string]authEntry `json:"auths"`
	CredHelpers map[string]string    `json:"credHelpers"`
	CredsStore  string               `json:"credsStore"`
}

type authEntry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	RegistryToken string `json:"registrytoken,omitempty"`
}

// maxAuthFile bounds the file's size, in bytes.
const maxAuthFile = 4 << 20

func findInFile(ctx context.Context, name, host, repository string) (Credential, error) {
	file, err := readAuthFile(name)
	if err != nil {
		return Credential{}, err
	}
	c, err := file.find(ctx, host, repository)
	if err != nil {
		return Credential{}, fmt.Errorf("read credentials from %s: %w", name, err)
	}
	return c, nil
}

func (f *authFile) find(ctx context.Context, host, repository string) (Credential, error) {
	for key, helper := range f.CredHelpers {
		if canonicalKey(key) == host {
			return askHelper(ctx, helper, key)
		}
	}
	entries := map[string]authEntry{}
	for key, e := range f.Auths {
		entries[canonicalKey(key)] = e
	}
	for at := host + "/" + repository; at != "." && at != "/"; at = path.Dir(at) { // podman keeps logins per repository
		if e, ok := entries[at]; ok {
			if c, err := e.credential(); err != nil || !c.empty() {
				return c, err
			}
		}
	}
	if f.CredsStore == "" {
		return Credential{}, nil
	}
	key := host
	if host == hubName {
		key = hubKey
	}
	return askHelper(ctx, f.CredsStore, key)
}

// hubKey is the name under which Docker keeps the login at its own registry.
const hubKey = "https://index.docker.io/v1/"

// canonicalKey brings a key of auths to HOST[:PORT][/REPOSITORY].
func canonicalKey(key string) string {
	rest := key
	for _, scheme := range []string{"https://", "http://"} {
		if r, ok := strings.CutPrefix(rest, scheme); ok {
			rest, _, _ = strings.Cut(r, "/") // what follows is the API's version
		}
	}
	rest = strings.Trim(rest, "/")
	host, repository, ok := strings.Cut(rest, "/")
	if !ok || repository == "v1" || repository == "v2" {
		return CanonicalHost(host)
	}
	return CanonicalHost(host) + "/" + repository
}

func (e authEntry) credential() (Credential, error) {
	c := Credential{User: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth == "" {
		return c, nil
	}
	decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(e.Auth), "="))
	if err != nil {
		return Credential{}, errors.New("an auth field is not base64")
	}
	user, password, ok := strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
	if !ok {
		return Credential{}, errors.New("an auth field is not USER:PASSWORD in base64")
	}
	c.User, c.Password = user, password
	return c, nil
}

// helperForm keeps a configuration file from naming a program outside of PATH.
var helperForm = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// helperTimeout bounds a credential helper, which may ask another server.
const helperTimeout = 30 * time.Second

// askHelper runs docker-credential-NAME as Docker does: the server's name on stdin, the login as JSON on stdout. A helper
// that is not installed knows nothing: such a file often comes from another machine.
func askHelper(ctx context.Context, name, server string) (Credential, error) {
	if !helperForm.MatchString(name) {
		return Credential{}, fmt.Errorf("%q cannot be the name of a credential helper", name)
	}
	program, err := exec.LookPath("docker-credential-" + name)
	if err != nil {
		return Credential{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	out, err := child.Output(cmd)
	if err != nil {
		if strings.Contains(string(out), "credentials not found") {
			return Credential{}, nil
		}
		return Credential{}, fmt.Errorf("docker-credential-%s for %s: %w", name, server, err)
	}
	return readHelper(out, name)
}

func readHelper(out []byte, name string) (Credential, error) {
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return Credential{}, fmt.Errorf("docker-credential-%s answered something that is not JSON", name)
	}
	if answer.Username == "<token>" {
		return Credential{IdentityToken: answer.Secret}, nil
	}
	return Credential{User: answer.Username, Password: answer.Secret}, nil
}

// findInNetrc looks into enroot's file, which has netrc's form, and netrc.
func findInNetrc(host, user string) (Credential, error) {
	logins, err := readEnroot()
	if err != nil {
		return Credential{}, err
	}
	netrc, err := fetch.ReadNetrc()
	if err != nil {
		return Credential{}, err
	}
	for _, machine := range machines(host) {
		if l, ok := append(logins, netrc...).Find(machine, user); ok {
			return Credential{User: l.User, Password: l.Password}, nil
		}
	}
	return Credential{}, nil
}

// machines are the names that netrc may call a registry by: netrc knows no ports, and enroot's users name the token
// server.
func machines(host string) []string {
	out := []string{host}
	if h, _, err := net.SplitHostPort(host); err == nil {
		out = append(out, h)
	}
	if host == hubName {
		out = append(out, "index.docker.io", hubServer, "auth.docker.io")
	}
	return out
}

// enrootCredentials is the file of enroot's logins.
func enrootCredentials() string {
	return filepath.Join(cmp.Or(os.Getenv("ENROOT_CONFIG_PATH"), filepath.Join(configHome(), "enroot")), ".credentials")
}

func readEnroot() (fetch.Netrc, error) {
	logins, err := fetch.ReadNetrcFile(enrootCredentials())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out fetch.Netrc
	for _, l := range logins {
		if password, ok := expandVariable(l.Password); ok {
			l.Password = password
			out = append(out, l)
		}
	}
	return out, nil
}

var variableForm = lazyregexp.New(`^\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})$`)

// expandVariable replaces a password that is a variable, which enroot's file allows, by its value. Commands, which it
// allows too, are not run: such an entry is left out.
func expandVariable(s string) (string, bool) {
	if !strings.HasPrefix(s, "$") {
		return s, true
	}
	m := variableForm.FindStringSubmatch(s)
	if m == nil {
		return "", false
	}
	return os.LookupEnv(m[1] + m[2])
}

func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fs.ErrNotExist
	}
	return ctxio.ReadAtMost(f, limit)
}
