package plan

import (
	"fmt"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
)

// checkDepth refuses a stage of which a command would stand on more layers than can be mounted over each other: it would fail
// after everything below it was made.
func (s *Stage) checkDepth() error {
	depth := s.From.depth()
	for _, t := range s.Steps {
		if _, runs := t.Op.(*Exec); runs && depth > execop.MaxLayers {
			return fault.Hint(
				fmt.Errorf("%s: %s: it is based on %d layers, and a command can stand on %d", t.Place, t.Label(), depth, execop.MaxLayers),
				"join lines into one: each RUN, COPY and ADD counts as a layer, beside those of the base")
		}
		depth += t.layers()
	}
	return nil
}

// Depth is how many layers the stage has at most, those below it included.
func (s *Stage) Depth() int { return s.depth() }

// depth is how many layers a stage has, those below it included. A nil stage has none.
func (s *Stage) depth() int {
	if s == nil {
		return 0
	}
	n := s.From.depth()
	for _, t := range s.Steps {
		n += t.layers()
	}
	return n
}

// layers is how many layers a step puts on top. A directory that is wanted is mostly there, and then is none.
func (t *Step) layers() int {
	switch op := t.Op.(type) {
	case nil, *MakeDir:
		return 0
	case *Base:
		return op.Pinned.Layers
	}
	return 1
}
