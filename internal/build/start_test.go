package build

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"sconce.dev/sconce/internal/tooltest"
)

// Apptainer sources the script in a shell of its own, which is no bash and has no file for $BASH_ENV.
func TestStartInApptainersShell(t *testing.T) {
	bash := "/bin/bash"
	if _, err := os.Stat(bash); err != nil {
		tooltest.Missing(t, "no bash: %v", err)
	}
	prefix := t.TempDir()
	script := filepath.Join(prefix, "a script.sh")
	s := newStart(prefix, scripted{
		Shell: bash, Scripts: []string{script, filepath.Join(prefix, "gone.sh")}, Variables: []string{"KEPT=image"}, Personal: []string{"MINE", "NOT-A-NAME", "UNSET"},
	})
	program, file := s.texts()
	for at, text := range map[string]string{
		script: "echo noise\nexport MINE=\"$HOME/'quoted' \\$x\n'\" KEPT=changed OTHER=1\n", s.program(): program, s.file(): file,
	} {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := tooltest.WriteProgram(at, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	// Sourced twice, as by a runtime and by a script that it starts.
	got := sourced(t, ". "+s.file()+"\n. "+s.file()+"\n", "HOME=/home/me", "KEPT=user", "BASH_ENV="+s.file(), "PATH=/nowhere")
	for name, want := range map[string]string{"MINE": "/home/me/'quoted' $x\n'", "KEPT": "user", "UNSET": "", "OTHER": "", "SCONCE_STARTED": prefix} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}

// sourced returns the variables that a script of the package leaves behind.
func sourced(t *testing.T, script string, env ...string) map[string]string {
	t.Helper()
	parsed, err := syntax.NewParser().Parse(strings.NewReader(script), "script")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	runner, err := interp.New(interp.Env(expand.ListEnviron(env...)), interp.StdIO(nil, io.Discard, &log))
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Run(context.Background(), parsed); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	vars := map[string]string{}
	for name, v := range runner.Vars {
		vars[name] = v.String()
	}
	return vars
}
