package registry

import (
	"errors"
	"net/http"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store"
)

// Condition is what must be so for a manifest to be written (RFC 9110, section 13.1). Most registries know no conditions, and write it all the
// same: whoever needs to know reads it back. The zero value is none.
type Condition struct{ field, value string }

// IfAbsent wants that there is nothing under the reference.
func IfAbsent() Condition { return Condition{"If-None-Match", "*"} }

// IfStill wants that there is still the manifest of a digest, and nothing if that is "". Registries with conditions have the digest as entity
// tag, in quotes.
func IfStill(d store.Digest) Condition {
	if d == "" {
		return IfAbsent()
	}
	return Condition{"If-Match", `"` + string(d) + `"`}
}

// IsRefused reports whether a manifest was not written as its condition was not met.
func IsRefused(err error) bool {
	var answer *fetch.StatusError
	return errors.As(err, &answer) && answer.Code == http.StatusPreconditionFailed
}
