package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/users"
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
		o    RunOptions
		want []string
	}{
		{"nothing given", RunOptions{}, []string{"entry", "-x", "cmd"}},
		{"a command", RunOptions{Command: given}, []string{"mine"}},
		{"a command for the entrypoint", RunOptions{Command: given, Entrypoint: true}, []string{"entry", "-x", "mine"}},
	} {
		if diff := cmp.Diff(test.want, (&running{RunOptions: test.o}).commandLine(config)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	config.Entrypoint, config.Labels = []string{"start", "entry"}, map[string]string{image.LabelStart: "start"}
	for want, o := range map[string]RunOptions{
		"start mine": {Command: given}, "start entry cmd": {}, "start entry mine": {Command: given, Entrypoint: true},
	} {
		if got := strings.Join((&running{RunOptions: o}).commandLine(config), " "); got != want {
			t.Errorf("with something to do at the start: %s, want %s", got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment(nil, []string{"PATH=/opt/venv/bin", "A=image", "B=image"}, []string{"B=given", "C=one", "C=two"})
	want := []string{"PATH=/opt/venv/bin", "HOME=/root", "A=image", "B=given", "C=two"}
	if diff := cmp.Diff(want, withoutTerm(got)); diff != "" {
		t.Error(diff)
	}
}

// Who runs under their own name has a home of their own, unless the image or the user says another.
func TestEnvironmentOfSelf(t *testing.T) {
	ada := &users.Account{Name: "ada", Home: "/home/ada"}
	got := environment(ada, []string{"PATH=/bin"}, nil)
	if diff := cmp.Diff([]string{"PATH=/bin", "HOME=/home/ada", "USER=ada", "LOGNAME=ada"}, withoutTerm(got)); diff != "" {
		t.Error(diff)
	}
	if got := environment(ada, []string{"HOME=/app"}, []string{"USER=x"}); !slices.Contains(got, "HOME=/app") || !slices.Contains(got, "USER=x") {
		t.Errorf("the image's home and the given name are gone: %q", got)
	}
}

// A command runs as root, or as who started it: in a job step that is so by itself.
func TestRunsAs(t *testing.T) {
	me := users.Caller()
	id := strconv.Itoa(me.UID)
	for _, c := range []struct {
		user   string
		inStep bool
		self   bool
	}{
		{"auto", false, false},
		{"auto", true, true},
		{"root", true, false},
		{"0:0", true, false},
		{"self", false, true},
		{id, false, true},
		{id + ":" + strconv.Itoa(me.GID), false, true},
		{me.Name, false, true},
	} {
		self, err := runsAs(c.user, c.inStep)
		want := c.self && me.UID != 0 // who is root stays root
		if err != nil || (self != nil) != want || want && *self != me {
			t.Errorf("--user %s, in a step: %v: %v, %v", c.user, c.inStep, self, err)
		}
	}
	for _, user := range []string{"nobody-here", "4000000000", id + ":4000000000", ""} {
		if _, err := runsAs(user, true); fault.CodeOf(err) != fault.CodeUsage || fault.HintOf(err) == "" {
			t.Errorf("--user %q: %v", user, err)
		}
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
