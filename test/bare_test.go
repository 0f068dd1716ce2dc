package test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
	"sconce.dev/sconce/internal/uv"
)

// bare is a machine with the user land of a login node, which has nothing of what others make images with. It is entered as an ordinary user,
// whose home is in it.
type bare struct {
	t    *testing.T
	root string
}

const (
	bareUser = 4711
	bareHome = "/home/ada"
)

// bareCommands are all that this user land has besides sconce, in busybox. There is no apt, dpkg, gpg, perl, Python or uv; nor a tar or
// a compressor.
var bareCommands = strings.Fields("sh cat chmod cp env grep head id ls mkdir mount mv pivot_root ping rm sed sleep sort stat su tail test tr umount uname vi")

// The user lands of login nodes: what says which one it is, and where the certificates are that the machine trusts. That of SUSE has no /etc/pki, and
// its bundle is a link.
var (
	rhel = land{"NAME=\"Rocky Linux\"\nVERSION=\"9.4 (Blue Onyx)\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\n", "/etc/pki/tls/certs/ca-bundle.crt", nil}
	sles = land{
		"NAME=\"SLES\"\nVERSION=\"15-SP6\"\nVERSION_ID=\"15.6\"\nID=\"sles\"\nID_LIKE=\"suse\"\n", "/var/lib/ca-certificates/ca-bundle.pem",
		map[string]string{"/etc/ssl/ca-bundle.pem": "/var/lib/ca-certificates/ca-bundle.pem", "/etc/ssl/certs": "/var/lib/ca-certificates/pem"},
	}
)

type land struct {
	osRelease string
	bundle    string // of certificates
	links     map[string]string
}

func newBare(t *testing.T) *bare {
	t.Helper()
	return newBareOf(t, rhel)
}

func newBareOf(t *testing.T, l land) *bare {
	t.Helper()
	needRoot(t) // to enter it with pivot_root: user name spaces are not made in a chroot
	dir, err := os.MkdirTemp(workshop, "bare-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bare{t, dir}
	for _, d := range []string{"bin", "usr/local/bin", "root", "proc", "sys", "dev", "run", "tmp", bareHome} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky), os.Chown(filepath.Join(dir, bareHome), bareUser, bareUser),
		copyFile(tooltest.Path(t, "busybox"), filepath.Join(dir, "bin/busybox")), copyFile(filepath.Join(workshop, "bin/sconce"), filepath.Join(dir, "usr/local/bin/sconce")))
	for _, name := range bareCommands {
		err = errors.Join(err, os.Symlink("busybox", filepath.Join(dir, "bin", name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.write("/etc/os-release", l.osRelease)
	b.write("/etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\nada:x:%d:%[1]d::%s:/bin/sh\n", bareUser, bareHome))
	b.write("/etc/group", fmt.Sprintf("root:x:0:\nada:x:%d:\n", bareUser))
	b.write(l.bundle, "")
	for name, to := range l.links {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		b.write(name, string(text))
	}
	return b
}

// write puts a file there. What is below the home belongs to the user.
func (b *bare) write(name, text string) {
	b.t.Helper()
	file := filepath.Join(b.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		b.t.Fatal(err)
	}
	if strings.HasPrefix(name, bareHome) {
		for ; file != filepath.Join(b.root, bareHome); file = filepath.Dir(file) {
			if err := os.Chown(file, bareUser, bareUser); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// enter makes $0 the root of a mount name space of its own and runs the arguments there as the user.
const enter = `set -e
mount -o rbind "$0" "$0"
for d in proc sys dev; do mount -o rbind /$d "$0/$d"; done
cd "$0"
pivot_root . .
umount -l .
cd ` + bareHome + `
exec su -- ada -c 'exec "$0" "$@"' "$@"`

// run runs a command there to its end.
func (b *bare) run(args ...string) result {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), filepath.Join(b.root, "bin/busybox"), slices.Concat([]string{"sh", "-c", enter, b.root}, args)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/bin", "no_proxy=127.0.0.1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS}
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return result{args: args, code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

func (b *bare) must(args ...string) string {
	b.t.Helper()
	r := b.run(args...)
	if r.code != 0 {
		b.t.Fatal(r)
	}
	return r.stdout
}

// debianMirror serves what the mirror has that the tests' base came from, on this machine.
func debianMirror(t *testing.T) string {
	t.Helper()
	upstream := debianUpstream(t)
	return httpServer(t, upstreamProxy(upstream), httptest.NewServer).URL + upstream.Path
}

// httpServer starts a server that ends with the test.
func httpServer(t *testing.T, h http.Handler, start func(http.Handler) *httptest.Server) *httptest.Server {
	t.Helper()
	server := start(h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server
}

// upstreamProxy passes requests on, paths as they are.
func upstreamProxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, to.Host
	}}
}

// debianUpstream is the mirror that the tests' base came from.
func debianUpstream(t *testing.T) *url.URL {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join(base(t).recipe, "sconce.lock"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`['"](https?://[^'"]*)/pool/`).FindSubmatch(lock)
	if found == nil {
		t.Fatal("the base's lock names no package")
	}
	upstream, err := url.Parse(strings.TrimSuffix(string(found[1]), "-security"))
	if err != nil {
		t.Fatal(err)
	}
	return upstream
}

// uvWheel has the index serve the uv that sconce brings where a machine has none.
func uvWheel(t *testing.T, dir string) {
	t.Helper()
	platform := map[string]string{"amd64": "musllinux_1_1_x86_64", "arm64": "manylinux_2_17_aarch64"}[runtime.GOARCH]
	found, err := filepath.Glob(filepath.Join(dir, "uv-"+uv.Version+"-*"+platform+"*.whl"))
	if err != nil || len(found) > 0 {
		return
	}
	args := append(pip(t), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", dir, "--platform", platform, "uv=="+uv.Version)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		tooltest.Missing(t, "download uv: %v\n%s", err, out)
	}
}

// On a login node of RHEL's kind an ordinary user has an image, from a recipe, a Containerfile and a definition file, with nothing
// but the binary: no apt, dpkg, gpg, perl, Python or uv. What comes from the network are a distribution's packages, an index's and
// a registry's.
func TestNothingButTheBinary(t *testing.T) {
	begin(t)
	b := newBare(t)
	host := registrytest.StartWithReferrers(t)
	newPlace(t, nil).must("copy", base(t).ref, "docker://"+host+"/team/base:1")
	ix := newIndex(t)
	uvWheel(t, ix.dir)
	mirror := debianMirror(t)
	b.write("/etc/sconce/config.toml", fmt.Sprintf("[mirrors]\ndebian = %q\n", mirror))
	b.write("/etc/pip.conf", "[global]\nindex-url = "+ix.url+"/simple/\n")

	if who := b.must("id", "-u"); who != fmt.Sprintln(bareUser) {
		t.Fatalf("it runs as %s", who)
	}

	t.Run("the starter recipe", func(t *testing.T) {
		b := &bare{t, b.root}
		b.must("sconce", "init", "starter")
		b.must("sconce", "build", "starter", "-o", "starter.sqsh")
		for _, image := range []string{"starter:0.1", "starter.sqsh"} {
			if out := b.must("sconce", "run", image, "--", "python", "-c", "import numpy; print(numpy.arange(4).sum())"); out != "6\n" {
				t.Errorf("%s printed %q", image, out)
			}
		}
		if ix.downloads()["uv-"+uv.Version+"-py3-none-musllinux_1_1_x86_64.whl"] != 1 && runtime.GOARCH == "amd64" {
			t.Errorf("uv did not come from the index, once: %v", ix.downloads())
		}
	})
	t.Run("a Containerfile", func(t *testing.T) {
		b := &bare{t, b.root}
		b.write(bareHome+"/app/Containerfile", "FROM "+host+"/team/base:1\nCOPY greeting /opt/\nRUN python3 -c 'print(open(\"/opt/greeting\").read().upper())' >/opt/loud\n"+
			"CMD [\"cat\", \"/opt/loud\"]\n")
		b.write(bareHome+"/app/greeting", "hello")
		b.must("sconce", "build", "app", "-t", "app:1", "-o", "app.sif")
		for _, image := range []string{"app:1", "app.sif"} {
			if out := b.must("sconce", "run", image); out != "HELLO\n" {
				t.Errorf("%s printed %q", image, out)
			}
		}
	})
	t.Run("a definition file", func(t *testing.T) {
		b := &bare{t, b.root}
		b.write(bareHome+"/greet.def", "Bootstrap: docker\nFrom: "+host+"/team/base:1\n\n%post\n    python3 -c 'print(6 * 7)' >/opt/answer\n\n"+
			"%environment\n    export WORD=answer\n\n%runscript\n    cat /opt/$WORD\n\n%test\n    test -s /opt/answer\n")
		b.must("sconce", "build", "greet.def", "-o", "greet.sif")
		for _, image := range []string{"greet:latest", "greet.sif"} {
			if out := b.must("sconce", "run", image); out != "42\n" {
				t.Errorf("%s printed %q", image, out)
			}
		}
	})
	t.Run("a definition file of packages", func(t *testing.T) {
		b := &bare{t, b.root}
		b.write(bareHome+"/packages.def", "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: "+mirror+"\nInclude: less \\\n  ed\n\n"+
			"%runscript\n    command -v less; command -v ed\n")
		b.must("sconce", "build", "packages.def")
		if out := b.must("sconce", "run", "packages"); out != "/usr/bin/less\n/usr/bin/ed\n" && out != "/usr/bin/less\n/bin/ed\n" {
			t.Errorf("it printed %q", out)
		}
	})
}

// siteAuthority makes a site's own authority, and a certificate that it has signed, of a server on this machine, which may have names: few
// programs believe a server whose certificate is an authority's.
func siteAuthority(t *testing.T, names ...string) (server tls.Certificate, authority string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "The site's authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "The site's index"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
	}
	own, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.CreateCertificate(rand.Reader, of, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own}))
}

// startedWith starts a server that has a certificate.
func startedWith(c tls.Certificate) func(http.Handler) *httptest.Server {
	return func(h http.Handler) *httptest.Server {
		server := httptest.NewUnstartedServer(h)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{c}}
		server.StartTLS()
		return server
	}
}

// wantNoAuthority locks a recipe anew, and wants to hear that nobody vouches for the index and what to do.
func wantNoAuthority(b *bare, what string) {
	b.t.Helper()
	r := b.run("sconce", "lock", "--upgrade", "llm")
	if r.code == 0 || !strings.Contains(r.stderr, "SSL_CERT_FILE names a file with your site's authority") || !strings.Contains(r.stderr, what) {
		b.t.Errorf("nobody vouches for the index, %q: %v", what, r)
	}
}

// On a login node of SUSE's kind the certificates that the machine trusts are elsewhere. Servers with one of the site's are believed there,
// a server that nobody has vouched for is not; uv, which comes from such an index, believes the same ones. A build gets the certificates with --host-config ca.
func TestNothingButTheBinaryOnSLES(t *testing.T) {
	begin(t)
	b := newBareOf(t, sles)
	host := registrytest.StartWithReferrers(t)
	newPlace(t, nil).must("copy", base(t).ref, "docker://"+host+"/team/base:1")
	ix := newIndex(t)
	upstream := debianUpstream(t)
	registry := httpServer(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", host }}, httptest.NewTLSServer)
	mirror := httpServer(t, upstreamProxy(upstream), httptest.NewTLSServer)
	certificate, authority := siteAuthority(t)
	ix.url = httpServer(t, ix, startedWith(certificate)).URL
	uvWheel(t, ix.dir)
	b.write("/etc/pip.conf", "[global]\nindex-url = "+ix.url+"/simple/\n")
	image := strings.TrimPrefix(registry.URL, "https://") + "/team/base:1"
	for _, args := range [][]string{{"pull", "docker://" + image}, {"info", "--network"}} {
		r := b.run(append([]string{"sconce"}, args...)...)
		if !strings.Contains(r.stdout+r.stderr, "SSL_CERT_FILE names a file with your site's authority") {
			t.Errorf("nobody vouches for the server: %v", r)
		}
	}

	servers := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: registry.Certificate().Raw}))
	b.write(sles.bundle, servers)
	b.write(bareHome+"/llm/sconce.toml", recipe("docker://"+image, []string{"six"}))
	wantNoAuthority(b, "could not be brought")
	b.write(sles.bundle, servers+authority)
	b.must("sconce", "build", "llm")
	if out := b.must("sconce", "run", "app:1", "--", "python", "-c", "import six; print(six.PY3)"); out != "True\n" {
		t.Errorf("it printed %q", out)
	}
	b.write(sles.bundle, servers)
	wantNoAuthority(b, "uv could not resolve the Python packages")
	b.write(sles.bundle, servers+authority)
	if out := b.must("sconce", "info", "--network"); !strings.Contains(out, ix.url+"/simple/ answers") {
		t.Errorf("the index is not believed:\n%s", out)
	}
	b.write(bareHome+"/app/Containerfile", "FROM "+image+"\nRUN cp \"$SSL_CERT_FILE\" /opt/given\nCMD [\"cat\", \"/opt/given\"]\n")
	b.must("sconce", "build", "--host-config", "ca", "app", "-t", "app:1")
	if out := b.must("sconce", "run", "app:1"); out != b.must("cat", "/etc/ssl/ca-bundle.pem") {
		t.Errorf("the build was given %q", out)
	}
	b.write(bareHome+"/packages.def", "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: "+mirror.URL+upstream.Path+"\nInclude: less\n\n%runscript\n    command -v less\n")
	b.must("sconce", "build", "packages.def")
	if out := b.must("sconce", "run", "packages"); out != "/usr/bin/less\n" {
		t.Errorf("it printed %q", out)
	}
}
