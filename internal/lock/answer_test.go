package lock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// fakeUV puts a shell script in the place of uv. In it, $UV is the real one.
func fakeUV(t *testing.T, script string) {
	t.Helper()
	program, err := exec.LookPath("uv")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := "#!/bin/sh\nUV='" + program + "'\n" + script + "\n"
	if err := tooltest.WriteProgram(filepath.Join(dir, "uv"), []byte(text)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

const alphaAndBeta = "[python]\npackages = [\"alpha\", \"beta\"]\n"

// What is in the file that uv was to write counts only if this run of it wrote it.
func TestAnswerOfAnotherRun(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"))
	b.lock("[python]\npackages = [\"alpha\"]\n")
	before := b.read("pylock.toml")
	fakeUV(t, "exit 0")
	b.fails(alphaAndBeta, "not what it was asked for")
	if b.read("pylock.toml") != before {
		t.Error("the lock was written all the same")
	}
}

func TestAnswerToAnotherQuestion(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"), w("beta", "2.0"))
	fakeUV(t, `echo "beta<2" | "$UV" "$@"`)
	b.fails("[python]\npackages = [\"alpha\", \"beta>=2\"]\n", "alpha is not in it", `beta is 1.0 in it, and "beta>=2" was asked for`)
}

// A setting of the user's that gives another version than the one asked for is no fault of the answer.
func TestAnswerUnderOverrides(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("alpha", "2.0"))
	b.write(map[string]string{"uv.toml": "override-dependencies = [\"alpha==1.0\"]\n"})
	r, l := b.lock("[python]\npackages = [\"alpha>=2\"]\n")
	wantPins(t, l, r, "alpha==1.0 requested")
}

// A package lock that does not have what the recipe asks for is not believed, though sconce.lock names its digest.
func TestDriftOfForeignAnswer(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"))
	r, l := b.lock(alphaAndBeta)
	other, _ := newBench(t, locktest.Base{}, w("beta", "1.0"))
	other.lock("[python]\npackages = [\"beta\"]\n")
	foreign := other.read("pylock.toml")
	b.write(map[string]string{"pylock.toml": foreign})
	l.Python.Digest = store.DigestOf([]byte(foreign))
	drift, err := driftOf(l, r)
	if err != nil || len(drift) != 1 || !strings.Contains(drift[0], "alpha is not in it") {
		t.Errorf("drift %q, %v", drift, err)
	}
}

// TestNothingStays looks for what a run, a failed one and a killed one leave. uv keeps a lock file for each source that it asks
// setuptools about, and never removes it.
func TestNothingStays(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"), w("setuptools", "70.0"))
	x.AddFile("src-1.0.tar.gz", sdist(t, "src", "1.0", "", trap(t), nil))
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	killed := []string{"pylock.unfinished-123.toml", "pylock.unfinished.toml"}
	for _, name := range killed {
		b.write(map[string]string{name: "x"})
	}
	b.write(map[string]string{"pylock.unfinished-mine.toml": "x", "other/pylock.unfinished-1.toml": "x"})
	b.lock("[python]\npackages = [\"alpha\", \"beta\", \"src\"]\n")
	fakeUV(t, "touch \"$TMPDIR/left\"; exit 1")
	if _, err := b.make(b.recipe("[python]\npackages = [\"alpha\"]\n"), lock.Options{}); err == nil {
		t.Error("no error from a uv that fails")
	}
	for dir, want := range map[string]int{tmp: 0, b.dir: 1, filepath.Join(b.dir, "other"): 1} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, e := range entries {
			if dir == tmp || strings.Contains(e.Name(), "unfinished") {
				left++
				t.Log(filepath.Join(dir, e.Name()))
			}
		}
		if left != want {
			t.Errorf("%d entries left in %s, want %d", left, dir, want)
		}
	}
}
