package plan

import (
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Stage is a chain of layers: steps on top of each other, and on those of another stage or on nothing.
type Stage struct {
	Label string // what people call it: the name that a Containerfile gives it
	From  *Stage // what it is based on; nil: nothing
	Steps []*Step
	Layer layer.Options // of the layers that its steps make

	key Key // of all steps so far, "" as long as there is none

	takes bool // a step so far, or one below, takes what another stage made
}

// Key identifies the files of the stage: equal keys, equal files.
func (s *Stage) Key() Key { return s.key }

// Step is one change on top of all before it, and at most one layer.
type Step struct {
	Key     Key     // "" of a step that makes no layer
	Title   string  // what it does, as a person would write it: for progress and messages, in no key
	History string  // what the image's history says of it, and so part of the image's key; "" of a step without an entry
	Place   string  // where it is written: FILE:LINE; "" if nowhere in particular
	Op      Op      // nil: a line of a Containerfile that changes the configuration only
	Inputs  []Input // what Key stands for, besides what the step is based on
	On      []Key   // what it is based on: of these, and Inputs, Key is made
	Args    []Input // build arguments by which Inputs, or the configuration, came to be what they are; in no key

	// Content says that the step is based on what other stages made, or takes files of them, so that there is a second key to look
	// under once these are made; see [Step.ContentKey].
	Content bool
}

// Source is where files come from: a stage, a directory of this machine, or, with neither, nowhere.
type Source struct {
	Stage *Stage
	Dir   string // as the plan's Open takes it
}

// newStage begins a stage on from, which may be nil.
func newStage(label string, from *Stage, o layer.Options) *Stage {
	s := &Stage{Label: label, From: from, Layer: o}
	if from != nil {
		s.key, s.takes = from.key, from.takes
	}
	return s
}

// add puts a step on top, and gives it its key.
func (s *Stage) add(t *Step) {
	if t.Op != nil {
		t.Inputs = t.Op.inputs()
		t.Key, t.On = t.Op.key(s, t.Inputs)
		s.key = above(s.key, t)
		s.takes = s.takes || t.TakesStages()
		t.Content = s.takes && contentOp(t.Op)
	}
	s.Steps = append(s.Steps, t)
}

// above is the key of a stage with one step more. The key of a step that is based on all before it says it all.
func above(stage Key, t *Step) Key {
	if stage == "" || len(t.On) == 1 && t.On[0] == stage {
		return t.Key
	}
	return keyOf("stage", stepVersion, []Key{stage, t.Key}, nil)
}

// Base is the step that brings the image which the stage begins with; nil if it begins with nothing.
func (s *Stage) Base() *Base {
	for ; s != nil; s = s.From {
		if len(s.Steps) > 0 {
			if b, ok := s.Steps[0].Op.(*Base); ok {
				return b
			}
		}
	}
	return nil
}

// Environment is the step that makes the stage's virtual environment; nil if it has none.
func (s *Stage) Environment() *Environment {
	for _, t := range s.Steps {
		if e, ok := t.Op.(*Environment); ok {
			return e
		}
	}
	return nil
}

// History is what the image's history says of the stage's steps, the base's own history aside.
func (s *Stage) History() []string {
	if s == nil {
		return nil
	}
	all := s.From.History()
	for _, t := range s.Steps {
		if t.History != "" {
			all = append(all, t.History)
		}
	}
	return all
}

// keysOf are the keys of the steps so far whose Op is one that want accepts.
func (s *Stage) keysOf(want func(Op) bool) []Key {
	var keys []Key
	for _, t := range s.Steps {
		if t.Op != nil && want(t.Op) {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

// sourceKey says what files a source is: those of a stage by its key, those of this machine by their digest.
func sourceKey(s Source, digest store.Digest) string {
	if s.Stage != nil {
		return "stage " + string(s.Stage.Key())
	}
	return string(digest)
}

// maxLabel is how much of a title fits on a line beside other things, in characters.
const maxLabel = 60

// Label is the title, or its beginning when it is long.
func (t *Step) Label() string {
	if runes := []rune(t.Title); len(runes) > maxLabel {
		return string(runes[:maxLabel-1]) + "…"
	}
	return t.Title
}

// Sources lists where the step's files come from.
func (t *Step) Sources() []Source {
	switch op := t.Op.(type) {
	case *Copy:
		return []Source{op.From}
	case *Exec:
		var all []Source
		for _, m := range op.Mounts {
			all = append(all, m.Files)
		}
		return all
	case *Graft:
		return []Source{{Stage: op.From}}
	case *Output:
		return []Source{{Stage: op.Of}}
	case *Compile:
		var all []Source
		for _, s := range op.Needs {
			all = append(all, Source{Stage: s})
		}
		return all
	}
	return nil
}
