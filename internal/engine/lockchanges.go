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
type decided struct{ kind, name string }

// versions are what a lock has decided, as people would name it.
func (l *Locked) versions() map[decided]string {
	v := map[decided]string{}
	for i := range l.Wheels {
		v[decided{"", l.Wheels[i].Name}] = l.Wheels[i].Version
	}
	for i := range l.Compiles {
		v[decided{"", l.Compiles[i].Name}] = l.Compiles[i].Version
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

// changes tells how a lock differs from an earlier one, a line for each package: "+ tqdm 4.70.1", "~ numpy 2.0 → 2.1", "- six 1.17".
func changes(before, after *Locked) []string {
	from, to := before.versions(), after.versions()
	type change struct {
		of   decided
		text string
	}
	var all []change
	for what, version := range to {
		label := strings.TrimSpace(what.name + " " + version)
		switch old, ok := from[what]; {
		case !ok:
			all = append(all, change{what, "+ " + label})
		case old != version:
			all = append(all, change{what, fmt.Sprintf("~ %s %s → %s", what.name, old, version)})
		}
	}
	for what, version := range from {
		if _, ok := to[what]; !ok {
			all = append(all, change{what, "- " + strings.TrimSpace(what.name+" "+version)})
		}
	}
	slices.SortFunc(all, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.of.kind, b.of.kind), cmp.Compare(a.of.name, b.of.name), cmp.Compare(a.text, b.text))
	})
	lines := make([]string, 0, len(all))
	for _, c := range all {
		if c.of.kind != "" {
			c.text += " (" + c.of.kind + ")"
		}
		lines = append(lines, c.text)
	}
	return lines
}

// maxChanges is how many changes of a lock are told one by one.
const maxChanges = 20

// tellChanges says what a new lock changed.
func tellChanges(ctx context.Context, r *Recipe, before, after *Locked) {
	lines := changes(before, after)
	if len(lines) == 0 {
		return
	}
	if more := len(lines) - maxChanges; more > 0 {
		lines = append(lines[:maxChanges], fmt.Sprintf("and %d more", more))
	}
	progress.Notef(ctx, r.LockName()+" has changed:\n  "+strings.Join(lines, "\n  "))
}
