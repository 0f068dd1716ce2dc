package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// decided is one thing that a lock has decided: which version of what.
type decided struct{ kind, name string } // kind is one of kindsInOrder

const pythonKind = "python"

// kindsInOrder are the kinds of things that a lock decides.
var kindsInOrder = []string{pythonKind, "base", "conda", "system"}

// versions are what a lock has decided, as people would name it.
func (l *Locked) versions() map[decided]string {
	v := map[decided]string{}
	for i := range l.Wheels {
		v[decided{pythonKind, l.Wheels[i].Name}] = l.Wheels[i].Version
	}
	for i := range l.Compiles {
		v[decided{pythonKind, l.Compiles[i].Name}] = l.Compiles[i].Version
	}
	for i := range l.Conda.Packages {
		p := &l.Conda.Packages[i]
		v[decided{"conda", p.Name}] = p.Version
	}
	if l.System != nil {
		for i := range l.System.Packages {
			v[decided{"system", l.System.Packages[i].Name}] = l.System.Packages[i].Version
		}
	}
	if b := l.Base.Bootstrap; b != nil {
		for i := range b.Packages {
			v[decided{"base", b.Packages[i].Name}] = b.Packages[i].Version
		}
	} else if l.Base.Reference != "" {
		v[decided{"base", l.Base.Reference}] = l.Base.Digest.Short()
	}
	return v
}

// LockChange is what a new lock decides otherwise than the one before.
type LockChange struct {
	Kind string `json:"kind"` // "python", "conda", "system", "base"
	Name string `json:"name"`
	From string `json:"from,omitempty"` // version, or the digest of an image; "": it was not there
	To   string `json:"to,omitempty"`   // likewise; "": it is gone
}

// String is as uv has it: "+ tqdm 4.70.1", "~ numpy 2.0 → 2.1", "- six 1.17", with the kind behind what is no Python package.
func (c LockChange) String() string {
	text := "~ " + c.Name + " " + c.From + " → " + c.To
	switch {
	case c.From == "":
		text = strings.TrimSpace("+ " + c.Name + " " + c.To)
	case c.To == "":
		text = "- " + c.Name + " " + c.From
	}
	if c.Kind != pythonKind {
		text += " (" + c.Kind + ")"
	}
	return text
}

// changes tells how a lock differs from an earlier one, Python packages first.
func changes(before, after *Locked) []LockChange {
	from, to := before.versions(), after.versions()
	all := []LockChange{}
	for what, version := range to {
		if old, ok := from[what]; !ok || old != version {
			all = append(all, LockChange{what.kind, what.name, old, version})
		}
	}
	for what, version := range from {
		if _, ok := to[what]; !ok {
			all = append(all, LockChange{what.kind, what.name, version, ""})
		}
	}
	slices.SortFunc(all, func(a, b LockChange) int {
		return cmp.Or(cmp.Compare(slices.Index(kindsInOrder, a.Kind), slices.Index(kindsInOrder, b.Kind)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// maxChanges is how many changes of a lock are told one by one.
const maxChanges = 20

// tellChanges says what a new lock changed.
func tellChanges(ctx context.Context, r *Recipe, all []LockChange) {
	if len(all) == 0 {
		return
	}
	var lines []string
	for _, c := range all[:min(len(all), maxChanges)] {
		lines = append(lines, c.String())
	}
	if more := len(all) - maxChanges; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	progress.Notef(ctx, r.LockName()+" has changed:\n  "+strings.Join(lines, "\n  "))
}
