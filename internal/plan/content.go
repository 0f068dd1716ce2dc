package plan

import (
	"slices"
	"strings"

	"sconce.dev/sconce/internal/store"
)

// A step's key is made of the keys of what it is based on, so that it is known before anything is made. What was made in another way may
// have come out the same, though: a component whose patch got another comment. So a step that is based on what other stages made has a
// second key, of the bytes that are really below it and that it really takes. It is known once those are there; what is recorded under
// it need not be made again, and is recorded under the first key, too. From then on the first key alone tells.

// contentOp reports whether an op is one of those that have a content key.
func contentOp(op Op) bool {
	switch op.(type) {
	case *Exec, *Copy, *MakeDir, *Link, *Patch, *Output:
		return true
	}
	return false
}

// Ground is what a step really is based on and takes, once it is made.
type Ground struct {
	Below       []store.Digest            // of the layers below, uncompressed, lowest first
	Environment []string                  // that its command inherits, as NAME=VALUE
	Taken       map[*Stage][]store.Digest // of the layers of the stages that it takes files of; the last alone, of an [Output]
}

// ContentKey is the key of a step by what it really is based on. Equal keys make equal layers, as with [Step.Key]; s is the step's stage.
func (t *Step) ContentKey(s *Stage, g Ground) Key {
	in := []Input{{"layer", text(s.Layer)}, {"below", text(g.Below)}, {"inherited", text(g.Environment)}}
	own := slices.Clone(t.Inputs)
	for _, from := range t.Sources() {
		if from.Stage == nil {
			continue
		}
		for i := range own {
			own[i].Value = strings.ReplaceAll(own[i].Value, sourceKey(from, ""), "layers "+string(store.DigestOf([]byte(text(g.Taken[from.Stage])))))
		}
	}
	return keyOf("content "+t.Op.Kind(), stepVersion, nil, append(in, own...))
}

// TakesStages reports whether a step takes what another stage made.
func (t *Step) TakesStages() bool {
	return slices.ContainsFunc(t.Sources(), func(s Source) bool { return s.Stage != nil })
}
