package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/quote"
)

var errBadRange = errors.New("the server answered with another part of the file than the one asked for")

// diskError marks a failure to write what was downloaded, which no further attempt can mend.
type diskError struct{ err error }

func (e *diskError) Error() string { return "write to the store: " + e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

// SizeError says that the server has a file of another size.
type SizeError struct{ want, got int64 }

func (e *SizeError) Error() string {
	return fmt.Sprintf("wrong size: expected %d bytes, the server has %d", e.want, e.got)
}

// StatusError is an answer with a status that is not success.
type StatusError struct {
	Code       int
	Host       string
	Detail     string        // what the server says about it, shortened and fit for a terminal
	Body       []byte        // the beginning of the answer, for who understands it
	RetryAfter time.Duration // 0 when the server does not say
}

func (e *StatusError) Error() string {
	msg := fmt.Sprintf("%s answered %d %s", e.Host, e.Code, http.StatusText(e.Code))
	if e.Detail != "" {
		msg += ": " + e.Detail
	}
	return msg
}

// hint says what a user can do about a refusal.
func (e *StatusError) hint(r Request) string {
	switch e.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return e.login(r)
	case http.StatusNotFound:
		return "check the address; a server may also hide what you may not see: " + e.login(r)
	case http.StatusProxyAuthRequired:
		return "the proxy wants credentials: put them in HTTPS_PROXY as http://user:password@host:port"
	}
	return ""
}

// login says where credentials for the server come from.
func (e *StatusError) login(r Request) string {
	if r.Login != "" {
		return r.Login
	}
	if r.OfRecipe {
		return fmt.Sprintf("credentials for %s are looked for in the URL, and in netrc if you let that host see them: add `--allow-login %s`, or logins = [%q] under [network] in config.toml",
			e.Host, e.Host, e.Host)
	}
	return fmt.Sprintf("credentials for %s are looked for in the URL and in netrc ($NETRC, else ~/.netrc)", e.Host)
}

// maxDetail bounds how much of an error answer's body is read for its message, in bytes.
const maxDetail = 16 << 10

// NewStatusError makes an error of an answer, quoting what a server says in its body.
func NewStatusError(resp *http.Response) *StatusError {
	e := &StatusError{Code: resp.StatusCode, RetryAfter: parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())}
	if resp.Request != nil {
		e.Host = resp.Request.URL.Host
	}
	e.Body, _ = io.ReadAll(io.LimitReader(resp.Body, maxDetail)) // what cannot be read is not quoted
	if !strings.Contains(resp.Header.Get("Content-Type"), "html") {
		e.Detail = Printable(string(e.Body)) // a page for a browser explains nothing in a terminal
	}
	return e
}

// maxQuote bounds what an error quotes of a server's words, in bytes.
const maxQuote = 300

// Printable makes a server's words fit for a terminal: one short line without control characters.
func Printable(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '\ufffd' || quote.Harmful(r) }), " ")
	if len(s) > maxQuote {
		s = strings.ToValidUTF8(s[:maxQuote], "") + "…"
	}
	return s
}

// parseRetryAfter reads seconds or a date (RFC 9110 section 10.2.3); 0 when there is nothing to read.
func parseRetryAfter(s string, now time.Time) time.Duration {
	if secs, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && secs >= 0 {
		return time.Duration(min(secs, int(24*time.Hour/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// retryStatus reports whether a status may be gone at the next attempt.
func retryStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return code >= 500
}

// ErrDone ends [Client.Retry] well: there is nothing left to do.
var ErrDone = errors.New("done")

// Retry calls try until it succeeds, fails in a way that another attempt would not change, or has failed too often since
// it last made progress. again is false at the first call. An error with a method Transient() bool says itself whether
// another attempt makes sense. Within another Retry, whose context try must pass on, there is one attempt only: attempts that
// multiply would outlast any limit.
func (c *Client) Retry(ctx context.Context, try func(ctx context.Context, again bool) (progress bool, err error)) error {
	if ctx.Value(retrying{}) != nil {
		_, err := try(ctx, false)
		return ended(err)
	}
	ctx = context.WithValue(ctx, retrying{}, true)
	retry := c.newRetry()
	for again := false; ; again = true {
		progress, err := try(ctx, again)
		if err == nil || !transient(err) {
			return ended(err)
		}
		if progress {
			retry.reset()
		}
		if err := retry.wait(ctx, err); err != nil {
			return plain(err)
		}
	}
}

// retrying is the key under which a context says that what is done under it is tried again as a whole.
type retrying struct{}

// ended is what the last attempt's error is to the caller.
func ended(err error) error {
	if errors.Is(err, ErrDone) {
		return nil
	}
	return plain(err)
}

// Transient reports whether another attempt at what failed with err may go better.
func Transient(err error) bool { return transient(err) }

// transient reports whether another attempt may go better.
func transient(err error) bool {
	var own interface{ Transient() bool }
	if errors.As(err, &own) {
		return own.Transient()
	}
	var status *StatusError
	if errors.As(err, &status) {
		return retryStatus(status.Code)
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Timeout() {
		return true // which Go, at times, calls a DeadlineExceeded, although it is the dialer's own; the caller's ends [retry.wait]
	}
	var disk *diskError
	var redirect *redirectError
	if errors.As(err, &disk) || errors.As(err, &redirect) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if errors.Is(err, errBadRange) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return true
	}
	return networkTrouble(err) && !configTrouble(err)
}

func networkTrouble(err error) bool {
	var opErr net.Error
	var urlErr *url.Error
	return errors.As(err, &opErr) || errors.As(err, &urlErr)
}

// configTrouble recognises failures that stay until somebody changes a name, a certificate or a scheme.
func configTrouble(err error) bool {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsNotFound
	}
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid) ||
		errors.As(err, &verify) || errors.As(err, &record) ||
		strings.Contains(err.Error(), "unsupported protocol scheme") ||
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}
