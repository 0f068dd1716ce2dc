package engine_test

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
)

// A channel that lets nobody in without a login gives its packages to a build that has one, in each form that conda and rattler know.
// No lock, no image and no line that is said has it.
func TestCondaLogins(t *testing.T) {
	locktest.UV(t)
	const secret = "tk-7654321"
	for _, c := range []struct {
		name  string
		guard func(s *condatest.Server)
		auth  string                           // of RATTLER_AUTH_FILE
		at    func(s *condatest.Server) string // how the channel is named
	}{
		{"a password in the address", func(s *condatest.Server) { s.Basic("me", secret) }, "", func(s *condatest.Server) string { return s.WithLogin("me", secret) }},
		{"a password in rattler's file", func(s *condatest.Server) { s.Basic("me", secret) }, `{"BasicHTTP": {"username": "me", "password": "` + secret + `"}}`, nil},
		{"a token in rattler's file", func(s *condatest.Server) { s.Bearer(secret) }, `{"BearerToken": "` + secret + `"}`, nil},
		{"conda's token in a variable", func(s *condatest.Server) { s.Token(secret) }, "", func(s *condatest.Server) string { return s.WithToken("${LAB_TOKEN}") }},
		{"a password of what stands for all names", func(s *condatest.Server) { s.Basic("me", secret) }, "", nil},
		{"conda's token in rattler's file", func(s *condatest.Server) { s.Token(secret) }, `{"CondaToken": "` + secret + `"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := condatest.NewChannel(t, plain("a", "1.0")).Serve(t)
			c.guard(server)
			at, private := server.URL, t.TempDir()
			if c.at != nil {
				at = c.at(server)
			}
			if strings.Contains(c.name, "all names") {
				at = "channel"
				t.Setenv("CONDA_CHANNEL_ALIAS", strings.TrimSuffix(server.WithLogin("me", secret), "/channel"))
			}
			locktest.Write(t, private, map[string]string{"auth.json": `{"127.0.0.1": ` + c.auth + `}`})
			if c.auth != "" {
				t.Setenv("RATTLER_AUTH_FILE", filepath.Join(private, "auth.json"))
			}
			t.Setenv("LAB_TOKEN", secret)
			files := condaTable("environment = [\"env.yml\"]\n")
			files["env.yml"] = environmentFile("\""+at+"\"", "dependencies: [a]\n")
			dir := condaRecipe(t, "", files)
			s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store"), Logins: []string{"127.0.0.1"}}) // the channel's is among variables
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			var events locktest.Events
			built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := runIn(t, s, built.Image, "cat", "/opt/conda/share/a"); got != "1.0" {
				t.Errorf("the package is %q", got)
			}
			if got := runIn(t, s, built.Image, "sh", "-c", "grep -rl "+secret+" /opt /etc /root || :"); got != "" {
				t.Errorf("in the image, the login is in %s", got)
			}
			if text := events.Everything(); strings.Contains(text, secret) {
				t.Errorf("the login is told:\n%s", text)
			}
			os.Remove(filepath.Join(dir, "env.yml")) // it may have it
			for _, root := range []string{dir, s.Store.Dir()} {
				if file := holding(t, root, secret); file != "" {
					t.Errorf("the login is in %s", file)
				}
			}

			// And without it, nobody gets in.
			locktest.Write(t, private, map[string]string{"auth.json": "{}"})
			t.Setenv("LAB_TOKEN", "another")
			t.Setenv("CONDA_CHANNEL_ALIAS", "")
			files["env.yml"] = environmentFile(server.URL, "dependencies: [a]\n")
			if _, err := build(t.Context(), newSession(t), condaRecipe(t, "", files), engine.PlanOptions{}, engine.BuildOptions{}); err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("without the login: %v", err)
			}
		})
	}
}

// holding finds a file below a directory that has a text.
func holding(t *testing.T, dir, text string) (found string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(at)
		if strings.Contains(string(data), text) {
			found = at
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A download that breaks off, or that a busy server refuses, goes on; one that cannot be had is told by its name, and the store is sound.
func TestCondaDownloadFaults(t *testing.T) {
	locktest.UV(t)
	big := condatest.Package{Name: "big", Version: "1.0", Noarch: "generic", Pad: 1 << 20, Files: map[string]condatest.File{"share/word": {Data: "1.0\n"}}}
	for _, c := range []struct {
		name  string
		fault func(s *condatest.Server, file string)
		want  string // in the error; "" is none
	}{
		{"cut", func(s *condatest.Server, file string) { s.Cut(file, 2) }, ""},
		{"busy", func(s *condatest.Server, file string) { s.Fail(file, 2, http.StatusTooManyRequests) }, ""},
		{"broken", func(s *condatest.Server, file string) { s.Fail(file, 1, http.StatusBadGateway) }, ""},
		{"gone", func(s *condatest.Server, file string) { s.Without(file) }, "404"},
		{"forbidden", func(s *condatest.Server, file string) { s.Fail(file, 1000, http.StatusForbidden) }, "403"},
	} {
		t.Run(c.name, func(t *testing.T) {
			channel := condatest.NewChannel(t, big)
			server := channel.Serve(t)
			c.fault(server, channel.Packages(server.URL)[0].File)
			wantDownload(t, server, c.want)
		})
	}
	t.Run("truncated", func(t *testing.T) {
		channel := condatest.NewChannel(t, big)
		server := channel.Serve(t)
		p := channel.Packages(server.URL)[0]
		if err := os.Truncate(filepath.Join(channel.Dir, p.Subdir, p.File), p.Size/2); err != nil {
			t.Fatal(err)
		}
		wantDownload(t, server, fmt.Sprint(p.Size))
	})
}

// wantDownload builds an environment with the package big, which works or fails with an error.
func wantDownload(t *testing.T, server *condatest.Server, want string) {
	t.Helper()
	s := newSession(t)
	built, err := build(t.Context(), s, condaRecipe(t, "", condaTable("packages = [\"big\"]\nchannels = [\""+server.URL+"\"]\n")), engine.PlanOptions{}, engine.BuildOptions{})
	switch {
	case want != "":
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "big") {
			t.Errorf("got %v, want %s", err, want)
		}
		t.Log(err)
	case err != nil:
		t.Error(err)
	default:
		if got := runIn(t, s, built.Image, "cat", "/opt/conda/share/word"); got != "1.0" {
			t.Errorf("the package is %q", got)
		}
	}
	if report, err := s.Store.Verify(t.Context(), false); err != nil || len(report.Damaged) > 0 {
		t.Errorf("the store: %+v, %v", report.Damaged, err)
	}
}
