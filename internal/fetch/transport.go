package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DefaultTransport connects directly or through the proxies that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name, and gives up
// on a server that does not answer in time.
func DefaultTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   20 * time.Second,
		ExpectContinueTimeout: time.Second,
		// Many requests share a connection of HTTP/2, the next attempt of one that fell silent too: a dead one must go.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
	}
}

// pingAfter is after how long without a sign of life an HTTP/2 connection is asked for one, and how long that may take.
const pingAfter = 15 * time.Second

// Transport returns the client's way to the network, for a caller that adds credentials of its own.
func (c *Client) Transport() http.RoundTripper { return c.base }

// Way is how servers are reached for which the user's configuration has rules of their own. The zero value is how all others are reached.
type Way struct {
	Proxy     func(*http.Request) (*url.URL, error) // nil: what [DefaultTransport] does
	Roots     *x509.CertPool                        // that are believed; nil: those of this machine
	Unchecked bool                                  // any certificate will do
}

// Over returns a client for requests that go another way. It knows netrc, as the one for all others does.
func (c *Client) Over(w Way) *http.Client {
	if w.Proxy == nil && w.Roots == nil && !w.Unchecked {
		return c.http // and its connections
	}
	return &http.Client{Transport: basicAuth{client: c, inner: c.over(w)}, CheckRedirect: CheckRedirect}
}

// over is Transport, another way. A transport that was passed in with Options and is of another type stays as it is.
func (c *Client) over(w Way) http.RoundTripper {
	t, ok := c.opts.Transport.(*http.Transport)
	if !ok {
		return c.base
	}
	t = t.Clone()
	if w.Proxy != nil {
		t.Proxy = w.Proxy
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{}
	}
	if w.Roots != nil {
		t.TLSClientConfig.RootCAs = w.Roots
	}
	t.TLSClientConfig.InsecureSkipVerify = w.Unchecked
	return userAgent{t, c.opts.UserAgent}
}

// UncheckedTransport is Transport without verification of certificates, for registries that the user's configuration calls insecure.
func (c *Client) UncheckedTransport() http.RoundTripper { return c.over(Way{Unchecked: true}) }

type userAgent struct {
	inner http.RoundTripper
	agent string
}

func (t userAgent) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("User-Agent") == "" {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", t.agent)
	}
	return t.inner.RoundTrip(req)
}

// basicAuth adds what netrc says about the request's host, on redirects too.
type basicAuth struct {
	client *Client
	inner  http.RoundTripper
	listed bool // for hosts in Options.LoginHosts alone
}

func (t basicAuth) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") != "" || t.listed && !t.client.listsLogin(req.URL) {
		return t.inner.RoundTrip(req)
	}
	rc, err := t.client.readNetrc()
	if err != nil {
		return nil, err
	}
	if l, ok := rc.Find(req.URL.Hostname(), ""); ok {
		req = req.Clone(req.Context())
		req.SetBasicAuth(l.User, l.Password)
	}
	return t.inner.RoundTrip(req)
}

// listsLogin reports whether the user lets the server of an address see logins although only a recipe names it.
func (c *Client) listsLogin(u *url.URL) bool {
	return slices.ContainsFunc(c.opts.LoginHosts, func(host string) bool {
		return strings.EqualFold(host, u.Hostname()) || strings.EqualFold(host, u.Host)
	})
}

func (c *Client) readNetrc() (Netrc, error) {
	c.netrcOnce.Do(func() { c.netrc, c.netrcErr = ReadNetrc() })
	return c.netrc, c.netrcErr
}

// redirectError says that a redirect is not followed.
type redirectError struct{ reason string }

func (e *redirectError) Error() string { return e.reason }

// maxRedirects is how many redirects are followed.
const maxRedirects = 10

// CheckRedirect is for http.Client: it follows no redirect from https to plain http, which would show credentials and
// file names to everybody on the way.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return &redirectError{fmt.Sprintf("stopped after %d redirects", maxRedirects)}
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return &redirectError{fmt.Sprintf("refused a redirect from https to %s://%s", req.URL.Scheme, req.URL.Host)}
	}
	return nil
}

// newRequest makes a request from an URL that may carry credentials; they move to the Authorization header, so that the
// URL can be shown.
func newRequest(ctx context.Context, method, raw string) (*http.Request, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the address is not an URL")
	}
	user := u.User
	u.User = nil
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	return req, nil
}

// DoOfRecipe is Do of a request to a server that only a recipe names, see [Request.OfRecipe].
func (c *Client) DoOfRecipe(req *http.Request) (*http.Response, error) { return c.Do(c.plain, req) }

// Do sends req, which must have no body or one with GetBody, and tries again as [Client.Blob] does; within [Client.Retry] it
// does not, which tries the whole again. hc nil is the client that knows netrc. Any answer that another attempt would not
// change is returned, whatever its status; its body is watched for silence like a download's.
func (c *Client) Do(hc *http.Client, req *http.Request) (*http.Response, error) {
	if hc == nil {
		hc = c.http
	}
	var resp *http.Response
	err := c.Retry(req.Context(), func(ctx context.Context, _ bool) (progress bool, err error) {
		resp, err = c.once(hc, req.WithContext(ctx), 0) //nolint:bodyclose // the caller does
		if err == nil && retryStatus(resp.StatusCode) {
			err = NewStatusError(resp)
			resp.Body.Close()
		}
		return false, err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Once is Do without a second attempt: it sends a copy of req under a watchdog that the returned body carries on. extra is how
// much longer than usual the server may take to answer once it has the request: it may have to read and hash what it was sent.
func (c *Client) Once(hc *http.Client, req *http.Request, extra time.Duration) (*http.Response, error) {
	resp, err := c.once(hc, req, extra)
	if err != nil {
		return nil, plain(err)
	}
	return resp, nil
}

func (c *Client) once(hc *http.Client, req *http.Request, extra time.Duration) (*http.Response, error) {
	if c.opts.Offline {
		return nil, fmt.Errorf("%s %s: %w", req.Method, Redact(req.URL.String()), ErrOffline)
	}
	ctx, watch := newWatchdog(req.Context(), c.opts.IdleTimeout)
	again := req.Clone(ctx)
	if err := watchUpload(again, watch, extra); err != nil {
		watch.stop()
		return nil, err
	}
	resp, err := hc.Do(again)
	if err != nil {
		defer watch.stop()
		return nil, c.unknown(req.URL.Host, watch.cause(err))
	}
	c.answered.Store(req.URL.Host, true)
	watch.start()
	resp.Body = &watchedBody{body: resp.Body, watch: watch}
	return resp, nil
}

// Redact returns an URL without what could be a secret: user, password and query.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(an address that is not an URL)"
	}
	secret := u.RawQuery != ""
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	if secret {
		return u.String() + "?…"
	}
	return u.String()
}

// plain takes the URL out of an error of net/http: it may carry a signature, and the caller names the server anyway.
func plain(err error) error {
	var urlErr *url.Error
	if !errors.As(err, &urlErr) {
		return err
	}
	text := strings.ReplaceAll(err.Error(), urlErr.Error(), urlErr.Err.Error())
	var first *unknownServerError
	if errors.As(err, &first) {
		return &unknownServerError{&plainError{text: text, err: urlErr.Err}} // it decides how long is waited
	}
	return &plainError{text: text, err: urlErr.Err}
}

// plainError shows text and unwraps to err.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }
