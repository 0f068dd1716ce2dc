// Package cpython knows what CPython makes of its version: names of directories and of byte code. Environments of wheels and of conda
// packages have them in common.
package cpython

import "strings"

// Minor is a version as far as paths and byte code depend on it: 3.12 of 3.12.4.
func Minor(version string) string {
	major, rest, ok := strings.Cut(version, ".")
	if !ok {
		return version
	}
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// CacheTag is what stands in the names of a version's byte code (PEP 3147, sys.implementation.cache_tag): cpython-312.
func CacheTag(version string) string { return "cpython-" + strings.ReplaceAll(Minor(version), ".", "") }

// Valid reports whether a version is one of which paths can be made: it begins with two numbers.
func Valid(version string) bool {
	major, minor, ok := strings.Cut(Minor(version), ".")
	return ok && number(major) && number(minor)
}

func number(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
