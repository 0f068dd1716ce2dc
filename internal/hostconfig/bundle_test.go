package hostconfig

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// The bundle is the first file that has a certificate: not one that is empty, damaged, or missing.
func TestFirstBundle(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	srv.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	damaged := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw[1:]})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: srv.Certificate().Raw})
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	none := []string{filepath.Join(dir, "missing"), dir, file("empty", nil), file("text", []byte("# none yet\n")), file("damaged", damaged), file("key", key)}
	if got := firstBundle(none); got != "" {
		t.Errorf("%s has no certificate", got)
	}
	good := file("good", append(damaged, certificate...))
	if got := firstBundle(append(none, good, file("second", certificate))); got != good {
		t.Errorf("%q, want %s", got, good)
	}
}
