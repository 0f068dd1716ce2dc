//go:build race

package inflate

import (
	"bytes"
	"compress/flate"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// racyVariable makes the test a process in which somebody touches what is being decoded, or where it goes.
const racyVariable = "SCONCE_TEST_RACE"

// The race detector sees that a stream is written to while it is decoded, and that what it is decoded to is read, although it does not look
// at the loop that does most of it.
func TestWatchedStream(t *testing.T) {
	racy := os.Getenv(racyVariable)
	if racy == "" {
		for _, what := range []string{"source", "destination"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWatchedStream$")
			cmd.Env = append(os.Environ(), racyVariable+"="+what)
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "DATA RACE") {
				t.Errorf("%s: the race is not seen: %v\n%s", what, err, out)
			}
		}
		return
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.HuffmanOnly)
	if err != nil {
		t.Fatal(err)
	}
	dst := bytes.Repeat([]byte("sconce"), 1<<14)
	if _, err := w.Write(dst); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	src, done := packed.Bytes(), make(chan error)
	go func() {
		_, _, err := Decode(dst, src)
		done <- err
	}()
	if racy == "source" {
		src[len(src)/2] ^= 0
	} else if dst[len(dst)/2] == 0 {
		t.Error("never")
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
