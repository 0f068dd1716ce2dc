// Package containerfile reads the build files that people already have.
package containerfile

import (
	_ "github.com/moby/buildkit/frontend/dockerfile/instructions"
	_ "github.com/moby/buildkit/frontend/dockerfile/parser"
	_ "github.com/moby/buildkit/frontend/dockerfile/shell"
)
