package engine

import (
	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/uv"
)

// StoredUV returns the uv that sconce brings, with its version, when the store has it.
func (s *Session) StoredUV() (path, version string, ok bool) {
	return uv.Stored(s.Store, s.uv)
}

// releaseOf is the release that a configuration asks for, nil where it asks for none.
func releaseOf(asked *config.UV) *uv.Release {
	if asked == nil {
		return nil
	}
	r := &uv.Release{Version: asked.Version, By: asked.File, Wheels: map[string]uv.Wheel{}}
	for arch, hash := range asked.SHA256 {
		r.Wheels[arch] = uv.Wheel{Digest: store.Digest("sha256:" + hash)}
	}
	return r
}

// HasMirror reports whether this machine knows where the packages of a distribution's suite are without being told by a recipe.
func HasMirror(suite string) bool { return base.HasMirror(suite) }

// Indexes lists the package indexes that count on this machine for a recipe that names none.
func Indexes() []string { return lock.Indexes(&recipe.Recipe{}) }
