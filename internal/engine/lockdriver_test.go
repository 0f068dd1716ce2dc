package engine

import (
	"context"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
)

type notes []progress.Event

func (n *notes) Emit(e progress.Event) { *n = append(*n, e) }

func wheelOf(name, version string) lock.Wheel {
	return lock.Wheel{Item: python.Item{Name: name, Version: version}}
}

// A CUDA that will not start on the target is told before it is downloaded, one that will is not spoken of.
func TestDriverOfALock(t *testing.T) {
	for _, c := range []struct {
		driver, name, version string
		warns                 bool
	}{
		{"550.54.15", "nvidia-cuda-runtime", "13.2.75", true},
		{"550.54.15", "nvidia-cuda-runtime-cu12", "12.8.90", false},
		{"450.80.02", "nvidia-cuda-runtime-cu12", "12.8.90", true},
		{"580.95.05", "nvidia-cuda-runtime", "13.2.75", false},
		{"", "nvidia-cuda-runtime", "13.2.75", false},
		{"550.54.15", "nvidia-cuda-nvrtc", "13.2.75", false},
		{"550.54.15", "nvidia-cuda-runtime", "x", false},
	} {
		var said notes
		l := &Locked{Locked: &lock.Locked{Wheels: []lock.Wheel{wheelOf(c.name, c.version)}}}
		r := &Recipe{Target: Target{Profile: cluster.Profile{Driver: c.driver}}}
		l.warnOfDriver(progress.With(context.Background(), &said), r)
		if (len(said) == 1) != c.warns || c.warns && !strings.Contains(said[0].Hint, `torch-backend = "target"`) {
			t.Errorf("%+v: %v", c, said)
		}
	}
}

func TestChangesOfALock(t *testing.T) {
	before := &Locked{Locked: &lock.Locked{Lock: &lock.Lock{}, Wheels: []lock.Wheel{wheelOf("numpy", "2.0"), wheelOf("six", "1.17"), wheelOf("torch", "2.7")}}}
	after := &Locked{
		Locked: &lock.Locked{Lock: &lock.Lock{}, Wheels: []lock.Wheel{wheelOf("numpy", "2.1"), wheelOf("torch", "2.7"), wheelOf("tqdm", "4.70.1")}},
		Conda:  plan.Conda{Packages: []conda.Package{{Name: "zlib", Version: "1.3"}}},
	}
	want := "~ numpy 2.0 → 2.1|- six 1.17|+ tqdm 4.70.1|+ zlib 1.3 (conda)"
	var lines []string
	for _, c := range changes(before, after) {
		lines = append(lines, c.String())
	}
	if got := strings.Join(lines, "|"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := changes(after, after); len(got) != 0 {
		t.Errorf("of the same lock: %v", got)
	}
}
