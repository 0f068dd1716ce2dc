// Package registry speaks to image registries as the OCI distribution specification describes them: it finds the server
// that stands behind a name (mirrors, plain http), proves who the user is, reads and writes manifests and blobs, and small
// things that are no images: [Artifact].
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// MaxManifest bounds a manifest or index, in bytes: what the distribution specification asks registries to accept.
const MaxManifest = 4 << 20

// Options say how a [Repository] is used.
type Options struct {
	Fetch *fetch.Client
	Push  bool     // ask for the right to write
	From  []string // other repositories of the same registry that blobs will be mounted from
	User  string   // use the login of this user; "" means the first one found

	Beside *Repository // what it found out about its server counts, and the other way round, if the server is the same; nil: all is found out anew
}

// Repository is one repository on one server. Its methods may be called from many goroutines.
type Repository struct {
	at     Endpoint
	client *fetch.Client
	auth   *authorizer
	calls  *http.Client
	server *server
}

// server is what was found out about a server, for all repositories that share it.
type server struct {
	mu         sync.Mutex
	scheme     string      // "" until it was asked
	challenges []challenge // that it answers with to who does not say who he is; nil: it never did
}

// New returns the repository at an endpoint. Nothing is sent until something is asked for.
func New(at Endpoint, o Options) *Repository {
	r := &Repository{at: at, client: o.Fetch, server: &server{}}
	if b := o.Beside; b != nil && b.at.server() == at.server() && b.at.Insecure == at.Insecure {
		r.server = b.server
	} else if !at.Insecure && !at.loopback() {
		r.server.scheme = "https"
	}
	inner := o.Fetch.Transport()
	if at.Insecure {
		inner = o.Fetch.UncheckedTransport()
	}
	r.auth = newAuthorizer(at, inner, r.server, o)
	r.calls = &http.Client{Transport: r.auth, CheckRedirect: fetch.CheckRedirect}
	return r
}

// Name returns HOST/PATH.
func (r *Repository) Name() string { return r.at.Host + "/" + r.at.Path }

// Host returns the registry's name.
func (r *Repository) Host() string { return r.at.Host }

// base returns the beginning of the repository's URLs. A server of this machine, and one that the user's configuration
// calls insecure, may speak plain http: it is asked once.
func (r *Repository) base(ctx context.Context) (string, error) {
	s := r.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scheme == "" {
		err := r.client.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
			s.scheme, err = r.probe(ctx)
			return false, err
		})
		if err != nil {
			return "", r.explain(err)
		}
	}
	return s.scheme + "://" + r.at.server() + "/v2/" + r.at.Path + "/", nil
}

// probe finds out whether the server speaks https. An insecure one is asked for https first, so that what can be
// encrypted is; one of this machine for http first. A server that is away says nothing of its scheme: that is an error.
func (r *Repository) probe(ctx context.Context) (string, error) {
	schemes := []string{"https", "http"}
	if r.at.loopback() {
		schemes = []string{"http", "https"}
	}
	for i, scheme := range schemes {
		last := i == len(schemes)-1
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+r.at.server()+"/v2/", nil)
		if err != nil {
			return "", err
		}
		resp, err := r.client.Once(&http.Client{Transport: r.auth.inner}, req, 0)
		if err != nil && (errors.Is(err, context.Canceled) || errors.Is(err, fetch.ErrOffline)) {
			return "", err
		}
		if err != nil {
			if !last && speaksOther(err) {
				continue
			}
			if fetch.Transient(err) {
				return "", err
			}
			return scheme, nil // the real request will meet the same, and report it
		}
		resp.Body.Close()
		if !last && scheme == "http" && resp.StatusCode == http.StatusBadRequest {
			continue // how Go's and nginx's https servers answer to plain http
		}
		return scheme, nil
	}
	return schemes[1], nil
}

// speaksOther reports whether an https request failed because the server does not speak it.
func speaksOther(err error) bool {
	text := err.Error()
	return strings.Contains(text, "server gave HTTP response to HTTPS client") ||
		strings.Contains(text, "first record does not look like a TLS handshake") ||
		strings.Contains(text, "connection refused")
}

// URL returns the address of a part of the repository: "blobs/sha256:…", "manifests/latest".
func (r *Repository) URL(ctx context.Context, part string) (string, error) {
	base, err := r.base(ctx)
	return base + part, err
}

// Do sends a request with the user's credentials, and again when the server is in trouble. A status that is none of want
// is an error that says what the registry says.
func (r *Repository) Do(req *http.Request, want ...int) (*http.Response, error) {
	resp, err := r.client.Do(r.calls, req)
	if err != nil {
		return nil, r.explain(err)
	}
	for _, code := range want {
		if resp.StatusCode == code {
			return resp, nil
		}
	}
	defer resp.Body.Close()
	return nil, r.explain(newStatusError(resp))
}

// Send is Do without a second attempt, for requests whose failure needs thought before the next one. extra is how much longer
// than usual the registry may take to answer.
func (r *Repository) Send(req *http.Request, extra time.Duration) (*http.Response, error) {
	return r.client.Once(r.calls, req, extra)
}

// Status makes an error of an answer.
func (r *Repository) Status(resp *http.Response) error {
	return r.explain(newStatusError(resp))
}

// Error says what a registry answered, in the words of its own error document.
type Error struct {
	*fetch.StatusError
	Codes []string // of the distribution specification: "MANIFEST_UNKNOWN"
}

func (e *Error) Unwrap() error { return e.StatusError }

// explain adds the hint that belongs to a refusal.
func (r *Repository) explain(err error) error {
	var status *fetch.StatusError
	if !errors.As(err, &status) {
		return err
	}
	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Hint(err, loginHint(r.at))
	case http.StatusNotFound:
		return fault.Hint(err, fmt.Sprintf("check the name; some registries answer so to users who are not logged in: `sconce login %s`", quote.Word(r.at.Host)))
	case http.StatusRequestEntityTooLarge:
		return fault.Hint(err, "the registry, or a proxy before it, takes no request of this size: whoever runs it can raise that limit")
	case http.StatusTooManyRequests:
		return fault.Hint(err, "the registry limits how often it is asked: wait a while, or log in, which often raises the limit; "+loginHint(r.at))
	}
	if status.Code >= http.StatusInternalServerError {
		return fault.Hint(err, "the registry is in trouble itself: try again later")
	}
	return err
}

// manifestTypes are all forms of manifest and index that are understood.
const manifestTypes = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, " +
	"application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"

// Manifest reads the manifest or index called reference, a tag or a digest, and checks it against the digest. The bytes
// are those the registry holds.
func (r *Repository) Manifest(ctx context.Context, reference string) (data []byte, mediaType string, err error) {
	url, err := r.URL(ctx, "manifests/"+reference)
	if err != nil {
		return nil, "", err
	}
	err = r.client.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		data, mediaType, err = r.readManifest(ctx, url)
		return false, err
	})
	if err == nil {
		err = checkManifest(data, reference)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read manifest %s of %s: %w", reference, r.Name(), err)
	}
	return data, mediaType, nil
}

func (r *Repository) readManifest(ctx context.Context, url string) (data []byte, mediaType string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", manifestTypes)
	resp, err := r.Do(req, http.StatusOK)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err = ctxio.ReadAtMost(resp.Body, MaxManifest)
	mediaType, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	return data, strings.TrimSpace(mediaType), err
}

func checkManifest(data []byte, reference string) error {
	want, err := store.ParseDigest(reference)
	if err != nil {
		return nil //nolint:nilerr // a tag promises nothing
	}
	if got := store.DigestOf(data); got != want {
		return &store.MismatchError{Want: want, Got: got, Size: int64(len(data))}
	}
	return nil
}

// HasManifest returns the digest of the manifest called reference, or "" when there is none or the registry does not
// say.
func (r *Repository) HasManifest(ctx context.Context, reference string) (store.Digest, error) {
	url, err := r.URL(ctx, "manifests/"+reference)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", manifestTypes)
	resp, err := r.Do(req, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	d, err := store.ParseDigest(resp.Header.Get("Docker-Content-Digest"))
	if resp.StatusCode != http.StatusOK || err != nil {
		return "", nil //nolint:nilerr // the registry does not say
	}
	return d, nil
}

// Blob brings a blob into the store of the repository's fetch client. size is in bytes, 0 when not known; name is the
// label for progress.
func (r *Repository) Blob(ctx context.Context, d store.Digest, size int64, name string) error {
	return r.FollowBlob(ctx, d, size, name, nil)
}

// FollowBlob is Blob for a caller who reads the bytes as they arrive: see [fetch.Request].
func (r *Repository) FollowBlob(ctx context.Context, d store.Digest, size int64, name string, follow func(io.ReadCloser)) error {
	url, err := r.URL(ctx, "blobs/"+string(d))
	if err != nil {
		return err
	}
	return r.client.Blob(ctx, fetch.Request{
		URL: url, Digest: d, Size: size, Name: name, Client: r.calls, Login: loginHint(r.at), Follow: follow,
	})
}

// Endpoint is where a repository is found.
type Endpoint struct {
	Host     string // HOST[:PORT] as users write it
	Path     string // of the repository
	Insecure bool   // certificates are not checked and plain http is allowed
}

// The names that Docker's registry goes by: users write the first, the second answers.
const (
	hubName   = "docker.io"
	hubServer = "registry-1.docker.io"
)

// server is the host to connect to.
func (e Endpoint) server() string {
	if CanonicalHost(e.Host) == hubName {
		return hubServer
	}
	return e.Host
}

// loopback reports whether the server is on this machine.
func (e Endpoint) loopback() bool {
	host := e.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// CanonicalHost gives the registry of Docker, which has several names, one.
func CanonicalHost(host string) string {
	switch host {
	case "index.docker.io", hubServer, "registry.hub.docker.com":
		return hubName
	}
	return host
}
