package image

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A health check's start interval is in the configuration where Docker looks for it, and nothing else of it changes.
func TestStartInterval(t *testing.T) {
	c := &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{
		User: "app", Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "x"}, StartPeriod: time.Minute},
	}}
	plain, err := encodeConfig(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	data, err := encodeConfig(c, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(plain), `"StartPeriod":60000000000}`, `"StartPeriod":60000000000,"StartInterval":2000000000}`, 1); !sameJSON(t, want, string(data)) {
		t.Errorf("got %s, want %s", data, want)
	}
	c.Config.Healthcheck = nil
	if data, err := encodeConfig(c, time.Second); err != nil || strings.Contains(string(data), "StartInterval") {
		t.Errorf("without a check: %s, %v", data, err)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}
