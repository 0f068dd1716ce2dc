// Package registrytest starts real registries for tests and puts trouble in front of them.
package registrytest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// Run runs a program and fails the test with its output when it fails.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(tooltest.Path(t, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Skopeo runs skopeo, without regard to signature policies or TLS.
func Skopeo(t testing.TB, args ...string) string {
	t.Helper()
	return Run(t, "skopeo", append([]string{"--insecure-policy"}, args...)...)
}

// Isolate points everything that looks for credentials and configuration to an empty home, which is returned.
func Isolate(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "ENROOT_CONFIG_PATH", "NETRC"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "run"))
	t.Setenv("CONTAINERS_REGISTRIES_CONF", filepath.Join(home, "registries.conf"))
	return home
}

// The user that [Start] knows when it is told to ask for one.
const (
	User     = "joe"
	Password = "hunter2"
)

// Start runs Debian's docker-registry on this machine and returns HOST:PORT. With login it asks for [User] and
// [Password].
func Start(t testing.TB, login bool) string {
	t.Helper()
	program := tooltest.Path(t, "docker-registry")
	dir := t.TempDir()
	host := tooltest.ClosedPort(t)
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage:\n  filesystem: {rootdirectory: %q}\n  delete: {enabled: true}\nhttp: {addr: %q, secret: test}\n",
		filepath.Join(dir, "data"), host)
	if login {
		entry := Run(t, "htpasswd", "-B", "-C", "4", "-bn", User, Password) // the least cost there is: it is paid for each request
		users := filepath.Join(dir, "htpasswd")
		if err := os.WriteFile(users, []byte(entry), 0o600); err != nil {
			t.Fatal(err)
		}
		config += fmt.Sprintf("auth:\n  htpasswd: {realm: test, path: %q}\n", users)
	}
	name := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", name)
	// Variables that begin with REGISTRY_ change its configuration; podman's REGISTRY_AUTH_FILE is one of them by accident.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "REGISTRY_") })
	// It makes much garbage of each request and keeps little: half of its time is the collector's unless that is told to wait for more.
	cmd.Env = append(cmd.Env, "GOGC=800")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waitFor(t, host)
	return host
}

func waitFor(t testing.TB, host string) {
	t.Helper()
	for range 500 {
		if c, err := net.Dial("tcp", host); err == nil {
			c.Close()
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("the registry does not start")
}

// Proxy stands in front of a registry, counts, and makes trouble.
type Proxy struct {
	Host     string
	Requests atomic.Int64
	Sent     atomic.Int64 // bytes of answers' bodies
	Received atomic.Int64 // bytes of requests' bodies
}

// NewProxy starts a proxy in front of the registry at host. trouble sees every request first; when it returns true, it
// has answered. It may end the connection with panic(http.ErrAbortHandler).
func NewProxy(t testing.TB, host string, trouble func(w http.ResponseWriter, r *http.Request) bool) *Proxy {
	t.Helper()
	p := &Proxy{}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Requests.Add(1)
		w = &countingWriter{w, &p.Sent}
		if r.Body != nil {
			r.Body = &countingBody{r.Body, &p.Received}
		}
		if trouble != nil && trouble(w, r) {
			return
		}
		forward.ServeHTTP(w, r) // the Host header stays, so the registry's addresses lead back here
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	p.Host = srv.Listener.Addr().String()
	return p
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(int64(n))
	return n, err
}

// Unwrap lets http.ResponseController find the flusher.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type countingBody struct {
	rc interface {
		Read(p []byte) (int, error)
		Close() error
	}
	n *atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	b.n.Add(int64(n))
	return n, err
}

func (b *countingBody) Close() error { return b.rc.Close() }

// CutWriter passes n bytes of an answer's body and then ends the connection.
func CutWriter(w http.ResponseWriter, n int64) http.ResponseWriter { return &cutWriter{w, n} }

type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (w *cutWriter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), w.left)
	_, _ = w.ResponseWriter.Write(p[:n])
	if w.left -= n; w.left == 0 {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		time.Sleep(20 * time.Millisecond) // what was sent arrives before the end
		panic(http.ErrAbortHandler)
	}
	return int(n), nil
}

// Forward passes a request on to the registry at host, for a trouble that changes only the answer.
func Forward(host string, w http.ResponseWriter, r *http.Request) {
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host}).ServeHTTP(w, r)
}
