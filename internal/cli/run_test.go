package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/sandbox"
)

func TestParseBind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("sub", 0o755); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(dir, "sub")
	for _, test := range []struct {
		spec string
		want sandbox.Bind
	}{
		{sub, sandbox.Bind{Source: sub, Target: sub}},
		{"sub", sandbox.Bind{Source: sub, Target: sub}},
		{"sub:/data", sandbox.Bind{Source: sub, Target: "/data"}},
		{"sub:/data:rw", sandbox.Bind{Source: sub, Target: "/data"}},
		{"sub:/data:ro", sandbox.Bind{Source: sub, Target: "/data", ReadOnly: true}},
		{"sub::ro", sandbox.Bind{Source: sub, Target: sub, ReadOnly: true}},
	} {
		got, err := parseBind(test.spec)
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.spec, got, err, test.want)
		}
	}
	for _, spec := range []string{"", ":/data", "sub:data", "sub:/data:x", "sub:/data:ro:z", "missing:/data"} {
		if got, err := parseBind(spec); err == nil {
			t.Errorf("%s: %+v, want an error", spec, got)
		}
	}
}

func TestCommandLine(t *testing.T) {
	config := v1.Config{Entrypoint: []string{"entry", "-x"}, Cmd: []string{"cmd"}}
	given := []string{"mine"}
	for _, test := range []struct {
		name string
		o    runOptions
		want []string
	}{
		{"nothing given", runOptions{}, []string{"entry", "-x", "cmd"}},
		{"a command", runOptions{command: given}, []string{"mine"}},
		{"a command for the entrypoint", runOptions{command: given, entrypoint: true}, []string{"entry", "-x", "mine"}},
	} {
		if diff := cmp.Diff(test.want, commandLine(config, test.o)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	config.Entrypoint, config.Labels = []string{"start", "entry"}, map[string]string{image.LabelStart: "start"}
	for want, o := range map[string]runOptions{
		"start mine": {command: given}, "start entry cmd": {}, "start entry mine": {command: given, entrypoint: true},
	} {
		if got := strings.Join(commandLine(config, o), " "); got != want {
			t.Errorf("with something to do at the start: %s, want %s", got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/opt/venv/bin", "A=image", "B=image"}, []string{"B=given", "C=one", "C=two"})
	want := []string{"PATH=/opt/venv/bin", "HOME=/root", "A=image", "B=given", "C=two"}
	if diff := cmp.Diff(want, withoutTerm(got)); diff != "" {
		t.Error(diff)
	}
}

// withoutTerm drops TERM, which is there only when the tests run on a terminal.
func withoutTerm(env []string) (kept []string) {
	for _, kv := range env {
		if kv != "TERM="+os.Getenv("TERM") {
			kept = append(kept, kv)
		}
	}
	return kept
}
