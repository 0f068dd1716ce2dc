package cpython

import "testing"

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		version, minor, tag string
		valid               bool
	}{
		{"3.12.4", "3.12", "cpython-312", true},
		{"3.12", "3.12", "cpython-312", true},
		{"3.15.0a1", "3.15", "cpython-315", true},
		{"3.12.4.1", "3.12", "cpython-312", true},
		{"3", "3", "", false},
		{"", "", "", false},
		{"3.", "3.", "", false},
		{"3.x.1", "3.x", "", false},
		{"../3.1", ".", "", false},
	} {
		if got := Minor(c.version); got != c.minor {
			t.Errorf("%q: minor version %q, want %q", c.version, got, c.minor)
		}
		if got := CacheTag(c.version); c.valid && got != c.tag {
			t.Errorf("%q: tag %q, want %q", c.version, got, c.tag)
		}
		if got := Valid(c.version); got != c.valid {
			t.Errorf("%q: valid %v, want %v", c.version, got, c.valid)
		}
	}
}
