package childtest

import (
	"testing"
	"time"
)

// Eventually waits for what another program, or another part of this one, must do, however slow the machine is. what names that in the error.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for: %s", what)
		}
	}
}
