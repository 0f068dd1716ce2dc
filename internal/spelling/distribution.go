package spelling

import "strings"

// Distribution returns the one spelling of a Python distribution's name that names are compared in: lower case, with each run
// of "-", "_" and "." as one "-" (packaging.python.org, "Names and normalization").
func Distribution(name string) string {
	var b strings.Builder
	run := false
	for _, r := range strings.ToLower(name) {
		if r == '-' || r == '_' || r == '.' {
			run = true
			continue
		}
		if run {
			b.WriteByte('-')
			run = false
		}
		b.WriteRune(r)
	}
	if run {
		b.WriteByte('-')
	}
	return b.String()
}
