package base

import "sconce.dev/sconce/internal/bootstrap"

// HasMirror reports whether this machine knows where the packages of a suite are without being told by a recipe.
func HasMirror(suite string) bool { return bootstrap.HasMirror(suite) }
