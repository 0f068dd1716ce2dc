package engine

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
)

func wheelOf(name, version string) lock.Wheel {
	return lock.Wheel{Item: python.Item{Name: name, Version: version}}
}

// A CUDA that will not start on the target is told before it is downloaded, one that will is not spoken of.
func TestDriverOfALock(t *testing.T) {
	why := "the nodes get a new one"
	const old, own = "550.54.15", "nvidia-cuda-runtime"
	for _, c := range []struct {
		driver, name, version string
		warns                 bool
		allow                 map[string]string
		policy                config.Check
	}{
		{driver: old, name: own, version: "13.2.75", warns: true},
		{driver: old, name: "nvidia-cuda-runtime-cu12", version: "12.8.90"},
		{driver: "450.80.02", name: "nvidia-cuda-runtime-cu12", version: "12.8.90", warns: true},
		{driver: "580.95.05", name: own, version: "13.2.75"},
		{name: own, version: "13.2.75"},
		{driver: old, name: "nvidia-cuda-nvrtc", version: "13.2.75"},
		{driver: old, name: own, version: "x"},
		{driver: old, name: own, version: "13.2.75", allow: map[string]string{driverTooOld: why}},
		{driver: old, name: own, version: "13.2.75", policy: config.Check{Allow: map[string]string{driverTooOld: why}}},
		{driver: old, name: own, version: "13.2.75", warns: true, allow: map[string]string{driverTooOld: why}, policy: config.Check{Require: map[string]string{driverTooOld: "site"}}},
	} {
		l := &Locked{Locked: &lock.Locked{Wheels: []lock.Wheel{wheelOf(c.name, c.version)}}}
		s := &Session{check: c.policy}
		said := s.driverWarnings(l, &Recipe{Target: Target{Profile: cluster.Profile{Driver: c.driver}, Allow: c.allow}})
		if (len(said) == 1) != c.warns || c.warns && !strings.Contains(said[0].Hint, `torch-backend = "target"`) {
			t.Errorf("%+v: %v", c, said)
		}
	}
	if err := audit.KnownRule(driverTooOld); err != nil {
		t.Error(err)
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
