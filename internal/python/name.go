package python

import "sconce.dev/sconce/internal/spelling"

// NormalizeName is [spelling.Distribution].
func NormalizeName(name string) string { return spelling.Distribution(name) }
