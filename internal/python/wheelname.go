package python

import "slices"

// WheelName is what the name of a wheel's file says.
type WheelName struct {
	Name    string // as written
	Version string
	tags    map[string]bool
}

// ParseWheelName reads the name of a wheel's file.
func ParseWheelName(file string) (WheelName, error) {
	w, err := parseWheelName(file)
	return WheelName{Name: w.name, Version: w.version, tags: w.tags}, err
}

// Fits reports whether any of the wheel's tags is among tags.
func (w WheelName) Fits(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return w.tags[t] })
}

// SamePublicVersion reports whether a is b, or b with a local label: builds often add one, of their CUDA or commit.
func SamePublicVersion(a, b string) bool {
	if sameVersion(a, b) {
		return true
	}
	va, err := ParseVersion(a)
	if err != nil {
		return false
	}
	vb, err := ParseVersion(b)
	if err != nil {
		return false
	}
	return len(vb.local) == 0 && va.comparePublic(vb) == 0
}
