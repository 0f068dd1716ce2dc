package cli

import (
	"testing"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Every regular expression of the program is one: otherwise this panics and names it.
func TestExpressions(*testing.T) { lazyregexp.CompileAll() }
