package test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// cudaWheels are packages that an index of Python's has of PyTorch and CUDA's runtime, of two releases of CUDA.
var cudaWheels = []locktest.Wheel{
	{Name: "torch", Version: "2.9", Requires: []string{"nvidia-cuda-runtime-cu12==12.8.90"}, Pad: 1 << 20},
	{Name: "torch", Version: "2.12", Requires: []string{"nvidia-cuda-runtime==13.2.75"}, Pad: 1 << 20},
	{Name: "nvidia_cuda_runtime_cu12", Version: "12.8.90", Pad: 1 << 20},
	{Name: "nvidia_cuda_runtime", Version: "13.2.75", Pad: 1 << 20},
}

// tooNew is what is said of CUDA 13 on a driver of the branch 570.
const tooNew = "the packages are for CUDA 13.2, which needs driver 580.65.06 or newer, and the target has 570.124.06"

// cudaPlace is a place with a recipe for a version of torch on a driver, and the index that has it.
func cudaPlace(t *testing.T, torch, driver string) (*place, *index) {
	t.Helper()
	tooltest.Path(t, "uv")
	dir := t.TempDir()
	for _, w := range cudaWheels {
		if err := os.WriteFile(filepath.Join(dir, w.File()), w.Bytes(t), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, ix := newPlace(t, nil), indexOf(t, dir)
	ix.use(p)
	base := locktest.Base{}.Tar(t)
	p.write("base.tar", string(base))
	p.write("app/sconce.toml", recipe("tar:../base.tar", []string{"torch==" + torch}, "bytecode = false", "[target]", `platform = "linux/amd64"`, `driver = "`+driver+`"`))
	return p, ix
}

// isDownload reports whether sconce downloads a file: a lock asks for its length, and uv, which resolves, reads the metadata in it.
func isDownload(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasPrefix(r.UserAgent(), "sconce/")
}

// CUDA that will not start on the target's driver is warned of by a lock, on the terminal and for programs, and by a build that makes one before
// it downloads anything; CUDA that will is not spoken of, nor is that of a lock that fits when it is asked for again.
func TestDriverOfARealLock(t *testing.T) {
	begin(t)
	for _, c := range []struct {
		torch, driver string
		warns         bool
	}{{"2.12", "570.124.06", true}, {"2.9", "570.124.06", false}, {"2.12", "580.95.05", false}} {
		t.Run(c.torch+" on "+c.driver, func(t *testing.T) {
			p, ix := cudaPlace(t, c.torch, c.driver)
			var downloads atomic.Int32
			ix.spoil(func(_ http.ResponseWriter, r *http.Request, _ string) bool {
				if isDownload(r) {
					downloads.Add(1)
				}
				return false
			})
			locked := p.must("lock", "--json", "app")
			if warned := strings.Contains(locked.stderr, "warning: "+tooNew) && strings.Contains(locked.stderr, `torch-backend = "target"`); warned != c.warns {
				t.Errorf("it warns: %v, want %v: %v", warned, c.warns, locked)
			}
			var answers []struct {
				Warnings []struct{ Message, Hint string }
			}
			if err := json.Unmarshal([]byte(locked.stdout), &answers); err != nil || len(answers) != 1 {
				t.Fatalf("%v: %v", err, locked)
			}
			told := slices.ContainsFunc(answers[0].Warnings, func(w struct{ Message, Hint string }) bool {
				return w.Message == tooNew && strings.Contains(w.Hint, `torch-backend = "target"`)
			})
			if told != c.warns || strings.Contains(locked.stdout, "warnings") != c.warns {
				t.Errorf("programs are told: %v, want %v: %v", told, c.warns, locked)
			}
			if n := downloads.Load(); n > 0 {
				t.Errorf("the lock downloaded %d files", n)
			}
			if again := p.must("lock", "--json", "app"); strings.Contains(again.stderr+again.stdout, "CUDA") {
				t.Errorf("a lock that fits is warned of: %v", again)
			}
		})
	}
}

// The warning is there before the first byte is asked for, whether the build makes the lock or finds one that fits; once, and not at all where
// the recipe allows what the check would find.
func TestDriverIsToldBeforeDownloads(t *testing.T) {
	begin(t)
	for name, c := range map[string]struct{ locked, allowed bool }{"a lock is made": {}, "a lock fits": {locked: true}, "it is allowed": {locked: true, allowed: true}} {
		t.Run(name, func(t *testing.T) {
			p, ix := cudaPlace(t, "2.12", "570.124.06")
			code, times := 3, 1 // the check of the image says at last what the warning says now
			if c.allowed {
				code, times = 0, 0
				p.write("app/sconce.toml", p.read("app/sconce.toml")+"[check]\nallow = { driver-too-old = \"the nodes get a new one\" }\n")
			}
			if c.locked {
				if locked := p.must("lock", "app"); strings.Contains(locked.stderr, tooNew) == c.allowed {
					t.Errorf("when it is locked: %v", locked)
				}
			}
			said, err := os.Create(p.path("said"))
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			var early, downloads atomic.Int32
			ix.spoil(func(_ http.ResponseWriter, r *http.Request, _ string) bool {
				if !isDownload(r) {
					return false
				}
				downloads.Add(1)
				if text, err := os.ReadFile(said.Name()); err != nil || strings.Count(string(text), tooNew) != times {
					early.Add(1)
				}
				return false
			})
			cmd := p.command("build", "app")
			cmd.Stderr = said
			_ = cmd.Run() // its exit code is looked at
			text, err := os.ReadFile(said.Name())
			if err != nil || cmd.ProcessState.ExitCode() != code || downloads.Load() < 2 || early.Load() > 0 || strings.Count(string(text), tooNew) != times {
				t.Errorf("%v, %v: %d of %d downloads before the warning\n%s", err, cmd.ProcessState, early.Load(), downloads.Load(), text)
			}
			if again := p.sconce("build", "app"); strings.Contains(again.stderr, tooNew) {
				t.Errorf("the image is there: %v", again)
			}
		})
	}
}
