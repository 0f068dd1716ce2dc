package engine

import (
	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/uv"
)

// StoredUV returns the uv that sconce has brought into the store, and its version, when it has.
func (s *Session) StoredUV() (path, version string, ok bool) {
	path, ok = uv.Stored(s.Store)
	return path, uv.Version, ok
}

// HasMirror reports whether this machine knows where the packages of a distribution's suite are without being told by a recipe.
func HasMirror(suite string) bool { return base.HasMirror(suite) }

// Indexes lists the package indexes that count on this machine for a recipe that names none.
func Indexes() []string { return lock.Indexes(&recipe.Recipe{}) }
