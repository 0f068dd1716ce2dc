package execop

import (
	"strings"
	"testing"
)

// A step that calls pip in an image without it is told how to have it; other commands are not.
func TestHintOfMissingPip(t *testing.T) {
	for line, want := range map[string]bool{
		"/bin/sh: 1: pip: not found":                 true, // dash
		"bash: line 1: pip3: command not found":      true,
		"zsh:1: command not found: uv":               true,
		"/bin/sh: pip: not found":                    true, // busybox
		"/bin/sh: 1: pipeline: not found":            false,
		"bash: line 1: git: command not found":       false,
		"ModuleNotFoundError: No module named 'pip'": false,
	} {
		f := &Failure{Title: "RUN", Code: CommandNotFound, Tail: []string{"Reading", line}, Log: "/log"}
		if got := strings.Contains(f.Hint(), `"pip" among the packages under [python]`); got != want || !strings.Contains(f.Hint(), "/log") {
			t.Errorf("%s: %s", line, f.Hint())
		}
	}
}
