package units

import (
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 1_500_000_000: "1.5 GB", 1<<63 - 1: "9.2 EB",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
	for s, want := range map[string]int64{
		"0": 0, "1024": 1024, "500MB": 5e8, "20 GB": 2e10, "1.5k": 1536, "64GiB": 64 << 30, "1T": 1 << 40, "128K": 128 << 10, "3b": 3,
		"5GiB": 5 << 30, "5G": 5 << 30, "5g": 5 << 30, "5 gb": 5e9, "1.5KiB": 1536, "2kB": 2000,
	} {
		if got, err := ParseSize(s); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "GB", "-1", "1QB", "1GBB", "NaN", "Inf", "99999999E", "1 2", "1.2.3G", "G", "1X", "1.G", "1e3", "99999999999T", "1G ", "9223372036854775807"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d", s, got)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 12345: "12,345", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := Count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[int]string{0: "0 layers", 1: "1 layer", 12: "12 layers"} {
		if got := Number(n, "layer"); got != want {
			t.Errorf("Number(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.00s", 240 * time.Millisecond: "0.24s", 12300 * time.Millisecond: "12.3s", 59940 * time.Millisecond: "59.9s",
		59960 * time.Millisecond: "1m00s", 245 * time.Second: "4m05s", 123 * time.Minute: "2h03m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
	for s, want := range map[string]time.Duration{"30d": 30 * day, "2w": 14 * day, "12h": 12 * time.Hour, "0": 0, "90m": 90 * time.Minute} {
		if got, err := ParseAge(s); got != want || err != nil {
			t.Errorf("ParseAge(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "-1d", "-1h", "5", "1.5d", "99999d"} {
		if got, err := ParseAge(s); err == nil {
			t.Errorf("ParseAge(%q) = %v", s, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Second: "just now", 90 * time.Second: "1 minute ago", 5 * time.Hour: "5 hours ago", 49 * time.Hour: "2 days ago"} {
		if got := Ago(t0.Add(-d), t0); got != want {
			t.Errorf("Ago(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for s, want := range map[string]time.Duration{"90s": 90 * time.Second, "1.5h": 90 * time.Minute, "2d": 2 * day, "1w": 7 * day, "5y": 1825 * day, "0m": 0} {
		if got, err := ParseSpan(s); got != want || err != nil {
			t.Errorf("ParseSpan(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "5", "h", "-1h", "1h30m", "201y", "99999999999999999999s", "1 h"} {
		if got, err := ParseSpan(s); err == nil {
			t.Errorf("ParseSpan(%q) = %v", s, got)
		}
	}
	for d, want := range map[time.Duration]string{
		90 * time.Second: "90 s", 45 * time.Minute: "45 min", 118 * time.Minute: "1 h 58 min", time.Hour: "1 h", 684 * time.Hour: "28 d 12 h", 1825 * day: "1825 d",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%v) = %q, want %q", d, got, want)
		}
	}
}
