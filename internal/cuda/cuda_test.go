package cuda

import "testing"

func TestDriverVersions(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		older bool
	}{
		{"525.60.13", "550.54.14", true},
		{"550.54.14", "550.54.15", true},
		{"550.54.15", "550.54.14", false},
		{"550.54", "550.54.15", false}, // may be any 550.54
		{"550", "550.54.15", false},
		{"550", "550.54", false},
		{"549", "550.54", true},
		{"570.26", "570.124.06", true},
		{"1000.1", "999.9", false},
	} {
		if got := ParseDriver(c.a).OlderThan(ParseDriver(c.b)); got != c.older {
			t.Errorf("%s older than %s: %t", c.a, c.b, got)
		}
	}
	for _, bad := range []string{"", "550.", "r550", "550.54-1", "-1", "550..1"} {
		if v := ParseDriver(bad); v != nil {
			t.Errorf("%q is %v", bad, v)
		}
	}
	for _, s := range []string{"550.54.15", "580.65.06", "570.26", "615"} {
		if got := ParseDriver(s).String(); got != s {
			t.Errorf("%q, want %q", got, s)
		}
	}
}

func TestCUDAVersions(t *testing.T) {
	for s, want := range map[string]Version{
		"12": {12, -1}, "12.4": {12, 4}, "12.4.127": {12, 4}, "13.2.86": {13, 2}, "12.x": {12, -1},
	} {
		if got, ok := ParseVersion(s); got != want || !ok {
			t.Errorf("%s: %v, %t", s, got, ok)
		}
	}
	for _, bad := range []string{"", "0", "x", ".4"} {
		if got, ok := ParseVersion(bad); ok {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// The tables go together, and hold what the documents say of some releases.
func TestToolkits(t *testing.T) {
	for i, k := range toolkits[1:] {
		if last := toolkits[i]; last.cuda.Compare(k.cuda) >= 0 || !last.driver.OlderThan(k.driver) || last.ptx.Compare(k.ptx) > 0 {
			t.Errorf("%v does not come before %v", last, k)
		}
	}
	for _, k := range toolkits[1:] {
		if got := Newest(k.driver); got != k.cuda {
			t.Errorf("driver %v is for %v, want %v", k.driver, got, k.cuda)
		}
		if least := MinimumDriver(k.cuda); k.cuda.Minor > 0 && k.driver.OlderThan(least) {
			t.Errorf("CUDA %v came with driver %v, older than %v", k.cuda, k.driver, least)
		}
	}
	for ptx, want := range map[PTX]string{
		{6, 0}: "", {6, 5}: "", {7, 0}: "450 or newer", {7, 8}: "520 or newer", {8, 0}: "525 or newer", {8, 4}: "550 or newer", {8, 5}: "555 or newer",
		{8, 6}: "565 or newer", {8, 7}: "570 or newer", {9, 0}: "580 or newer", {9, 2}: "595 or newer", {9, 4}: "615 or newer", {9, 5}: "newer than 615",
	} {
		if got := DriverForPTX(ptx); got != want {
			t.Errorf("PTX %v: %q, want %q", ptx, got, want)
		}
	}
	for _, c := range []struct {
		driver string
		ptx    PTX
		want   bool
	}{
		{"525", PTX{8, 0}, true},
		{"525.60.13", PTX{8, 1}, false},
		{"560.28.03", PTX{8, 5}, true},
		{"570.26", PTX{8, 8}, false},
		{"440.33", PTX{6, 4}, true},
		{"615.31", PTX{9, 4}, true},
		{"615.31", PTX{9, 5}, false},
		{"620.10", PTX{9, 5}, true}, // newer than what is known here: nothing is said
	} {
		if got := ParseDriver(c.driver).Compiles(c.ptx); got != c.want {
			t.Errorf("driver %s, PTX %v: %t", c.driver, c.ptx, got)
		}
	}
	for cuda, want := range map[Version]string{{11, 8}: "450.80.02", {12, 9}: "525.60.13", {13, -1}: "580.65.06", {14, 0}: "", {10, 2}: "440.33", {10, 1}: ""} {
		if got := MinimumDriver(cuda).String(); got != want {
			t.Errorf("CUDA %v: %q, want %q", cuda, got, want)
		}
	}
	if v := Newest(ParseDriver("390.46")); v.Major != 0 {
		t.Errorf("driver 390 is for CUDA %v", v)
	}
}
