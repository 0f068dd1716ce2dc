package registrytest

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// StartWithReferrers starts a registry in this process that lists what is about a manifest, and returns HOST:PORT.
func StartWithReferrers(t testing.TB) string {
	t.Helper()
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(quiet)))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return strings.TrimPrefix(srv.URL, "http://")
}
