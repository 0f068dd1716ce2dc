package conda

import "io"

// NewPatcher is for tests.
func NewPatcher(w io.Writer, mode, placeholder, prefix string) io.WriteCloser {
	return newPatcher(w, mode, placeholder, prefix)
}

// SipHash is for tests.
var SipHash = sipHash

// ParseEntryPoint is for tests.
func ParseEntryPoint(s string) error {
	_, err := parseEntryPoint(s)
	return err
}

// Dependency is for tests.
var Dependency = dependency
