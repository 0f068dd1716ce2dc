package cli

import (
	"fmt"
	"os"
	"testing"
)

// A secret that comes through a pipe, as from <(command), is there for every step that wants it.
func TestSecretFromPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("hunter2"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	secrets, err := parseSecrets([]string{fmt.Sprintf("id=t,src=/dev/fd/%d", r.Fd())}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if value, err := secrets["t"](); err != nil || string(value) != "hunter2" {
			t.Errorf("%q, %v", value, err)
		}
	}
}
