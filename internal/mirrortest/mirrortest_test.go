package mirrortest

import (
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"

	"sconce.dev/sconce/internal/tooltest"
)

// A command that works the third time is run three times, one that never does four times, and once where its test may be left out.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		require, works string
		runs           int
		fails          bool
	}{
		{"1", "3", 3, false},
		{"1", "9", 4, true},
		{"", "3", 1, true},
	} {
		t.Setenv(tooltest.Variable, c.require)
		count := filepath.Join(t.TempDir(), "count")
		runs := 0
		synctest.Test(t, func(t *testing.T) { // whose pauses take no time
			out, err := Run(func() *exec.Cmd {
				runs++
				return exec.Command("/bin/sh", "-c", `echo x >> "$0"; echo said; [ "$(wc -l < "$0")" -eq "$1" ]`, count, c.works)
			})
			if string(out) != "said\n" || (err != nil) != c.fails {
				t.Errorf("%+v: %q, %v", c, out, err)
			}
		})
		if runs != c.runs {
			t.Errorf("%+v: %d runs", c, runs)
		}
	}
}
