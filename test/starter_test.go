package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The recipe that init writes is based on what the machine can have: an image where nobody says where Debian's packages are.
func TestStarterWhereItIsWritten(t *testing.T) {
	begin(t)
	b := newBare(t)
	base := func(dir string) string {
		b.must("sconce", "init", dir)
		text, err := os.ReadFile(filepath.Join(b.root, bareHome, dir, "sconce.toml"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if key, _, is := strings.Cut(line, " ="); is && (key == "image" || key == "bootstrap") {
				return key
			}
		}
		return ""
	}
	if got := base("without"); got != "image" {
		t.Errorf("without a mirror the base is %q", got)
	}
	b.write("/etc/sconce/config.toml", "[mirrors]\ndebian = \"http://127.0.0.1:1/debian\"\n")
	if got := base("with"); got != "bootstrap" {
		t.Errorf("with a mirror the base is %q", got)
	}
}
