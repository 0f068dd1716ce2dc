package ui

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size writes a number of bytes in decimal units, as disks and registries count: "1.5 GB".
func Size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= 999.95 && unit < len(sizeUnits)-1 {
		v /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %s", v, sizeUnits[unit])
}

var sizeUnits = []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}

// ParseSize reads a number of bytes: "500MB", "20 GB", "1.5TB", "64GiB", "1024".
func ParseSize(s string) (int64, error) {
	bad := fmt.Errorf("%q is not a size such as 500MB, 20GB or 64GiB", s)
	digits := strings.TrimRight(s, "kKMGTPEiBb ")
	unit := strings.TrimSpace(s[len(digits):])
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsNaN(v) || v < 0 {
		return 0, bad
	}
	factor, ok := sizeFactor(unit)
	if !ok || v*factor > math.MaxInt64/2 {
		return 0, bad
	}
	return int64(v * factor), nil
}

func sizeFactor(unit string) (float64, bool) {
	unit = strings.ToLower(unit)
	if unit == "" || unit == "b" {
		return 1, true
	}
	base := 1000.0
	letter, rest := unit[:1], unit[1:]
	switch rest {
	case "", "b":
	case "i", "ib":
		base = 1024
	default:
		return 0, false
	}
	power := strings.Index("kmgtpe", letter)
	return math.Pow(base, float64(power+1)), power >= 0
}

// Duration writes a span of time for a person: "0.24s", "12.3s", "4m05s", "2h03m".
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < 59950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// coarse is [Duration] for estimates: whole seconds, never none.
func coarse(d time.Duration) string {
	d = max(time.Second, d.Round(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return Duration(d)
}

// day is only good for ages that a person reads.
const day = 24 * time.Hour

// Ago writes how long ago t was, coarsely: "5 minutes ago".
func Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "unknown"
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return count(d/time.Minute, "minute")
	case d < day:
		return count(d/time.Hour, "hour")
	}
	return count(d/day, "day")
}

func count(n time.Duration, unit string) string { return Number(int(n), unit) + " ago" }

// ParseAge reads a span of time in which days and weeks may be used: "30d", "2w", "12h", "0".
func ParseAge(s string) (time.Duration, error) {
	for suffix, unit := range map[string]time.Duration{"d": day, "w": 7 * day} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			v, err := strconv.ParseUint(n, 10, 16)
			if err != nil {
				return 0, fmt.Errorf("%q is not an age such as 12h, 30d or 2w", s)
			}
			return time.Duration(v) * unit, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not an age such as 12h, 30d or 2w", s)
	}
	return d, nil
}

// Number returns n of a thing: "1 layer", "2 layers".
func Number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
