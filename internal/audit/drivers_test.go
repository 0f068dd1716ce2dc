package audit

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
		if got := parseDriver(c.a).olderThan(parseDriver(c.b)); got != c.older {
			t.Errorf("%s older than %s: %t", c.a, c.b, got)
		}
	}
	for _, bad := range []string{"", "550.", "r550", "550.54-1", "-1", "550..1"} {
		if v := parseDriver(bad); v != nil {
			t.Errorf("%q is %v", bad, v)
		}
	}
	for _, s := range []string{"550.54.15", "580.65.06", "570.26", "615"} {
		if got := parseDriver(s).String(); got != s {
			t.Errorf("%q, want %q", got, s)
		}
	}
}

func TestCUDAVersions(t *testing.T) {
	for s, want := range map[string]cudaVersion{
		"12": {12, -1}, "12.4": {12, 4}, "12.4.127": {12, 4}, "13.2.86": {13, 2}, "12.x": {12, -1},
	} {
		if got, ok := parseCUDA(s); got != want || !ok {
			t.Errorf("%s: %v, %t", s, got, ok)
		}
	}
	for _, bad := range []string{"", "0", "x", ".4"} {
		if got, ok := parseCUDA(bad); ok {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// The tables go together, and hold what the documents say of some releases.
func TestToolkits(t *testing.T) {
	for i, k := range toolkits[1:] {
		if last := toolkits[i]; last.cuda.compare(k.cuda) >= 0 || !last.driver.olderThan(k.driver) || last.ptx.compare(k.ptx) > 0 {
			t.Errorf("%v does not come before %v", last, k)
		}
	}
	for _, k := range toolkits[1:] {
		if got := cudaOf(k.driver); got != k.cuda {
			t.Errorf("driver %v is for %v, want %v", k.driver, got, k.cuda)
		}
		if least := minimumDriver(k.cuda); k.cuda.minor > 0 && k.driver.olderThan(least) {
			t.Errorf("CUDA %v came with driver %v, older than %v", k.cuda, k.driver, least)
		}
	}
	for ptx, want := range map[ptxVersion]string{
		{6, 0}: "", {6, 5}: "", {7, 0}: "450 or newer", {7, 8}: "520 or newer", {8, 0}: "525 or newer", {8, 4}: "550 or newer", {8, 5}: "555 or newer",
		{8, 6}: "565 or newer", {8, 7}: "570 or newer", {9, 0}: "580 or newer", {9, 2}: "595 or newer", {9, 4}: "615 or newer", {9, 5}: "newer than 615",
	} {
		if got := driverForPTX(ptx); got != want {
			t.Errorf("PTX %v: %q, want %q", ptx, got, want)
		}
	}
	for _, c := range []struct {
		driver string
		ptx    ptxVersion
		want   bool
	}{
		{"525", ptxVersion{8, 0}, true},
		{"525.60.13", ptxVersion{8, 1}, false},
		{"560.28.03", ptxVersion{8, 5}, true},
		{"570.26", ptxVersion{8, 8}, false},
		{"440.33", ptxVersion{6, 4}, true},
		{"615.31", ptxVersion{9, 4}, true},
		{"615.31", ptxVersion{9, 5}, false},
		{"620.10", ptxVersion{9, 5}, true}, // newer than what is known here: nothing is said
	} {
		if got := parseDriver(c.driver).compiles(c.ptx); got != c.want {
			t.Errorf("driver %s, PTX %v: %t", c.driver, c.ptx, got)
		}
	}
	for cuda, want := range map[cudaVersion]string{{11, 8}: "450.80.02", {12, 9}: "525.60.13", {13, -1}: "580.65.06", {14, 0}: "", {10, 2}: "440.33", {10, 1}: ""} {
		if got := minimumDriver(cuda).String(); got != want {
			t.Errorf("CUDA %v: %q, want %q", cuda, got, want)
		}
	}
	if v := cudaOf(parseDriver("390.46")); v.major != 0 {
		t.Errorf("driver 390 is for CUDA %v", v)
	}
}
