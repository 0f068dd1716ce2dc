package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// The first run of an image that sconce has pushed to a registry unpacks nothing of it, as a run after the build does.
func TestFirstRunOfPushedImage(t *testing.T) {
	busybox := tooltest.Path(t, "busybox")
	registrytest.Isolate(t)
	image := registrytest.Start(t, false) + "/team/large:1"
	dir := t.TempDir()
	root := filepath.Join(dir, "rootfs")
	copyProgram(t, busybox, filepath.Join(root, "bin", "busybox"))
	writeText(t, filepath.Join(root, "many"), strings.Repeat("0123456789abcdef", 400_000)) // more than a chunk
	sconce := func(store string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sconce", append([]string{"--store", filepath.Join(dir, store)}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("sconce %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	sconce("building", "copy", "dir:"+root, "docker://"+image)
	wantIn(t, sconce("running", "-v", "run", "--unpack", "never", image, "busybox", "wc", "-c", "/many"), "6400000 /many", "unpack 1 of 1 layer, read as they are: nothing to do")
	if found, err := filepath.Glob(filepath.Join(dir, "running", "trees-v1", "*layer*")); len(found) > 0 || err != nil {
		t.Errorf("unpacked: %q, %v", found, err)
	}
}
