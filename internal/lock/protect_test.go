package lock_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
)

// vendor is a base as GPU vendors make them: torch, its family, and what was compiled against it.
var vendor = locktest.Base{Installed: []locktest.Wheel{
	w("torch", "2.6.0a0+ecf3bae40a.nv25.1", "filelock"), w("triton", "3.2.0"), w("flash_attn", "2.7.3", "torch", "einops"),
	w("lightning", "2.5", "torch; extra == 'all'"), w("numpy", "1.26.4"),
}}

func offered() []locktest.Wheel {
	return []locktest.Wheel{
		w("torch", "2.8.0", "nvidia-lib"), w("nvidia_lib", "12.0"), w("triton", "3.4.0"), w("numpy", "2.0.0"), w("flash_attn", "2.8.0", "torch"),
		w("model", "1.0", "torch>=2.5", "numpy", "triton"),
	}
}

func TestTorchOfTheBaseStays(t *testing.T) {
	b, _ := newBench(t, vendor, offered()...)
	r, l := b.lock("[python]\npackages = [\"model\", \"flash_attn\", \"torch>=2.5\"]\n")
	wantPins(t, l, r, "model==1.0 requested", "numpy==2.0.0") // numpy is anybody's
	want := []lock.Protected{{Name: "flash-attn", Version: "2.7.3"}, {Name: "torch", Version: "2.6.0a0+ecf3bae40a.nv25.1"}, {Name: "triton", Version: "3.2.0"}}
	if diff := cmp.Diff(want, l.Python.Protected); diff != "" {
		t.Errorf("protected (-want +got)\n%s", diff)
	}
	if !l.Python.SystemSitePackages {
		t.Error("the environment does not see the base's packages")
	}
	notes := strings.Join(b.events.Texts(progress.Note), "\n")
	if !strings.Contains(notes, "torch comes from the base, in version 2.6.0a0+ecf3bae40a.nv25.1") || !strings.Contains(notes, "flash-attn comes from the base") {
		t.Errorf("notes %q", notes)
	}
	_, err := b.make(r, lock.Options{UpgradePackages: []string{"torch"}})
	wantError(t, err, "cannot upgrade torch: it is the base's own", "protect = []")
}

func TestTorchOfTheBaseGoes(t *testing.T) {
	b, _ := newBench(t, vendor, offered()...)
	r, l := b.lock("[python]\npackages = [\"model\"]\nprotect = []\n")
	wantPins(t, l, r, "model==1.0 requested", "numpy==2.0.0", "nvidia-lib==12.0", "torch==2.8.0", "triton==3.4.0")
	if len(l.Python.Protected) != 0 || !l.Python.SystemSitePackages {
		t.Errorf("lock %+v", l.Python)
	}
}

func TestProtectByName(t *testing.T) {
	b, _ := newBench(t, vendor, offered()...)
	r, l := b.lock("[python]\npackages = [\"model\"]\nprotect = [\"NumPy\", \"scipy\"]\n")
	wantPins(t, l, r, "model==1.0 requested", "nvidia-lib==12.0", "torch==2.8.0", "triton==3.4.0")
	if warned := b.events.Texts(progress.Warning); len(warned) != 1 || !strings.Contains(warned[0], "the base has no package scipy to protect") {
		t.Errorf("warnings %q", warned)
	}
}

func TestAskedForAnotherTorch(t *testing.T) {
	b, x := newBench(t, vendor, offered()...)
	b.fails("[python]\npackages = [\"model\", \"torch==2.8\"]\n", `asks for "torch==2.8"`, "the base brings torch 2.6.0a0+ecf3bae40a.nv25.1", "protect = []")
	b.write(map[string]string{"r.txt": "-r s.txt\n", "s.txt": "Torch<2\n"})
	b.fails("[python]\nrequirements = [\"r.txt\"]\n", `asks for "Torch<2"`)
	b.fails("[python]\npackages = [\"torch @ "+x.FileURL("torch-2.8.0-py3-none-any.whl")+"\"]\n", "asks for", "protected")
	b.write(map[string]string{"pylock.mine.toml": x.Pylock(t, w("torch", "2.8.0"))})
	b.fails("[python]\nlock = \"pylock.mine.toml\"\n", "pylock.mine.toml would replace torch 2.6.0a0+ecf3bae40a.nv25.1 of the base with 2.8.0", "take torch out of the lock")

	r, l := b.lock("[python]\npackages = [\"torch>=2.6\", \"numpy\", \"torch==1; python_version < '3'\"]\n")
	wantPins(t, l, r, "numpy==2.0.0 requested")
	if warned := b.events.Texts(progress.Warning); len(warned) != 1 || !strings.Contains(warned[0], `"torch>=2.6" is met only nearly by the base's torch 2.6.0a0`) {
		t.Errorf("warnings %q", warned)
	}
}

func TestFits(t *testing.T) {
	const full, near, none = lock.FullFit, lock.NearFit, lock.Misfit
	for _, test := range []struct {
		version, requirement string
		want                 lock.Fit
	}{
		{"2.6.0", "torch", full},
		{"2.6.0", "torch>=2.5,<3", full},
		{"2.6.0", "torch==2.8", none},
		{"2.6.0+cu124", "torch==2.6.0", full},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch", full},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch>=2.5", full},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch>=2.6", near},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch==2.6.0", near},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch~=2.6.0", near},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch>=2.6.1", none},
		{"2.6.0a0+ecf3bae40a.nv25.1", "torch==2.6.1+cu124", none},
		{"1!2.0rc1", "torch>=1!2.0", near},
		{"built-by-hand", "torch>=1", near},
	} {
		r, err := python.ParseRequirement(test.requirement)
		if err != nil {
			t.Fatal(err)
		}
		if got := (lock.Protected{Name: "torch", Version: test.version}).Fits(r); got != test.want {
			t.Errorf("%s and %s: %v, want %v", test.version, test.requirement, got, test.want)
		}
	}
}
