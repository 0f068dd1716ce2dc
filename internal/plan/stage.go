package plan

import (
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/step"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/system"
	"sconce.dev/sconce/internal/transfer"
)

// Stage is a chain of layers: what it stands on, and steps on top of each other. In the order of the layers; the zero value
// of a field means that there is no such step. A stage without Base and Parent begins with nothing.
type Stage struct {
	Label  string // what people call it: the name that a Containerfile gives it
	Base   *BaseStep
	Parent *Stage
	System *SystemStep
	Wheels []*WheelsStep // in the order of their layers

	Compiles []*CompileStep // of packages that have no wheel
	Env      *EnvironmentStep
	Steps    []*Step
	Layer    layer.Options // of the layers that Steps make

	key Key // of all so far, "" as long as there is nothing
}

// Key identifies the files of the stage: equal keys, equal files.
func (s *Stage) Key() Key { return s.key }

// SystemStep installs packages by the base's own package manager.
type SystemStep struct {
	Key    Key
	Pinned *system.Pinned
}

// Step is one change on top of all before it. Exactly one of Run, Copy, Dir and Patch is set, or none of them for a line of a
// Containerfile that changes the configuration only.
type Step struct {
	Key   Key    // "" of a step that makes no layer
	Title string // what it does, as a person would write it
	Place string // where it is written: FILE:LINE
	Run   *RunStep
	Copy  *CopyStep
	Dir   *DirStep
	Patch *transfer.Patch
}

// RunStep runs a command.
type RunStep struct {
	Command step.Command // without mounts
	Inherit bool         // the environment of the base's configuration comes before the command's
	Mounts  []Mount
}

// Mount is a mount together with where its files come from.
type Mount struct {
	step.Mount
	Files Source
}

// CopyStep copies files.
type CopyStep struct {
	Copy transfer.Copy
	From Source
}

// DirStep makes a directory, unless there is one.
type DirStep struct {
	Path  string // absolute
	Owner string // USER[:GROUP]; "" is root
}

// Source is where files come from: a stage, a directory of this machine, or, with neither, nowhere.
type Source struct {
	Stage   *Stage
	Context *transfer.Context
}

// stand begins the chain.
func (s *Stage) stand(keys ...Key) { s.key = keyOf("stage", stepVersion, keys) }

// add puts a step on top. content is what decides its result besides what it stands on; nil makes no layer.
func (s *Stage) add(t *Step, content any) {
	if content != nil {
		t.Key = keyOf("step", stepVersion, struct {
			On      Key
			Layer   layer.Options
			Content any
		}{s.key, s.Layer, content})
		s.key = t.Key
	}
	s.Steps = append(s.Steps, t)
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
	switch {
	case t.Copy != nil:
		return []Source{t.Copy.From}
	case t.Run != nil:
		var all []Source
		for _, m := range t.Run.Mounts {
			all = append(all, m.Files)
		}
		return all
	}
	return nil
}
