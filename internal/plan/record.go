package plan

import (
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/store"
)

// Record is what is kept of a plan that was built, to say of a later one what is different. It holds no secret: keys know of none.
type Record struct {
	Image string       `json:"image"` // NAME:TAG
	Steps []StepRecord `json:"steps"` // of all stages, each after what it is based on; the image itself is the last
}

// StepRecord is one step of a [Record].
type StepRecord struct {
	Stage  string           `json:"stage,omitempty"` // what people call it
	Kind   string           `json:"kind"`            // of the op, or "image"
	Title  string           `json:"title"`
	Place  string           `json:"place,omitempty"` // FILE:LINE
	Key    Key              `json:"key,omitempty"`   // "" of a line that changes the configuration only
	On     []Key            `json:"on,omitempty"`
	Inputs []Input          `json:"inputs,omitempty"`
	Args   []Input          `json:"arguments,omitempty"` // of the build, see [Step.Args]
	Files  []fileop.FileSum `json:"files,omitempty"`     // of directories of this machine that it takes files of

	// Content says that the step is found by what it really is based on, too; see [Step.ContentKey].
	Content bool `json:"content,omitempty"`

	Seconds float64 `json:"seconds,omitempty"` // how long it took to make it, the last time; 0: not known
}

// KindBase is the kind of the step that lays the base.
const KindBase = "base"

// KindImage is the kind of a record's last step, which puts the image together.
const KindImage = "image"

// Record describes the plan.
func (p *Plan) Record() *Record {
	r := &Record{Image: p.Name}
	_ = p.EachStage(func(s *Stage) error { // which never fails
		for _, t := range s.Steps {
			if t.Op != nil {
				r.Steps = append(r.Steps, StepRecord{
					Stage: s.Label, Kind: t.Op.Kind(), Title: t.Title, Place: t.Place, Key: t.Key, On: t.On, Inputs: t.Inputs, Args: t.Args, Files: t.listed(), Content: t.Content || grafts(t.Op),
				})
			}
		}
		return nil
	})
	r.Steps = append(r.Steps, StepRecord{
		Stage: p.Label, Kind: KindImage, Title: "image " + p.Name, Key: p.Image.Key, On: []Key{p.Stage.Key()}, Inputs: p.Image.Inputs, Args: p.Image.Args,
	})
	return r
}

// grafts reports whether an op takes over what another stage made, for which nothing is made that would be worth a key of its own.
func grafts(op Op) bool {
	_, ok := op.(*Graft)
	return ok
}

// EachStage calls visit for every stage of the plan, after those that it is based on or takes files of.
func (p *Plan) EachStage(visit func(*Stage) error) error {
	return eachStage(p.Stage, make(map[*Stage]bool), visit)
}

// StandsOn reports whether the layers of a stage are among the image's.
func (p *Plan) StandsOn(s *Stage) bool {
	for at := p.Stage; at != nil; at = at.From {
		if at == s {
			return true
		}
	}
	return false
}

func eachStage(s *Stage, seen map[*Stage]bool, visit func(*Stage) error) error {
	if s == nil || seen[s] {
		return nil
	}
	seen[s] = true
	if err := eachStage(s.From, seen, visit); err != nil {
		return err
	}
	for _, t := range s.Steps {
		for _, from := range t.Sources() {
			if err := eachStage(from.Stage, seen, visit); err != nil {
				return err
			}
		}
	}
	return visit(s)
}

// listed are the files of this machine that a step takes.
func (t *Step) listed() []fileop.FileSum {
	switch op := t.Op.(type) {
	case *Copy:
		return op.Listed
	case *Exec:
		var all []fileop.FileSum
		for _, m := range op.Mounts {
			all = append(all, m.Listed...)
		}
		return all
	}
	return nil
}

// Key is the key of the records of images' last plans.
func (r *Record) Key() string { return store.DigestOf([]byte(r.Image)).Hex() }
