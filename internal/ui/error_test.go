package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
)

// Whatever a command wanted of the network, there is a word on what to do, unless somebody knew better.
func TestNetworkHints(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	getBy := func(proxy *url.URL, address string, dial func(context.Context, string, string) (net.Conn, error)) error {
		client := &http.Client{Transport: &http.Transport{DialContext: dial, Proxy: http.ProxyURL(proxy)}}
		resp, err := client.Get(address)
		if err == nil {
			resp.Body.Close()
			t.Fatalf("%s answered", address)
		}
		return fmt.Errorf("read the manifest: %w", err)
	}
	get := func(address string, dial func(context.Context, string, string) (net.Conn, error)) error {
		return getBy(nil, address, dial)
	}
	const registry = "http://registry.invalid/v2/"
	proxy := &url.URL{Scheme: "http", Host: "proxy.invalid:3128"}
	fails := func(err error) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	noName := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "registry.invalid", IsNotFound: true}}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a signer nobody knows":  {get(server.URL, nil), "SSL_CERT_FILE"},
		"a name nobody knows":    {get("https://registry.invalid/v2/", fails(noName)), "is the name right"},
		"nobody there":           {get(registry, fails(refused)), "HTTPS_PROXY"},
		"a proxy that is gone":   {getBy(proxy, registry, fails(refused)), "names a proxy"},
		"a proxy nobody knows":   {getBy(proxy, registry, fails(noName)), "names a proxy"},
		"another hint":           {fault.Hint(get(registry, fails(refused)), "wait"), "hint: wait\n"},
		"nothing of the network": {errors.New("broken"), "error: broken\n"},
	} {
		var out bytes.Buffer
		PrintError(&out, c.err, false)
		if hints := strings.Count(out.String(), "hint:"); !strings.Contains(out.String(), c.want) || hints > 1 || name == "nothing of the network" && hints > 0 {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}

// A name of several lines begins neither a cause nor a hint, in errors, warnings, notes and hints.
func TestForgedLines(t *testing.T) {
	name := "a\n  because: x\nhint: x\r\nerror: x\nwarning: x"
	const bars = "a\n  | because: x\n  | hint: x\n  | error: x\n  | warning: x"
	for want, err := range map[string]error{
		"error: " + bars + "\nhint: " + bars + "\n":        fault.Hint(errors.New(name), name),
		"error: read\n  because: open " + bars + ": bad\n": fmt.Errorf("read: %w", &fs.PathError{Op: "open", Path: name, Err: errors.New("bad")}),
	} {
		var out bytes.Buffer
		if PrintError(&out, err, false); out.String() != want {
			t.Errorf("%s\nwant\n%s", &out, want)
		}
	}
	e := progress.Event{Kind: progress.Warning, Text: name, Hint: name}
	if got, want := (style{}).message(e), "warning: "+bars+"\nhint: "+bars+"\n"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
