// Package units writes sizes, counts and spans of time for people, and reads those that people write.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/lazyregexp"
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

// sizeParts are the number, the letter and the rest of the unit.
var sizeParts = lazyregexp.New(`^([0-9]+(?:\.[0-9]+)?)\s?(?:([kKMGTPEmgtpe])(i?[bB])?|[bB])?$`)

// ParseSize returns a number of bytes: "5GiB" and, as mount(8), mksquashfs and Docker read it, "5G" are 5·1024³, "5GB" is 5·1000³.
func ParseSize(s string) (int64, error) {
	m := sizeParts.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size such as 5GiB or 500MB", s)
	}
	base := 1024.0
	if strings.EqualFold(m[3], "b") {
		base = 1000
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if m[2] != "" {
		n *= math.Pow(base, float64(strings.Index("KMGTPE", strings.ToUpper(m[2]))+1))
	}
	if err != nil || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is larger than any memory or disk", s)
	}
	return int64(n), nil
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

// Coarse is [Duration] for estimates: whole seconds, never none.
func Coarse(d time.Duration) string {
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

// spanParts are the number and the unit of a span of time.
var spanParts = lazyregexp.New(`^([0-9]+(?:\.[0-9]+)?)(s|m|h|d|w|y)$`)

// spanUnits are what a span is counted in; a year has 365 days.
var spanUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": day, "w": 7 * day, "y": 365 * day}

// maxSpan bounds a span: nothing that is planned takes longer.
const maxSpan = 200 * 365 * day

// ParseSpan reads a span of time in one unit, of seconds to years: "90s", "1.5h", "5y".
func ParseSpan(s string) (time.Duration, error) {
	m := spanParts.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a time such as 90s, 24h or 2d", s)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if unit := spanUnits[m[2]]; err == nil && n <= float64(maxSpan/unit) {
		return time.Duration(n * float64(unit)), nil
	}
	return 0, fmt.Errorf("%q is longer than 200 years", s)
}

// Span writes a span of time of any length for a person, to two units: "90 s", "1 h 58 min", "28 d 12 h".
func Span(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d.Round(time.Minute)/time.Minute)
	case d < 2*day:
		d = d.Round(time.Minute)
		return twoUnits(d/time.Hour, "h", d%time.Hour/time.Minute, "min")
	}
	d = d.Round(time.Hour)
	return twoUnits(d/day, "d", d%day/time.Hour, "h")
}

func twoUnits(large time.Duration, largeUnit string, small time.Duration, smallUnit string) string {
	if small == 0 {
		return fmt.Sprintf("%d %s", large, largeUnit)
	}
	return fmt.Sprintf("%d %s %d %s", large, largeUnit, small, smallUnit)
}

// Count returns a number in groups of three digits: "1,000,000".
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	first := len(digits) - 3
	if n < 0 {
		digits, first = digits[1:], first-1
	}
	for ; first > 0; first -= 3 {
		digits = digits[:first] + "," + digits[first:]
	}
	if n < 0 {
		return "-" + digits
	}
	return digits
}

// Number returns n of a thing: "1 layer", "2 layers".
func Number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
