package debian

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// ordered are versions from the lowest to the highest.
var ordered = []string{
	"0~", "0", "0.0.1~rc1", "0.0.1", "1.0~~", "1.0~~a", "1.0~", "1.0-0~", "1.0", "1.0-1", "1.0-1+b1", "1.0-1.1", "1.0-9", "1.0-10", "1.0a", "1.0a1", "1.0b",
	"1.0+a", "1.0.1", "1.2.3", "1.10", "2.36-9+deb12u9", "2.36-9+deb12u14", "10", "1:0.1", "1:0.1-1", "2:0",
}

// Versions are written as dpkg writes those of what is installed.
func TestWrittenVersion(t *testing.T) {
	tooltest.Path(t, "dpkg-query")
	for v, want := range map[string]string{
		"1.2": "1.2", "0:1.2": "1.2", "00:1.2-0": "1.2-0", "1:1.2": "1:1.2", "01:1.2-1": "1:1.2-1", "0:1:2": "0:1:2", "1:1:2-1": "1:1:2-1", "10:2": "10:2", "0": "0",
	} {
		if got := WrittenVersion(v); got != want {
			t.Errorf("%s is %s, want %s", v, got, want)
		}
		dir := t.TempDir()
		status := "Package: a\nStatus: install ok installed\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\nVersion: " + v + "\n"
		if err := os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("dpkg-query", "--admindir="+dir, "-W", "-f", "${Version}").Output()
		if err != nil || string(out) != want {
			t.Errorf("dpkg writes %s as %q, %v; want %s", v, out, err, want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	for i, a := range ordered {
		if err := CheckVersion(a); err != nil {
			t.Error(err)
		}
		for j, b := range ordered {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := CompareVersions(a, b); got != want {
				t.Errorf("%s and %s: %d, want %d", a, b, got, want)
			}
		}
	}
	for _, same := range [][2]string{{"1.0", "1.00"}, {"0:1", "1"}, {"1.0", "1.0-0"}, {"1.a", "1.a0"}} {
		if CompareVersions(same[0], same[1]) != 0 {
			t.Errorf("%s is not %s", same[0], same[1])
		}
	}
	for _, bad := range []string{"", "a:1", ":1", "1-", "1 2", "1/2", "1_2", "ä"} {
		if CheckVersion(bad) == nil {
			t.Errorf("%q is a version", bad)
		}
	}
}

// dpkg is the judge of versions.
func TestCompareVersionsAsDpkg(t *testing.T) {
	tooltest.Path(t, "dpkg")
	for i, a := range ordered[1:] {
		if out, err := exec.Command("dpkg", "--compare-versions", ordered[i], "lt", a).CombinedOutput(); err != nil {
			t.Errorf("dpkg does not find %s before %s: %v %s", ordered[i], a, err, out)
		}
	}
}

func FuzzCompareVersions(f *testing.F) {
	f.Add("1:2.3-4", "1.0~rc1")
	f.Fuzz(func(t *testing.T, a, b string) {
		_, _ = CheckVersion(a), CheckVersion(b)
		if CompareVersions(a, b) != -CompareVersions(b, a) || CompareVersions(a, a) != 0 {
			t.Errorf("%q and %q have no order", a, b)
		}
	})
}
