// Package audit judges an image for a cluster: its rules compare the facts of the image with a profile of the target, and say what
// keeps it from running well there. Package facts gathers what they look at; only some small files are read here.
package audit

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
)

// Severity says how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Error   Severity = "error"   // it will not run there
	Warning Severity = "warning" // it may not, or not as it should
	Note    Severity = "note"    // worth knowing
)

// Finding is something that a rule found.
type Finding struct {
	Rule     string   `json:"rule"` // its ID
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`           // what was seen, in a sentence without a full stop
	Path     string   `json:"path,omitempty"`    // the file it is about: "/opt/venv/lib/libx.so"
	Line     int      `json:"line,omitempty"`    // of a text file, from 1 on
	Column   int      `json:"column,omitempty"`  // likewise, in bytes
	Seen     []string `json:"seen,omitempty"`    // the evidence, a file with its number each, worst first
	Why      string   `json:"why"`               // it matters
	Remedy   string   `json:"remedy"`            // what to do
	Allowed  string   `json:"allowed,omitempty"` // the reason that the recipe gives for living with it
}

// Placed is the message with its place in front, as compilers write it.
func (f Finding) Placed() string {
	if f.Line == 0 {
		return f.Path + ": " + f.Message
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Message)
}

// Rule looks for one thing that keeps an image from running well.
type Rule struct {
	ID       string // "gpu-no-code"; stable, as recipes name it
	Severity Severity
	Title    string // what it looks for: "Libraries without code for the GPU"
	Why      string // it matters, in a sentence or two
	Remedy   string // what to do

	// look reports what it finds. Rule, Severity, Why and Remedy need not be set in a finding, but may be.
	look func(s *Subject, report func(Finding)) error
}

// Subject is an image that is to run on a target.
type Subject struct {
	*facts.Facts
	Target  cluster.Profile
	Context context.Context
}

// Rules returns all rules, by ID.
func Rules() []Rule {
	all := slices.Concat(gpuRules, driverRules, linkRules, pythonRules, condaRules, environmentRules, fileRules, layerRules, networkRules)
	slices.SortFunc(all, func(a, b Rule) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Check looks at an image with all rules. The findings are the worst first, then by rule and path.
func Check(ctx context.Context, f *facts.Facts, target cluster.Profile) ([]Finding, error) {
	s := &Subject{Facts: f, Target: target, Context: ctx}
	findings := []Finding{}
	for _, r := range Rules() {
		report := func(found Finding) { findings = append(findings, r.complete(found)) }
		if err := r.look(s, report); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.ID, err)
		}
		if err := cmp.Or(f.Missing(), ctx.Err()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(findings, compareFindings)
	return findings, nil
}

func (r *Rule) complete(f Finding) Finding {
	f.Rule = r.ID
	if f.Path != "" {
		f.Path = rooted(f.Path)
	}
	if f.Severity == "" {
		f.Severity = r.Severity
	}
	if f.Why == "" {
		f.Why = r.Why
	}
	if f.Remedy == "" {
		f.Remedy = r.Remedy
	}
	return f
}

// rooted is a path of the facts, which have no slash in front, as findings name it.
func rooted(name string) string { return path.Join("/", name) }

func rootedAll(names []string) []string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = rooted(name)
	}
	return list
}

func compareFindings(a, b Finding) int {
	order := []Severity{Error, Warning, Note}
	if d := slices.Index(order, a.Severity) - slices.Index(order, b.Severity); d != 0 {
		return d
	}
	if d := strings.Compare(a.Rule, b.Rule); d != 0 {
		return d
	}
	return strings.Compare(a.Path, b.Path)
}
