package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// checkBuilt looks whether an image that was built will run on its recipe's target. What was found is told in short.
func (a *app) checkBuilt(ctx context.Context, r *recipe.Recipe, im *image.Image, t target) (*audit.Count, error) {
	findings, err := a.findingsOf(ctx, im, r.Name+":"+r.Version, t.Profile)
	if err != nil {
		return nil, err
	}
	audit.Allow(findings, t.allow)
	count := audit.CountOf(findings)
	again := fmt.Sprintf("`sconce check --recipe %s` shows all of it", filepath.Dir(r.Path))
	if count.Warnings > 0 {
		text := fmt.Sprintf("the check for %s found %s:\n%s", t.title(), number(count.Warnings, "warning"), brief(findings, audit.Warning, false))
		event.Warn(ctx, text, again)
	}
	if count.Errors > 0 {
		err := fmt.Errorf("the image will not run on %s: %s\n%s", t.title(), number(count.Errors, "error"), brief(findings, audit.Error, true))
		return &count, fault.Problem(fault.Hint(err, again+"; the image is in the store as "+r.Name+":"+r.Version+
			", and was neither written nor pushed. --no-check builds it all the same"))
	}
	return &count, nil
}

// title is what a target is called in a sentence.
func (t target) title() string {
	if t.Name != "" {
		return t.Name
	}
	return "the target (" + t.Words() + ")"
}

// briefFindings is how many findings are told in short.
const briefFindings = 3

// brief tells the first findings of a severity that are not allowed, a line each, with what to do about them if that is wanted.
func brief(findings []audit.Finding, s audit.Severity, remedies bool) string {
	counted, _ := split(findings)
	counted = slices.DeleteFunc(counted, func(f audit.Finding) bool { return f.Severity != s })
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

// checkKind is the kind of the records that remember what was found in an image.
const checkKind store.Kind = "check-v1"

// findingsOf checks an image of the store, unless the same rules have judged it for the same target before.
func (a *app) findingsOf(ctx context.Context, im *image.Image, name string, t cluster.Profile) ([]audit.Finding, error) {
	st, err := a.store(ctx)
	if err != nil {
		return nil, err
	}
	key, err := checkKey(im, t)
	if err != nil {
		return nil, err
	}
	var known []audit.Finding
	if found, err := st.GetRecord(checkKind, key, &known); err != nil || found {
		return known, err
	}
	facts, err := facts.OfImage(ctx, st, im, name)
	if err != nil {
		return nil, err
	}
	defer facts.Close()
	findings, err := audit.Check(ctx, facts, t)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", name, err)
	}
	if st.ReadOnly() {
		return findings, nil
	}
	return findings, st.PutRecord(checkKind, key, im.Refs(), findings)
}

// checkKey identifies a check: the image, what it is judged by, and the rules.
func checkKey(im *image.Image, t cluster.Profile) (string, error) {
	t.Description = "" // the name may be in what a rule says
	data, err := json.Marshal(struct {
		Image  store.Digest
		Target cluster.Profile
		Rules  string
		Sconce string
	}{im.Digest, t, audit.RulesKey(), currentVersion().Version})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
