// Package lint judges the files by which jobs run in containers: environment definition files, job scripts, descriptions of uenvs and
// profiles of clusters. A script is judged together with the environment that it names, and that with its image.
//
// A rule fires on evidence only: what is not known, because the image is elsewhere or the target does not say, is not judged.
// Findings are those of package audit, with a line, and some with a [Finding.Fixable] edit.
package lint

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/facts"
)

// Rule looks for one mistake.
type Rule struct {
	audit.Rule

	// One of these looks at a file of its kind.
	edf    func(*subject)
	script func(*subject)
	uenv   func(*subject)
	any    func(*subject)
}

// Finding is something that a rule found, and perhaps how to mend it.
type Finding struct {
	audit.Finding
	Fixable bool `json:"fixable,omitempty"`

	edits []edit
}

// Options say what files are judged by.
type Options struct {
	Target  cluster.Profile
	Dialect edf.Dialect // of environments; "": as they are used
	Kind    Kind        // of all files; "": as they look
	Dir     string      // where a job would be submitted: relative paths start there; "": here
	Lookup  edf.Lookup  // variables of the environment

	// Texts are what is in files that are not written yet, by path. Coming are files of images that will be copied before the job starts,
	// each with what [Options.Image] knows the image by, or "".
	Texts  map[string]string
	Coming map[string]string

	// Image opens the image that an environment names, as far as it can be had: nil facts where it cannot, and why.
	Image func(ctx context.Context, name string) (im *facts.Facts, why string, err error)
}

// Result is what was found.
type Result struct {
	Files     []File    `json:"files"`
	Findings  []Finding `json:"findings"`
	NotJudged []string  `json:"notJudged,omitempty"` // with the reason

	texts map[string][]byte // of the files, by path
}

// File is a file that was judged.
type File struct {
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	By   string `json:"by,omitempty"` // the file that names it, where nobody else did
}

// Rules returns all rules, by ID.
func Rules() []Rule {
	all := slices.Concat(fileRules, edfRules, edfMountRules, edfImageRules, sbatchRules, sbatchInsideRules, uenvRules, venvRules)
	slices.SortFunc(all, func(a, b Rule) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// AuditRules are the rules as package audit lists them.
func AuditRules() []audit.Rule {
	var all []audit.Rule
	for _, r := range Rules() {
		all = append(all, r.Rule)
	}
	return all
}

// Check judges files. The findings are in the order of the files, the worst of each first. An error is one of a file that cannot be
// read or that is of no kind that lint knows.
func Check(ctx context.Context, paths []string, o Options) (*Result, error) {
	l := &linter{Options: o, ctx: ctx, rules: AuditRules(), images: map[string]*opened{}, result: &Result{Findings: []Finding{}, texts: map[string][]byte{}}}
	for _, path := range paths {
		if err := l.load(path); err != nil {
			return nil, err
		}
	}
	for i := 0; i < len(l.docs); i++ {
		if err := l.follow(l.docs[i]); err != nil {
			return nil, err
		}
	}
	for _, d := range l.docs {
		if err := l.judge(d); err != nil {
			return nil, err
		}
	}
	l.finish()
	return l.result, ctx.Err()
}

// linter is one run.
type linter struct {
	Options
	ctx    context.Context
	rules  []audit.Rule
	docs   []*document
	images map[string]*opened
	result *Result
}

// opened is an image that an environment names.
type opened struct {
	*facts.Facts        // nil: it cannot be had
	why          string // then
}

// subject is a file that a rule looks at.
type subject struct {
	*document
	linter *linter
	rule   *Rule
	found  []Finding
}

// place is where a finding is.
type place struct {
	path   string
	data   []byte
	offset int
}

// tell reports a finding. More may be said in what it returns, until the next is told.
func (s *subject) tell(at place, format string, args ...any) *Finding {
	f := Finding{Finding: audit.Finding{
		Rule: s.rule.ID, Severity: s.rule.Severity, Message: fmt.Sprintf(format, args...), Path: at.path, Why: s.rule.Why, Remedy: s.rule.Remedy,
	}}
	if at.data != nil {
		f.Line, f.Column = edf.Place(at.data, at.offset)
	}
	s.found = append(s.found, f)
	return &s.found[len(s.found)-1]
}

// in is a place in the file itself.
func (d *document) in(offset int) place { return place{d.path, d.data, offset} }

// of is the place of a setting, which may be in a base.
func of(s edf.Setting) place { return place{s.File.Path, s.File.Data, s.Value.At.Offset} }

func (l *linter) judge(d *document) error {
	for _, r := range Rules() {
		s := &subject{document: d, linter: l, rule: &r}
		for _, look := range []struct {
			does bool
			look func(*subject)
		}{
			{d.kind == EDF && d.edf != nil, r.edf}, {d.kind == Script && d.script != nil, r.script}, {d.kind == Uenv || d.kind == UenvMeta, r.uenv}, {true, r.any},
		} {
			if look.does && look.look != nil {
				look.look(s)
			}
		}
		if err := l.ctx.Err(); err != nil {
			return err
		}
		l.result.Findings = append(l.result.Findings, s.found...)
	}
	return nil
}

// finish sorts the findings, drops those of bases that were found twice, and marks what comments allow.
func (l *linter) finish() {
	order, named := map[string]int{}, map[string]bool{}
	for i, d := range l.docs {
		order[d.path], named[d.path] = i+1, d.by == ""
		l.result.Files = append(l.result.Files, File{d.path, d.kind, d.by})
		l.result.texts[d.path] = d.data
	}
	of := func(f Finding) int { return cmp.Or(order[f.Path], len(order)+1) }
	severity := func(f Finding) int { return slices.Index(audit.Severities, f.Severity) }
	slices.SortStableFunc(l.result.Findings, func(a, b Finding) int {
		return cmp.Or(of(a)-of(b), severity(a)-severity(b), strings.Compare(a.Rule, b.Rule), strings.Compare(a.Path, b.Path), a.Line-b.Line)
	})
	l.result.Findings = slices.CompactFunc(l.result.Findings, func(a, b Finding) bool {
		return a.Rule == b.Rule && a.Path == b.Path && a.Line == b.Line && a.Message == b.Message
	})
	for i := range l.result.Findings {
		f := &l.result.Findings[i]
		f.Allowed = l.allowed(*f)
		f.Fixable = len(f.edits) > 0 && named[f.Path]
	}
	slices.Sort(l.result.NotJudged)
	l.result.NotJudged = slices.Compact(l.result.NotJudged)
}

// Audit are the findings as package audit has them.
func (r *Result) Audit() []audit.Finding {
	all := make([]audit.Finding, 0, len(r.Findings))
	for _, f := range r.Findings {
		all = append(all, f.Finding)
	}
	return all
}

// Only leaves the findings that are at least this bad.
func (r *Result) Only(least audit.Severity) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return !f.Severity.AtLeast(least) })
}
