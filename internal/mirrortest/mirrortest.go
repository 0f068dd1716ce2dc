// Package mirrortest asks servers that are not the tests' own, mirrors and indexes of packages, for what tests stand on.
package mirrortest

import (
	"os/exec"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// pauses are between the tries of a command.
var pauses = []time.Duration{5 * time.Second, 15 * time.Second, 45 * time.Second}

// Run runs a command that asks such a server, and returns what it printed. Servers and networks have bad moments: one that fails is made
// and run again, up to four times. Where a test may be left out (see tooltest), it is run once.
func Run(command func() *exec.Cmd) ([]byte, error) {
	out, err := command().CombinedOutput()
	if !tooltest.Required() {
		return out, err
	}
	for _, pause := range pauses {
		if err == nil {
			break
		}
		time.Sleep(pause)
		out, err = command().CombinedOutput()
	}
	return out, err
}
