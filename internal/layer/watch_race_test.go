//go:build race

package layer

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// racyVariable makes the test a process in which a chunk is written to while it is compressed.
const racyVariable = "SCONCE_TEST_RACE"

// The race detector sees that a chunk is written to while it is compressed.
func TestWatchedChunk(t *testing.T) {
	if os.Getenv(racyVariable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWatchedChunk$")
		cmd.Env = append(os.Environ(), racyVariable+"=1")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "DATA RACE") {
			t.Errorf("the race is not seen: %v\n%s", err, out)
		}
		return
	}
	chunk, done := make([]byte, 1<<16), make(chan error)
	go func() {
		_, err := compressGzip(nil, chunk)
		done <- err
	}()
	chunk[1<<15] = 1
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
