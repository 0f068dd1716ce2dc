package lock_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// realBench is a bench without isolation: with the index that uv and pip use on this machine.
func realBench(t *testing.T, b locktest.Base) *bench {
	t.Helper()
	locktest.UV(t)
	if testing.Short() {
		t.Skip("asks the real index")
	}
	return &bench{t: t, dir: locktest.Dir(t, b, nil), store: storetest.New(t)}
}

// tryLock locks; that no index can be reached fails the test only where everything must be there.
func (b *bench) tryLock(t *testing.T, platform, text string) (*lock.Files, []lock.Wheel) {
	t.Helper()
	r := locktest.Load(t, b.dir, strings.Replace(locktest.Head, "amd64", platform, 1)+text)
	l, err := b.make(r, lock.Options{})
	if err != nil {
		b.skipUnreachable(t, err)
		t.Fatal(err)
	}
	wheels, err := wheelsOf(l, r)
	if err != nil {
		t.Fatal(err)
	}
	return l, wheels
}

func (b *bench) skipUnreachable(t *testing.T, err error) {
	t.Helper()
	if strings.Contains(err.Error(), "Failed to fetch") {
		tooltest.Missing(t, "%v", err)
	}
}

// TestRealIndex locks popular packages for both machines: the wheels chosen are for them, their sizes are what the server
// says, and the packages asked for are marked.
func TestRealIndex(t *testing.T) {
	for _, arch := range []struct {
		oci, wheel string
		machine    uint16
	}{{"amd64", "x86_64", locktest.AMD64}, {"arm64", "aarch64", locktest.ARM64}} {
		t.Run(arch.oci, func(t *testing.T) {
			b := realBench(t, locktest.Base{Machine: arch.machine})
			_, wheels := b.tryLock(t, arch.oci, "[python]\npackages = [\"numpy==2.2.6\", \"scipy<1.16\", \"einops\"]\n")
			var native, requested []string
			for _, w := range wheels {
				if strings.Contains(w.File, "linux") {
					native = append(native, w.Name)
					if !strings.Contains(w.File, arch.wheel) || !strings.Contains(w.File, "cp311") {
						t.Errorf("chose %s", w.File)
					}
				}
				if w.Requested {
					requested = append(requested, w.Name)
				}
				checkSize(t, w)
			}
			if !slices.Equal(native, []string{"numpy", "scipy"}) || !slices.Equal(requested, []string{"einops", "numpy", "scipy"}) {
				t.Errorf("native %q, requested %q", native, requested)
			}
		})
	}
}

func checkSize(t *testing.T, w lock.Wheel) {
	t.Helper()
	resp, err := http.Head(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK && resp.ContentLength > 0 && resp.ContentLength != w.Size {
		t.Errorf("%s: %d bytes by the lock, %d by its server", w.File, w.Size, resp.ContentLength)
	}
}

// TestRealConflict: uv's derivation of a conflict between real packages.
func TestRealConflict(t *testing.T) {
	b := realBench(t, locktest.Base{})
	_, err := b.make(b.recipe("[python]\npackages = [\"numpy==1.23.2\", \"scipy>=1.15,<1.16\"]\n"), lock.Options{})
	if err != nil {
		b.skipUnreachable(t, err)
	}
	wantError(t, err, "No solution found", "scipy", "depends on numpy>=1.23.5", "you require numpy==1.23.2")
}

// TestRealTorchOfTheBase: a package that requires torch brings neither it nor its CUDA libraries onto a base that has one.
func TestRealTorchOfTheBase(t *testing.T) {
	b := realBench(t, locktest.Base{Installed: []locktest.Wheel{w("torch", "2.6.0a0+ecf3bae40a.nv25.1")}})
	l, wheels := b.tryLock(t, "amd64", "[python]\npackages = [\"accelerate==1.2.0\"]\n")
	for _, w := range wheels {
		if name := python.NormalizeName(w.Name); name == "torch" || name == "triton" || strings.HasPrefix(name, "nvidia-") {
			t.Errorf("locked %s %s", w.Name, w.Version)
		}
	}
	if len(wheels) < 5 || len(l.Python.Protected) != 1 {
		t.Errorf("%d wheels, protected %+v", len(wheels), l.Python.Protected)
	}
}
