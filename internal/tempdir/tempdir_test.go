package tempdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestMain lets the test binary be a process that makes a directory and is killed.
func TestMain(m *testing.M) {
	if os.Getenv("SCONCE_TEST_TEMPDIR") == "" {
		os.Exit(m.Run())
	}
	if _, _, err := Make("test"); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("made\n")
	time.Sleep(time.Hour)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestKilledProcessLeavesNothingForLong(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SCONCE_TEST_TEMPDIR=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := Make("test")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(names(t, tmp)); n != 2 {
		t.Errorf("%d directories, want that of the process that runs and mine", n)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Error(err)
	}
	other, removeOther, err := Make("test")
	if err != nil {
		t.Fatal(err)
	}
	if found := names(t, tmp); len(found) != 2 {
		t.Errorf("%q, want %s and %s", found, dir, other)
	}
	remove()
	removeOther()
	if found := names(t, tmp); len(found) != 0 {
		t.Errorf("left: %q", found)
	}
}

// What is not ours, or is just being made, stays.
func TestStrangersStay(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, name := range []string{"sconce-other", prefix + "new", "x"} {
		if err := os.Mkdir(filepath.Join(tmp, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, prefix+"file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(tmp, prefix+"old")
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-2 * unlockedFor)
	if err := os.Chtimes(old, then, then); err != nil {
		t.Fatal(err)
	}
	_, remove, err := Make("test")
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if found := names(t, tmp); len(found) != 4 {
		t.Errorf("left: %q, want all but %s", found, old)
	}
}
