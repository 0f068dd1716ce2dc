package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// Checked is what a check has found.
type Checked struct {
	Facts    *facts.Facts // closed: of the image, and no longer with its files
	Findings []audit.Finding
	audit.Count
	Trusted bool // the facts are those that somebody has signed, see [Subject.Trust]
}

// Check tells whether an image will run on a target. What the target allows is marked in the findings.
func (s *Session) Check(ctx context.Context, subject *Subject, t Target) (found *Checked, err error) {
	if err := s.checkPolicy(); err != nil {
		return nil, err
	}
	used, err := s.useTrusted(ctx, subject, func(f *facts.Facts) (err error) {
		found, err = s.judge(ctx, f, subject.Name, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	if used {
		found.Trusted = true
		return found, nil
	}
	gathered, err := subject.Facts(ctx)
	if err != nil {
		return nil, err
	}
	return s.judge(ctx, gathered, subject.Name, t)
}

// judge judges facts, and closes them.
func (s *Session) judge(ctx context.Context, gathered *facts.Facts, name string, t Target) (*Checked, error) {
	findings, err := audit.Check(ctx, gathered, t.Profile)
	if err = errors.Join(err, gathered.Close()); err != nil {
		return nil, fmt.Errorf("check %s: %w", name, err)
	}
	s.allow(ctx, findings, t.Allow)
	return &Checked{Facts: gathered, Findings: findings, Count: audit.CountOf(findings)}, nil
}

// checkPolicy refuses a policy about rules that do not exist: what is misspelt must not pass for what is meant.
func (s *Session) checkPolicy() error {
	for _, rule := range slices.Sorted(maps.Keys(s.check.Allow)) {
		if err := audit.KnownRule(rule); err != nil {
			return fmt.Errorf("configuration: check.allow: %w", err)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(s.check.Require)) {
		if err := audit.KnownRule(rule); err != nil {
			return fmt.Errorf("configuration %s: check.require: %w", s.check.Require[rule], err)
		}
	}
	return nil
}

// allow marks the findings that somebody allows: this machine's configuration, or asked, which goes before. What the configuration
// requires nobody allows, and who tried is told.
func (s *Session) allow(ctx context.Context, findings []audit.Finding, asked map[string]string) {
	told := map[string]bool{}
	for _, f := range findings {
		by := s.check.Require[f.Rule]
		if by == "" || s.check.Allow[f.Rule] == "" && asked[f.Rule] == "" || told[f.Rule] {
			continue
		}
		told[f.Rule] = true
		progress.Warn(ctx, fmt.Sprintf("%s counts, although it is allowed: %s requires it", f.Rule, by), "")
	}
	audit.Allow(findings, s.allowed(asked))
}

// allowed is why findings are allowed, by the rule: what somebody asked for, else what the configuration says, and never what it requires.
func (s *Session) allowed(asked map[string]string) map[string]string {
	reasons := map[string]string{}
	maps.Copy(reasons, s.check.Allow)
	maps.Copy(reasons, asked)
	maps.DeleteFunc(reasons, func(rule, _ string) bool { return s.check.Require[rule] != "" })
	return reasons
}

// findingsIn checks an image of the store, unless the same rules have judged it for the same target before. Nothing is marked as
// allowed.
func (s *Session) findingsIn(ctx context.Context, im *image.Image, name string, t cluster.Profile) ([]audit.Finding, error) {
	key, err := s.checkKey(im, t)
	if err != nil {
		return nil, err
	}
	once := store.Once[[]audit.Finding]{Kind: store.KindCheck, Key: key, Refs: func([]audit.Finding) []store.Digest { return im.Refs() }}
	findings, _, err := once.Do(ctx, s.Store, func(ctx context.Context) ([]audit.Finding, error) {
		gathered, err := facts.OfImage(ctx, s.Store, im, name)
		if err != nil {
			return nil, err
		}
		defer gathered.Close()
		findings, err := audit.Check(ctx, gathered, t)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", name, err)
		}
		return findings, nil
	})
	return findings, err
}

// checkKey identifies a check: the image, what it is judged by, and the rules.
func (s *Session) checkKey(im *image.Image, t cluster.Profile) (string, error) {
	t.Description = "" // the name may be in what a rule says
	data, err := json.Marshal(struct {
		Image  store.Digest
		Target cluster.Profile
		Rules  string
		Sconce string
	}{im.Digest, t, audit.RulesKey(), s.Version})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// checkBuilt looks whether an image that was built will run on its recipe's target. What was found is told in short.
func (s *Session) checkBuilt(ctx context.Context, r *Recipe, im *image.Image) (*audit.Count, error) {
	if err := s.checkPolicy(); err != nil {
		return nil, err
	}
	findings, err := s.findingsIn(ctx, im, r.FullName(), r.Target.Profile)
	if err != nil {
		return nil, err
	}
	s.allow(ctx, findings, r.Target.Allow)
	n := audit.CountOf(findings)
	again := fmt.Sprintf("`sconce check --recipe %s` shows all of it", quote.Word(filepath.Dir(r.Path)))
	if n.Warnings > 0 {
		text := fmt.Sprintf("the check for %s found %s:\n%s", r.Target.Title(), units.Number(n.Warnings, "warning"), brief(findings, audit.Warning, false))
		progress.Warn(ctx, text, again)
	}
	if n.Errors > 0 {
		err := fmt.Errorf("the image will not run on %s: %s\n%s", r.Target.Title(), units.Number(n.Errors, "error"), brief(findings, audit.Error, true))
		return &n, fault.Problem(fault.Hint(err, again+"; the image is in the store as "+r.FullName()+
			", and was neither written nor pushed. --no-check builds it all the same"))
	}
	return &n, nil
}

// briefFindings is how many findings are told in short.
const briefFindings = 3

// brief tells the first findings of a severity that are not allowed, a line each, with what to do about them if that is wanted.
func brief(findings []audit.Finding, s audit.Severity, remedies bool) string {
	counted := slices.DeleteFunc(slices.Clone(findings), func(f audit.Finding) bool { return f.Allowed != "" || f.Severity != s })
	var lines []string
	for i, f := range counted[:min(len(counted), briefFindings)] {
		lines = append(lines, fmt.Sprintf("%s [%s]", f.Message, f.Rule))
		last := i+1 == min(len(counted), briefFindings) || counted[i+1].Remedy != f.Remedy
		if remedies && last && f.Remedy != "" {
			lines = append(lines, "  fix: "+f.Remedy)
		}
	}
	if more := len(counted) - briefFindings; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}
