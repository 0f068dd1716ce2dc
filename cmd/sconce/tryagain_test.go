package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// What may go better at another time, as a server is in trouble or is not reached, has an exit code of its own. What a server refuses, or
// does not have, has not.
func TestTryAgain(t *testing.T) {
	registrytest.Isolate(t)
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "rootfs", "file"), "text")
	answers := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" && status < http.StatusInternalServerError {
				return // there is a registry
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	for _, server := range []struct {
		name, host string
		want       int
	}{
		{"a closed port", tooltest.ClosedPort(t), fault.CodeTryAgain},
		{"503", answers(http.StatusServiceUnavailable), fault.CodeTryAgain},
		{"429", answers(http.StatusTooManyRequests), fault.CodeTryAgain},
		{"401", answers(http.StatusUnauthorized), fault.CodeFailed},
		{"403", answers(http.StatusForbidden), fault.CodeFailed},
		{"404", answers(http.StatusNotFound), fault.CodeFailed},
	} {
		recipe := filepath.Join(dir, "recipe")
		writeText(t, filepath.Join(recipe, "sconce.toml"), "name = \"app\"\nversion = \"1\"\nbase.image = \"docker://"+server.host+"/team/x:1\"\n")
		packages := filepath.Join(dir, "packages")
		writeText(t, filepath.Join(packages, "sconce.toml"), "name = \"app\"\nversion = \"1\"\n[base]\nbootstrap = { suite = \"bookworm\", mirror = \"http://"+server.host+"/debian\" }\n")
		image := "docker://" + server.host + "/team/x:1"
		for _, args := range [][]string{
			{"inspect", image},
			{"pull", image},
			{"run", image, "true"},
			{"copy", image, filepath.Join(dir, "x.sqsh")},
			{"copy", "dir:" + filepath.Join(dir, "rootfs"), image, "--platform", "linux/amd64"},
			{"lock", recipe},
			{"build", recipe},
			{"lock", packages},
			{"login", server.host, "-u", "me", "--password-stdin"}, // of those that do not answer: the others let everybody in
		} {
			if args[0] == "login" && server.name != "503" && server.name != "a closed port" {
				continue
			}
			cmd := exec.CommandContext(t.Context(), "sconce", append([]string{"--store", filepath.Join(dir, "store"), "--patience", "1ms"}, args...)...)
			cmd.Stdin = strings.NewReader("secret\n")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != server.want {
				t.Errorf("%s: sconce %q: %v, and not exit code %d:\n%s", server.name, args, err, server.want, out)
			}
		}
	}
}
