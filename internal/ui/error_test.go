package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
)

// Whatever a command wanted of the network, there is a word on what to do, unless somebody knew better.
func TestNetworkHints(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	get := func(url string, dial func(context.Context, string, string) (net.Conn, error)) error {
		client := &http.Client{Transport: &http.Transport{DialContext: dial}}
		resp, err := client.Get(url)
		if err == nil {
			resp.Body.Close()
			t.Fatalf("%s answered", url)
		}
		return fmt.Errorf("read the manifest: %w", err)
	}
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
		"nobody there":           {get("http://registry.invalid/v2/", fails(refused)), "HTTPS_PROXY"},
		"another hint":           {fault.Hint(get("http://registry.invalid/v2/", fails(refused)), "wait"), "hint: wait\n"},
		"nothing of the network": {errors.New("broken"), "error: broken\n"},
	} {
		var out bytes.Buffer
		PrintError(&out, c.err, false)
		if hints := strings.Count(out.String(), "hint:"); !strings.Contains(out.String(), c.want) || hints > 1 || name == "nothing of the network" && hints > 0 {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}
