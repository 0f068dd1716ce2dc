package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// rulesVersion is raised when a rule judges otherwise than before, so that no verdict of an older one is believed.
const rulesVersion = 5

// RulesKey identifies the rules: results that were remembered under another are out of date.
func RulesKey() string {
	data, err := json.Marshal(struct {
		Version int
		Rules   []Rule
	}{rulesVersion, Rules()})
	if err != nil {
		panic("audit: a rule that cannot be encoded: " + err.Error()) // it is made of strings
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// KnownRule returns an error that names the nearest rule when there is none of this ID. Its exit code is 2.
func KnownRule(id string) error {
	return KnownAmong(Rules(), id, "`sconce check --list-rules` lists them")
}

// KnownAmong is KnownRule for these rules. hint says where they are listed.
func KnownAmong(rules []Rule, id, hint string) error {
	var ids []string
	for _, r := range rules {
		ids = append(ids, r.ID)
	}
	if slices.Contains(ids, id) {
		return nil
	}
	if near := spelling.Nearest(id, ids); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return fault.Usage(fault.Hint(fmt.Errorf("there is no rule %q", id), hint))
}

// Allow marks the findings of rules that are allowed, by ID, with the reason.
func Allow(findings []Finding, reasons map[string]string) {
	for i := range findings {
		findings[i].Allowed = reasons[findings[i].Rule]
	}
}

// Count is how many findings there are of each severity, those that are allowed aside.
type Count struct {
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	Notes    int `json:"notes"`
	Allowed  int `json:"allowed"`
}

// CountOf counts findings.
func CountOf(findings []Finding) Count {
	var c Count
	for _, f := range findings {
		switch {
		case f.Allowed != "":
			c.Allowed++
		case f.Severity == Error:
			c.Errors++
		case f.Severity == Warning:
			c.Warnings++
		default:
			c.Notes++
		}
	}
	return c
}

// AtLeast reports whether s is as bad as least or worse.
func (s Severity) AtLeast(least Severity) bool {
	return slices.Index(Severities, s) <= slices.Index(Severities, least)
}

// Severities lists the severities, worst first.
var Severities = []Severity{Error, Warning, Note}
